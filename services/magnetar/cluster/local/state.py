"""The state of a local cluster, in its directory.

cluster.json   the state; every command reads it, and changes it under `lock`
magnetar.conf  settings of all members; optional
NAME/          a member's data; NAME.log has its output
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from magnetar.cluster.local.members import Member
from magnetar.core.errors import Conflict, NotFound

STATE_FILE: Final = "cluster.json"
LOCK_FILE: Final = "lock"
CONFIG_FILE: Final = "magnetar.conf"
FORMAT_VERSION: Final = 1


class ClusterState(msgspec.Struct):
    """The members of a cluster, and the choices made when it was created."""

    name: str
    host: str
    base: str
    """`standard`, `free` or the first port."""
    format_version: int = FORMAT_VERSION
    members: list[Member] = []
    last_numbers: dict[str, int] = {}
    """The last number of each role, so that no name is used twice."""


def load(directory: Path) -> ClusterState:
    """Reads the state; raises NotFound if there is none, Conflict if it is unreadable."""
    path = directory / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterState)
    except FileNotFoundError:
        raise NotFound(
            f"no cluster in {directory}: `magnetar cluster up --dir {directory}` creates one"
        ) from None
    except msgspec.MsgspecError as error:
        raise Conflict(f"{path} cannot be read: {error}") from error


def save(directory: Path, state: ClusterState) -> None:
    """Replaces the state atomically."""
    path = directory / STATE_FILE
    draft = path.with_name(f"{STATE_FILE}.{os.getpid()}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


@contextlib.contextmanager
def changing(directory: Path) -> Iterator[ClusterState]:
    """Yields the state under an exclusive lock; saves it at the end, also after an error."""
    with (directory / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = load(directory)
        try:
            yield state
        finally:
            save(directory, state)

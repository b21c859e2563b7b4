"""What a local cluster consists of, as it is written down in its directory.

cluster.json   this record; read by every command, changed under `lock`
magnetar.conf  settings of all members, where somebody put any there
NAME/          a member's data; NAME.log what it printed
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
    """See the module's text."""

    name: str
    host: str
    base: str
    """`standard`, `free` or the first port."""
    format_version: int = FORMAT_VERSION
    members: list[Member] = []
    last_numbers: dict[str, int] = {}
    """Per role, the last number given out: a name never comes again."""


def load(directory: Path) -> ClusterState:
    """Raises NotFound where there is no cluster."""
    path = directory / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterState)
    except FileNotFoundError:
        raise NotFound(
            f"no cluster in {directory}: `magnetar cluster up --dir {directory}` makes one"
        ) from None
    except msgspec.MsgspecError as error:
        raise Conflict(f"{path} cannot be read: {error}") from error


def save(directory: Path, state: ClusterState) -> None:
    """Readers see all of it or what was there before."""
    path = directory / STATE_FILE
    draft = path.with_name(f"{STATE_FILE}.{os.getpid()}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


@contextlib.contextmanager
def changing(directory: Path) -> Iterator[ClusterState]:
    """The state, alone; it is saved at the end, also where the change failed halfway."""
    with (directory / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = load(directory)
        try:
            yield state
        finally:
            save(directory, state)

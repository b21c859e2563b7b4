"""A cluster of real processes for tests: etcd, bookies, brokers on free ports.

It is `magnetar.cluster.local.LocalCluster`, as `magnetar cluster` runs it, with what tests need
beside it: everything is killed at the end, and where a test failed, the ends of all logs are
printed. Members are started, killed, paused and added by the cluster's own methods:

    with running_cluster(tmp_path, bookies=3, brokers=2) as cluster:
        cluster.kill("broker-1")
        cluster.start("broker-1")
        cluster.wait_ready(["broker-1"])

Settings are any role's, as in a file of settings: `running_cluster(path, session_timeout_ms=2000)`.
"""

import contextlib
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from magnetar.cluster.local import process
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Member, Role
from magnetar.core.errors import Conflict, PreconditionFailed

START_TRIES: Final = 3
HTTP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.02
LOG_SHOWN_BYTES: Final = 6_000


@contextlib.contextmanager
def running_cluster(
    directory: Path,
    *,
    bookies: int = 3,
    brokers: int = 2,
    etcds: int = 1,
    failed: Callable[[], bool] = lambda: False,
    **settings: object,
) -> Iterator[LocalCluster]:
    """A cluster whose members are all ready. `failed` says at the end whether to show the logs."""
    cluster = _started(directory, bookies, brokers, etcds, settings)
    try:
        yield cluster
    except BaseException:
        show_logs(cluster)
        raise
    else:
        if failed():
            show_logs(cluster)
    finally:
        kill_all(cluster)


def kill_all(cluster: LocalCluster) -> None:
    """Kills all members at once; their data may be left in any state."""
    for member in cluster.members:
        process.send(member.process, signal.SIGKILL)
    for member in cluster.members:
        process.wait_end(member.process, process.KILL_TIMEOUT_S)


def _started(
    directory: Path, bookies: int, brokers: int, etcds: int, settings: dict[str, object]
) -> LocalCluster:
    """Tried again where somebody else took one of the ports between the choice and the start."""
    for attempt in range(1, START_TRIES + 1):
        cluster = LocalCluster.create(
            directory / f"cluster-{attempt}",
            bookies=bookies,
            brokers=brokers,
            etcds=etcds,
            base="free",
            name="test",
            settings=settings,
        )
        try:
            cluster.up()
        except (PreconditionFailed, Conflict) as error:
            kill_all(cluster)
            if attempt == START_TRIES or "in use" not in str(error):
                show_logs(cluster)
                raise
        else:
            return cluster
    raise AssertionError("unreachable")


def show_logs(cluster: LocalCluster) -> None:
    """The end of every member's log, as pytest shows what was printed."""
    for path in sorted(cluster.directory.glob("*.log")):
        print(f"---- {path.name}\n{cluster.log_tail(path.stem, LOG_SHOWN_BYTES)}")


def get(url: str) -> tuple[int, str]:
    """Status and body, errors too."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return error.code, error.read().decode()


def get_json(url: str) -> Any:
    """The document at `url`."""
    status, body = get(url)
    assert status == 200, f"{url}: {status} {body}"
    return json.loads(body)


def metric(member: Member, name: str) -> float:
    """The sum of a family's series."""
    _, body = get(member.http_url + "/metrics")
    lines = [line for line in body.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 40.0) -> float:
    """Polls until it holds; returns the seconds that took."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
    return time.monotonic() - started


def brokers(cluster: LocalCluster) -> list[Member]:
    return cluster.named(Role.BROKER)


def bookies(cluster: LocalCluster) -> list[Member]:
    return cluster.named(Role.BOOKIE)

"""A cluster on this machine, which short-lived commands create, start, change and stop.

Every method reads the state from the directory, so several terminals may work on one cluster. A
member keeps its ports and data over restarts. Only processes that `up` or `start` started are
signalled.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from magnetar.cluster.local import etcd, members, ports, process, state
from magnetar.cluster.local.config import NAME_DEFAULT, format_value, read_config
from magnetar.cluster.local.members import Member, Role
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
PROBE_TIMEOUT_S: Final = 1.0
POLL_S: Final = 0.03
LOG_TAIL_BYTES: Final = 4_000
DECOMMISSION_TIMEOUT_S: Final = 600.0

Report = Callable[[str], None]
"""Gets a line of progress for people."""


def _silent(_: str) -> None:
    """Drops the line."""


class LocalCluster:
    """The cluster in a directory. `create` makes a new one."""

    def __init__(self, directory: Path) -> None:
        """Raises NotFound if the directory has no cluster, Conflict if its state is unreadable."""
        self.directory = directory
        state.load(directory)

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        bookies: int = 3,
        brokers: int = 2,
        etcds: int = 1,
        autorecoveries: int = 0,
        base: str = "standard",
        host: str = "127.0.0.1",
        name: str = NAME_DEFAULT,
        settings: Mapping[str, object] | None = None,
    ) -> "LocalCluster":
        """Creates the state of a cluster with these numbers of members; starts nothing."""
        directory = directory.absolute()
        if (directory / state.STATE_FILE).exists():
            raise Conflict(f"{directory} already has a cluster")
        directory.mkdir(parents=True, exist_ok=True)
        new = state.ClusterState(name=name, host=host, base=base)
        wanted = ((Role.ETCD, etcds), (Role.BOOKIE, bookies), (Role.BROKER, brokers))
        for role, count in (*wanted, (Role.AUTORECOVERY, autorecoveries)):
            for _ in range(count):
                _add(new, role)
        if settings:
            lines = [f"{key}={format_value(value)}\n" for key, value in settings.items()]
            (directory / state.CONFIG_FILE).write_text("".join(lines))
        state.save(directory, new)
        return cls(directory)

    def settings(self) -> Mapping[str, object]:
        """Returns the settings that all members share."""
        path = self.directory / state.CONFIG_FILE
        return read_config(path).settings if path.exists() else {}

    @property
    def members(self) -> list[Member]:
        """All members, as the state has them now."""
        return state.load(self.directory).members

    def member(self, name: str) -> Member:
        """Returns the member of this name; raises NotFound."""
        return _member(state.load(self.directory), name)

    def named(self, role: Role) -> list[Member]:
        """Returns the members of a role."""
        return [member for member in self.members if member.role is role]

    @property
    def service_url(self) -> str:
        """The URL for clients, with the addresses of all brokers."""
        return "pulsar://" + ",".join(member.address for member in self.named(Role.BROKER))

    @property
    def http_urls(self) -> list[str]:
        """The URLs of the brokers' admin REST."""
        return [member.http_url for member in self.named(Role.BROKER)]

    @property
    def metadata_url(self) -> str:
        """The setting `metadata_url` of the members."""
        return members.metadata_url(self.members)

    def log(self, name: str) -> Path:
        """Returns the path of a member's log."""
        return self.directory / f"{name}.log"

    def log_tail(self, name: str, bytes_max: int = LOG_TAIL_BYTES) -> str:
        """Returns the end of a member's log."""
        path = self.log(name)
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - bytes_max))
            return file.read().decode(errors="replace")

    def up(self, report: Report = _silent, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Starts the members that do not run, in order, and waits until all are ready."""
        for role in Role:
            names = [member.name for member in self.named(role)]
            started = [name for name in names if self.start(name)]
            for name in started:
                report(f"{name} started")
            # A broker needs bookies for its first topic only, so all but etcd start at once.
            if role is Role.ETCD:
                self.wait_ready(names, timeout_s)
        self.wait_ready([member.name for member in self.members], timeout_s)

    def start(self, name: str) -> bool:
        """Starts a member; returns False if it is already running."""
        with state.changing(self.directory) as current:
            member = _member(current, name)
            if process.is_running(member.process):
                return False
            if member.role is Role.ETCD:
                words = etcd.command(member, current.members, self.directory)
            else:
                config = self.directory / state.CONFIG_FILE
                words = members.command(
                    member, current.members, self.directory, current.name, config
                )
            member.process = process.start(words, self.log(name), os.environ)
            return True

    def wait_ready(self, names: Iterable[str], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until the members are ready.

        Raises PreconditionFailed with a member's log if it exits or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        for name in names:
            member = self.member(name)
            while not self.is_ready(member):
                if not process.is_running(member.process):
                    raise PreconditionFailed(
                        f"{name} exited while it started:\n{self.log_tail(name)}"
                    )
                if time.monotonic() > deadline:
                    reason = probe(member.ready_url)[1]
                    raise PreconditionFailed(
                        f"{name} is not ready after {timeout_s:g} s ({reason}):\n"
                        f"{self.log_tail(name)}"
                    )
                time.sleep(POLL_S)

    @staticmethod
    def is_ready(member: Member) -> bool:
        """Whether the member's readiness probe succeeds."""
        return probe(member.ready_url)[0]

    def add(self, role: Role, *, flags: Sequence[str] = (), start: bool = True) -> Member:
        """Adds a member and starts it, but does not wait until it is ready."""
        if role is Role.ETCD:
            raise PreconditionFailed("the members of etcd are fixed when a cluster is created")
        with state.changing(self.directory) as current:
            member = _add(current, role, flags)
        if start:
            self.start(member.name)
        return self.member(member.name)

    def remove(self, name: str, *, force: bool = False, report: Report = _silent) -> None:
        """Removes a member for good; decommissions a bookie first, unless `force`.

        Raises PreconditionFailed, and keeps the bookie, if it cannot be decommissioned.
        """
        member = self.member(name)
        if member.role is Role.ETCD:
            raise PreconditionFailed("a member of etcd cannot be removed")
        if member.role is Role.BOOKIE and not force:
            self._decommission(member, report)
        report(f"stopping {name}")
        self.stop(name)
        with state.changing(self.directory) as current:
            current.members = [other for other in current.members if other.name != name]

    def _decommission(self, member: Member, report: Report) -> None:
        report(f"draining {member.name}: autorecovery copies its ledgers to other bookies")
        words = [
            *(sys.executable, "-m", "magnetar.cli.main", "bookie", "decommission"),
            *("--bookie-id", member.name, "--metadata-url", self.metadata_url),
        ]
        done = subprocess.run(  # noqa: S603 - a command of this package
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=DECOMMISSION_TIMEOUT_S,
        )
        if done.returncode:
            raise PreconditionFailed(
                f"{member.name} was not removed:\n{done.stdout}{done.stderr}".rstrip()
            )

    def stop(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops a member with SIGTERM, and with SIGKILL if it does not exit in time."""
        running = self.member(name).process
        if running is not None and process.is_paused(running):
            process.send(running, signal.SIGCONT)
        process.send(running, signal.SIGTERM)
        if not process.wait_end(running, timeout_s):
            process.kill(running)

    def kill(self, name: str) -> None:
        """Kills a member with SIGKILL."""
        if not process.kill(self.member(name).process):
            raise PreconditionFailed(f"{name} does not run")

    def pause(self, name: str) -> None:
        """Pauses a member with SIGSTOP; its connections stay open."""
        if not process.send(self.member(name).process, signal.SIGSTOP):
            raise PreconditionFailed(f"{name} does not run")

    def resume(self, name: str) -> None:
        """Resumes a paused member with SIGCONT."""
        if not process.send(self.member(name).process, signal.SIGCONT):
            raise PreconditionFailed(f"{name} does not run")

    def restart(self, name: str) -> None:
        """Stops a member if it runs, and starts it; does not wait until it is ready."""
        self.stop(name)
        self.start(name)

    def down(self, report: Report = _silent) -> None:
        """Stops all members in the reverse order of their start; keeps the data."""
        for role in reversed(Role):
            running = [member for member in self.named(role) if process.is_running(member.process)]
            for member in running:
                report(f"stopping {member.name}")
                if member.process is not None and process.is_paused(member.process):
                    process.send(member.process, signal.SIGCONT)
                process.send(member.process, signal.SIGTERM)
            for member in running:
                if not process.wait_end(member.process, STOP_TIMEOUT_S):
                    process.kill(member.process)


def probe(url: str) -> tuple[bool, str]:
    """Returns whether the URL answers with success, and the text of its answer or error."""
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:  # noqa: S310
            return True, answer.read().decode(errors="replace").strip()
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return False, error.read().decode(errors="replace").strip() or str(error)
    except (OSError, ValueError) as error:
        return False, str(error)


def _member(current: state.ClusterState, name: str) -> Member:
    for member in current.members:
        if member.name == name:
            return member
    known = ", ".join(member.name for member in current.members)
    raise NotFound(f"no member {name}; the members are {known}")


def _add(current: state.ClusterState, role: Role, flags: Sequence[str] = ()) -> Member:
    number = current.last_numbers.get(role, 0) + 1
    name = f"{role}-{number}"
    taken = {port for member in current.members for port in member.ports.values()}
    chosen: dict[str, int] = {}
    for kind in members.PORT_KINDS[role]:
        chosen[kind] = ports.choose(current.base, role, kind, number, current.host, taken)
        taken.add(chosen[kind])
    member = Member(name, role, number, current.host, chosen, flags=list(flags))
    current.last_numbers[role] = number
    current.members.append(member)
    return member

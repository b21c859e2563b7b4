"""A process that outlives the command that started it: begun, recognised again, measured, ended.

A process is known by its number and the moment it started, since numbers are given out again. Both
come from /proc where there is one, else from `ps`.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POLL_S: Final = 0.02
KILL_TIMEOUT_S: Final = 10.0
_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Which process: its number and when it started, in the words of this machine."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used."""

    cpu_s: float
    resident_bytes: int
    proportional_bytes: int
    """Its own memory, and its share of what it has in common with others."""
    running_s: float


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ProcessId:
    """Starts it in a session of its own, with its output at the end of `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - commands of this package
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    # It is left to run, and reaped by `is_running`: the object must not complain of that.
    process.returncode = 0
    return ProcessId(process.pid, _started(process.pid))


def is_running(process: ProcessId | None) -> bool:
    """Whether this very process still runs; reaps it where it was our child."""
    if process is None:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return bool(process.started) and _started(process.pid) == process.started


def send(process: ProcessId | None, number: signal.Signals) -> bool:
    """Sends a signal; whether there was anyone to get it."""
    if process is None or not is_running(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_end(process: ProcessId | None, timeout_s: float) -> bool:
    """Whether the process has ended within the time."""
    deadline = time.monotonic() + timeout_s
    while is_running(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def kill(process: ProcessId | None) -> bool:
    """SIGKILL, and waits until it is gone; whether it ran."""
    killed = send(process, signal.SIGKILL)
    wait_end(process, KILL_TIMEOUT_S)
    return killed


def is_paused(process: ProcessId) -> bool:
    """Whether it was stopped by a signal."""
    return _stat(process.pid)[:1] == ["T"]


def usage(process: ProcessId) -> Usage | None:
    """None where it has ended, or where this machine does not tell."""
    fields = _stat(process.pid)
    if len(fields) < 22:
        return None
    try:
        rollup = (_PROC / str(process.pid) / "smaps_rollup").read_text()
        uptime_s = float((_PROC / "uptime").read_text().split()[0])
    except OSError:
        return None
    sizes = {
        key: int(value.split()[0]) << 10
        for key, _, value in (line.partition(":") for line in rollup.splitlines()[1:])
    }
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        resident_bytes=sizes.get("Rss", 0),
        proportional_bytes=sizes.get("Pss", 0),
        running_s=uptime_s - int(fields[19]) / _TICKS_PER_S,
    )


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on: field 3 of proc(5) is number 0 here."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _started(pid: int) -> str:
    """When the process started; empty where it does not run (a zombie does not)."""
    if _PROC.joinpath("self", "stat").exists():
        fields = _stat(pid)
        return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""
    told = subprocess.run(  # noqa: S603
        ["ps", "-o", "state=,lstart=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
        timeout=KILL_TIMEOUT_S,
    ).stdout.strip()
    state, _, started = told.partition(" ")
    return "" if state.startswith("Z") else started.strip()

"""Processes that outlive the command that started them: start, identify, measure, signal.

A process is identified by its pid and its start time, since the system reuses pids. The start time
comes from /proc, or from `ps` on a machine without /proc.
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
    """Identifies a process: its pid and its start time, in the format of this machine."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process has used."""

    cpu_s: float
    resident_bytes: int
    proportional_bytes: int
    """Its private memory, and its share of the memory that it shares with other processes."""
    running_s: float


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ProcessId:
    """Starts a process in a session of its own, and appends its output to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - commands of this package
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    # `is_running` reaps the process; a set return code keeps Popen from warning that it still runs.
    process.returncode = 0
    return ProcessId(process.pid, _started(process.pid))


def is_running(process: ProcessId | None) -> bool:
    """Whether this process still runs; reaps it if it is an ended child of ours."""
    if process is None:
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return bool(process.started) and _started(process.pid) == process.started


def send(process: ProcessId | None, number: signal.Signals) -> bool:
    """Sends a signal; returns whether the process was running."""
    if process is None or not is_running(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_end(process: ProcessId | None, timeout_s: float) -> bool:
    """Waits until the process has ended; returns False if it still runs after the timeout."""
    deadline = time.monotonic() + timeout_s
    while is_running(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def kill(process: ProcessId | None) -> bool:
    """Kills the process and waits until it has ended; returns whether it was running."""
    killed = send(process, signal.SIGKILL)
    wait_end(process, KILL_TIMEOUT_S)
    return killed


def is_paused(process: ProcessId) -> bool:
    """Whether a signal has stopped the process."""
    return _stat(process.pid)[:1] == ["T"]


def usage(process: ProcessId) -> Usage | None:
    """Returns the process's usage; None if it has ended, or this machine has no /proc."""
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
    """Returns the fields of /proc/PID/stat from the state on: index 0 is field 3 of proc(5)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _started(pid: int) -> str:
    """Returns the start time of the process; empty if it does not run (a zombie does not)."""
    if _PROC.joinpath("self", "stat").exists():
        fields = _stat(pid)
        return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""
    output = subprocess.run(  # noqa: S603
        ["ps", "-o", "state=,lstart=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
        timeout=KILL_TIMEOUT_S,
    ).stdout.strip()
    state, _, started = output.partition(" ")
    return "" if state.startswith("Z") else started.strip()

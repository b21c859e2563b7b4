"""Processes that outlive their starter: identified by pid and start time, and never confused."""

import dataclasses
import os
import signal
import sys
from pathlib import Path

from magnetar.cluster.local import process

SLEEPER = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]


def test_a_process_is_started_paused_measured_and_killed(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    started = process.start(SLEEPER, log, os.environ)
    try:
        assert process.is_running(started)
        assert process.send(started, signal.SIGSTOP)
        while not process.is_paused(started):
            pass
        assert process.send(started, signal.SIGCONT)
        used = process.usage(started)
        assert used is not None
        assert used.resident_bytes >= used.proportional_bytes > 0
        assert 0 <= used.running_s < 60
    finally:
        assert process.kill(started)
    assert not process.is_running(started)
    assert not process.send(started, signal.SIGTERM)
    assert process.usage(started) is None
    assert not process.kill(started)


def test_the_output_is_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("before\n")
    started = process.start([sys.executable, "-c", "print('begun')"], log, os.environ)
    assert process.wait_end(started, 20)
    assert log.read_text() == "before\nbegun\n"


def test_another_process_with_the_same_pid_is_not_signalled() -> None:
    ourselves = process.ProcessId(os.getpid(), "some other time")
    assert not process.is_running(ourselves)
    assert not process.send(ourselves, signal.SIGKILL)
    assert not process.is_running(None)


def test_waiting_for_the_end_of_a_process_times_out(tmp_path: Path) -> None:
    started = process.start(SLEEPER, tmp_path / "out.log", os.environ)
    try:
        assert not process.wait_end(started, 0.05)
    finally:
        process.kill(started)
    assert dataclasses.replace(started) == started

"""Processes that are left to run: known again by number and start, and no other is ever hit."""

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


def test_its_output_goes_to_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("before\n")
    started = process.start([sys.executable, "-c", "print('begun')"], log, os.environ)
    assert process.wait_end(started, 20)
    assert log.read_text() == "before\nbegun\n"


def test_another_process_of_the_same_number_is_left_alone() -> None:
    ourselves = process.ProcessId(os.getpid(), "some other time")
    assert not process.is_running(ourselves)
    assert not process.send(ourselves, signal.SIGKILL)
    assert not process.is_running(None)


def test_waiting_has_an_end(tmp_path: Path) -> None:
    started = process.start(SLEEPER, tmp_path / "out.log", os.environ)
    try:
        assert not process.wait_end(started, 0.05)
    finally:
        process.kill(started)
    assert dataclasses.replace(started) == started

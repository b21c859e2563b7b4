"""Work in forked processes: its answers, and the limit that ends work that hangs."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from tests.mutants.children import Work, run_all

COMPETITORS = 6
WORK_CPU_S = 0.4
LIMIT_S = 1.2
"""Alone the work is done in a third of it; against the competitors it takes 2.8 s of wall time."""


def spin(cpu_s: float) -> None:
    while time.process_time() < cpu_s:
        pass


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """All processes of the test share one CPU, with others that spin."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    competitors = []
    for _ in range(COMPETITORS):
        pid = os.fork()
        if not pid:
            while True:
                pass
        competitors.append(pid)
    yield
    for pid in competitors:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.sched_setaffinity(0, before)


def test_answers_come_from_children_and_a_dead_one_gives_none() -> None:
    pids = dict(run_all([Work(name, lambda slot: (os.getpid(), slot), 60.0) for name in "ab"], 2))
    assert os.getpid() not in {answer[0] for answer in pids.values() if answer}
    assert {answer[1] for answer in pids.values() if answer} == {0, 1}
    assert dict(run_all([Work("dead", lambda _: os._exit(3), 60.0)], 1)) == {"dead": None}


@pytest.mark.parametrize("kind", ["waits", "spins"])
def test_work_that_hangs_ends_at_its_limit_and_the_next_work_begins(kind: str) -> None:
    def hang(_: int) -> str | None:
        if kind == "waits":
            threading.Event().wait()
        spin(1e9)
        return "never"

    def end(_: int) -> str | None:
        return "done"

    works = [Work("hangs", hang, 0.5), Work("next", end, 60.0)]
    assert dict(run_all(works, 1)) == {"hangs": None, "next": "done"}


@pytest.mark.usefixtures("one_cpu")
def test_a_busy_machine_makes_no_work_late() -> None:
    """Otherwise a mutant that no test notices would count as killed under load."""

    def work(_: int) -> float:
        began = time.monotonic()
        spin(WORK_CPU_S)
        return time.monotonic() - began

    ((_, took_s),) = run_all([Work("works", work, LIMIT_S)], 1)
    # How much the competitors take depends on the machine; they usually double the time.
    assert took_s is not None, "the work was killed at its limit"

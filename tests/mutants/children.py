"""Runs work in forked processes, each in a session of its own that is killed as a whole.

A fork has everything imported already and leaves nothing behind. Its answer is one pickled object
through a pipe.

A limit counts the time in which the child ran or waited for an event, not the time in which it was
ready to run and other processes had the CPU. So a busy machine makes no work late, and work that
hangs is late after the same time on every machine.
"""

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Work(Generic[T, R]):
    """`run(slot)` in a child, for at most `limit_s` (see the module) seconds.

    Slots number the children that run at once.
    """

    of: T
    run: Callable[[int], R]
    limit_s: float


@dataclass(slots=True)
class _Child(Generic[T, R]):
    work: Work[T, R]
    slot: int
    pid: int
    ends_at: float
    """Of the monotonic clock, if the child never waits for a CPU."""
    data: bytearray = field(default_factory=bytearray)

    def is_late(self) -> bool:
        """Whether the work has taken longer than its limit."""
        over_s = time.monotonic() - self.ends_at
        return over_s > 0 and over_s > starved_s(self.pid)


def run_all(works: Iterable[Work[T, R]], jobs: int) -> Iterator[tuple[T, R | None]]:
    """The answers as they come; None for work that took too long or died."""
    left, children = iter(works), dict[int, _Child[T, R]]()
    free = list(range(jobs))
    try:
        while True:
            while free and (work := next(left, None)) is not None:
                pipe, child = _start(work, free.pop())
                children[pipe] = child
            if not children:
                return
            readable, _, _ = select.select(list(children), [], [], POLL_S)
            late = [pipe for pipe, child in children.items() if child.is_late()]
            for pipe in {*readable, *late}:
                child = children[pipe]
                data = b"" if pipe not in readable else os.read(pipe, 1 << 16)
                child.data += data
                if not data:
                    del children[pipe]
                    free.append(child.slot)
                    _end(child.pid, pipe)
                    yield child.work.of, _answer(child)
    finally:
        for pipe, child in children.items():
            _end(child.pid, pipe)


def starved_s(pid: int) -> float:
    """Returns how long the process's main thread was ready to run and had no CPU, in seconds.

    0 if the system does not report it. Source: Documentation/scheduler/sched-stats.rst of Linux.
    """
    try:
        _, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_ns) / 1e9


def _answer(child: _Child[T, R]) -> R | None:
    try:
        answer: R = pickle.loads(bytes(child.data))  # noqa: S301  # our own child's
    except (EOFError, pickle.UnpicklingError):
        return None
    return answer


def _end(pid: int, pipe: int) -> None:
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            end(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(pipe)


def _start(work: Work[T, R], slot: int) -> tuple[int, _Child[T, R]]:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, _Child(work, slot, pid, time.monotonic() + work.limit_s)
    try:
        os.close(read)
        os.setsid()
        answer = pickle.dumps(work.run(slot))
        while answer:
            answer = answer[os.write(write, answer) :]
        os._exit(0)
    except BaseException:  # noqa: BLE001  # shown, and the process ends
        import traceback

        traceback.print_exc()
        os._exit(1)

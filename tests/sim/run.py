"""Runs seeds, each in a process forked from this one, and collects the results.

A fork is a few milliseconds, costs no imports, leaves nothing behind, and can be ended where a run
spins. Results travel as JSON through a pipe.
"""

import gc
import json
import os
import resource
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

RUN_CPU_S_MAX: Final = 60
"""A run that takes more CPU time spins; others take less than 10 s. A limit of real time would end
runs on a busy machine."""
RUN_S_MAX: Final = 900.0
"""Of real time: a run that takes longer waits for something outside of the simulation."""


@dataclass(slots=True)
class Result:
    """What came of one seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """How often things happened that should happen sometimes."""
    virtual_s: float = 0.0
    real_s: float = 0.0
    turns: int = 0
    trace_hash: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One run: a seed, and the function that runs it."""

    seed: int
    simulate: Callable[[int], Result]


@dataclass(slots=True)
class _Child:
    task: Task
    pid: int
    pipe: int
    begun: float
    data: bytearray = field(default_factory=bytearray)


def run_forked(
    seeds: Iterable[int], simulate: Callable[[int], Result], *, jobs: int
) -> Generator[Result, None, None]:
    """Yields the results of all seeds, in the order in which the runs end."""
    for _, result in run_tasks((Task(seed, simulate) for seed in seeds), jobs=jobs):
        yield result


class TaskQueue(Iterator[Task]):
    """Tasks to run. The consumer of the results may add more between two results."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def add(self, task: Task) -> None:
        """Adds a task behind all others."""
        self._tasks.append(task)

    def add_first(self, task: Task) -> None:
        """Adds a task before all others."""
        self._tasks.appendleft(task)

    def __next__(self) -> Task:
        if not self._tasks:
            raise StopIteration
        return self._tasks.popleft()


def run_tasks(tasks: Iterable[Task], *, jobs: int) -> Generator[tuple[Task, Result], None, None]:
    """Yields tasks with their results, in the order in which the runs end; `jobs` run at once."""
    # Imported objects are never garbage, and a run's garbage ends with its process.
    gc.collect()
    gc.freeze()
    left = iter(tasks)
    children: dict[int, _Child] = {}
    try:
        while True:
            while len(children) < jobs and (task := next(left, None)) is not None:
                child = _fork(task)
                children[child.pipe] = child
            if not children:
                return
            readable, _, _ = select.select(list(children), [], [], 1.0)
            for pipe in readable:
                child = children[pipe]
                data = os.read(pipe, 1 << 16)
                child.data += data
                if not data:
                    del children[pipe]
                    yield child.task, _result(child)
            for child in list(children.values()):
                if time.monotonic() - child.begun > RUN_S_MAX:
                    os.kill(child.pid, signal.SIGKILL)
    finally:
        for child in children.values():
            os.kill(child.pid, signal.SIGKILL)
            os.close(child.pipe)
            os.waitpid(child.pid, 0)


def _fork(task: Task) -> _Child:
    read, write = os.pipe()
    begun = time.monotonic()
    pid = os.fork()
    if pid:
        os.close(write)
        return _Child(task, pid, read, begun)
    try:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (RUN_CPU_S_MAX, RUN_CPU_S_MAX + 1))
        gc.disable()
        result = task.simulate(task.seed)
        data = json.dumps(asdict(result)).encode()
        while data:
            data = data[os.write(write, data) :]
        os._exit(0)
    except BaseException:  # noqa: BLE001  # told, and the process ends
        import traceback

        traceback.print_exc()
        os._exit(1)


def _result(child: _Child) -> Result:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if status == 0 and child.data:
        return Result(**json.loads(bytes(child.data)))
    took_s = time.monotonic() - child.begun
    text = f"the run did not end by itself: it took {took_s:.0f} s of real time (status {status})"
    return Result(child.task.seed, violations=[text], real_s=took_s)

"""Runs seeds, each in a process of its own that is forked from this one, and gathers results.

A fork is a few milliseconds, costs no imports, leaves nothing behind, and can be ended where a run
spins. Results travel as JSON through a pipe.
"""

import gc
import json
import os
import select
import signal
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass, field
from typing import Final

RUN_S_MAX: Final = 60.0
"""Of real time: a run that takes longer spins."""


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


@dataclass(slots=True)
class _Child:
    seed: int
    pid: int
    pipe: int
    begun: float
    data: bytearray = field(default_factory=bytearray)


def run_forked(
    seeds: Iterable[int], simulate: Callable[[int], Result], *, jobs: int
) -> Generator[Result, None, None]:
    """The results of all seeds, as they come."""
    # What is imported is never garbage, and a run's own garbage goes with its process.
    gc.collect()
    gc.freeze()
    left = iter(seeds)
    children: dict[int, _Child] = {}
    try:
        while True:
            while len(children) < jobs and (seed := next(left, None)) is not None:
                child = _fork(seed, simulate)
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
                    yield _result(child)
            for child in list(children.values()):
                if time.monotonic() - child.begun > RUN_S_MAX:
                    os.kill(child.pid, signal.SIGKILL)
    finally:
        for child in children.values():
            os.kill(child.pid, signal.SIGKILL)
            os.close(child.pipe)
            os.waitpid(child.pid, 0)


def _fork(seed: int, simulate: Callable[[int], Result]) -> _Child:
    read, write = os.pipe()
    begun = time.monotonic()
    pid = os.fork()
    if pid:
        os.close(write)
        return _Child(seed, pid, read, begun)
    try:
        os.close(read)
        gc.disable()
        result = simulate(seed)
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
    text = f"the run did not end by itself within {took_s:.0f} s of real time (status {status})"
    return Result(child.seed, violations=[text], real_s=took_s)

"""What a campaign of kills does to a job of Spark's: kinds of kills, and rounds of them.

A round starts the job and strikes it: its whole session once (driver and executors of a machine
that is gone), or, with executors as processes of their own, again and again: an executor's
JVM, a Python worker, or an executor that is stopped (SIGSTOP) until the driver has given it up and
has begun its work again elsewhere, and is woken then or behind the job's end. Of a job that only
lost executors the driver must go on and succeed. Some rounds end with the death of the driver
alone, from which its executors have to find out.

The moments are the campaign's: it says when the job works, and when work was begun again.
"""

import argparse
import math
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from tests.chaos.spark_processes import (
    LOCAL,
    LOCAL_CLUSTER,
    SETTINGS,
    SPECULATION,
    Executor,
    SparkJob,
    send,
)

STRIKES_MIN: Final = 3
STRIKES_MAX: Final = 12
"""In one run, where it lasts for so many."""
MOMENT_TIMEOUT_S: Final = 300.0
GIVEN_UP_S: Final = 30.0
"""A stopped executor is woken then even if nothing was begun again."""
WOKEN_AFTER_S_MAX: Final = 3.0
ORPHANED_S_MAX: Final = 3.0
WOKEN_BEHIND_THE_END: Final = 0.3
SPECULATIVE: Final = 0.4
"""Of the runs that lose executors."""
POLL_S: Final = 0.005


class Kind(StrEnum):
    """What dies; of the last it only seems so for a while."""

    SESSION = "all-at-once"
    DRIVER = "driver-alone"
    EXECUTOR = "executor"
    WORKER = "worker"
    STOPPED = "stopped"
    BROKER = "broker"
    """Only of campaigns whose target has brokers to kill (`Rounds.kill_broker`)."""


SHARES: Final = {
    Kind.SESSION: 3,
    Kind.DRIVER: 2,
    Kind.EXECUTOR: 6,
    Kind.WORKER: 6,
    Kind.STOPPED: 3,
}


class Target(Protocol):
    """A campaign, as rounds see it."""

    def start(self, master: str, conf: Mapping[str, str]) -> SparkJob:
        """One run of the job."""

    def moment(self, job: SparkJob) -> bool:
        """Waits for a random moment of the job's work; False where it was over first."""

    def again(self) -> Callable[[], bool]:
        """Whether work that is under way now has been begun again since."""


@dataclass
class Rounds:
    """Rounds against a target, and what they came to."""

    target: Target
    rng: random.Random
    tell: Callable[[], None] = lambda: None
    """After every round."""
    given_up_s: float = GIVEN_UP_S
    until: float = math.inf
    """No strike behind this moment, by `time.monotonic`."""
    kill_broker: Callable[[], None] | None = None
    """Kills a broker and starts it again."""
    struck: Counter[Kind] = field(default_factory=Counter)
    runs: int = 0
    succeeded: int = 0
    """In spite of executors that died."""
    begun_again: int = 0
    """Of executors that were stopped: their work went to another before they woke."""

    def whole(self, kinds: Sequence[Kind]) -> None:
        """Rounds until all of these were struck, or it is time to end."""
        left = list(kinds)
        self.rng.shuffle(left)
        while left and time.monotonic() < self.until:
            for kind in self.round(left):
                left.remove(kind)
            self.rng.shuffle(left)
            self.tell()

    def round(self, left: Sequence[Kind]) -> list[Kind]:
        """One run, and some of these kinds: what was struck of them."""
        if left[0] is Kind.SESSION:
            return self.strike(left[:1])
        number = self.rng.randint(STRIKES_MIN, STRIKES_MAX)
        return self.strike([kind for kind in left if kind is not Kind.SESSION][:number])

    def strike(self, kinds: Sequence[Kind]) -> list[Kind]:
        """One run, and these kinds, the driver's death as the last one; those it came to."""
        self.runs += 1
        return self._killed_at_once() if Kind.SESSION in kinds else self._struck(kinds)

    def _killed_at_once(self) -> list[Kind]:
        job = self.target.start(LOCAL, {})
        try:
            if not self.target.moment(job):
                return []
        finally:
            job.kill()
        self.struck[Kind.SESSION] += 1
        return [Kind.SESSION]

    def _struck(self, kinds: Sequence[Kind]) -> list[Kind]:
        done: list[Kind] = []
        speculative = self.rng.random() < SPECULATIVE
        job = self.target.start(LOCAL_CLUSTER, SETTINGS | (SPECULATION if speculative else {}))
        frozen: list[Executor] = []
        try:
            for kind in sorted(kinds, key=lambda kind: kind is Kind.DRIVER):
                if time.monotonic() >= self.until or not self.target.moment(job):
                    break
                if self._strike(job, kind, frozen):
                    done.append(kind)
                    self.struck[kind] += 1
                if kind is Kind.DRIVER:
                    break
            if Kind.DRIVER not in done:
                assert job.wait() == 0, job.said
                self.succeeded += bool(done)
            for executor in frozen:
                self._wake(executor)
                time.sleep(self.rng.uniform(0, WOKEN_AFTER_S_MAX))
        finally:
            job.kill()
        return done

    def _strike(self, job: SparkJob, kind: Kind, frozen: list[Executor]) -> bool:
        """Whether there was something to strike."""
        if kind is Kind.DRIVER:
            job.kill_driver()
            time.sleep(self.rng.uniform(0, ORPHANED_S_MAX))
            return True
        if kind is Kind.BROKER:
            assert self.kill_broker is not None
            self.kill_broker()
            return True
        gone = {each.jvm for each in frozen}
        executors = [each for each in job.executors() if each.jvm not in gone]
        if kind is not Kind.EXECUTOR:
            executors = [each for each in executors if each.workers]
        if not executors:
            return False
        executor = self.rng.choice(executors)
        if kind is Kind.EXECUTOR:
            send([executor.jvm], signal.SIGKILL)
        elif kind is Kind.WORKER:
            send([self.rng.choice(executor.workers)], signal.SIGKILL)
        else:
            self._stop(job, executor, frozen)
        return True

    def _stop(self, job: SparkJob, executor: Executor, frozen: list[Executor]) -> None:
        """As a machine that does nothing for a while, and goes on as if nothing had been."""
        again = self.target.again()
        send([executor.jvm, *executor.daemons, *executor.workers], signal.SIGSTOP)
        self.begun_again += wait_until(lambda: job.over or again(), self.given_up_s) and again()
        if self.rng.random() < WOKEN_BEHIND_THE_END:
            frozen.append(executor)
        else:
            self._wake(executor)

    def _wake(self, executor: Executor) -> None:
        """The workers, which do the work, before those that would end them."""
        time.sleep(self.rng.uniform(0, WOKEN_AFTER_S_MAX))
        send(executor.workers, signal.SIGCONT)
        time.sleep(self.rng.uniform(0, WOKEN_AFTER_S_MAX))
        send([*executor.daemons, executor.jvm], signal.SIGCONT)

    def told(self) -> str:
        by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(self.struck.items()))
        return (
            f"{self.struck.total()} kills in {self.runs} runs: {by_kind or 'none'}; "
            f"{self.succeeded} runs went on and succeeded, "
            f"{self.begun_again} stopped executors lost their work to another"
        )


def mixed(kills: int, rng: random.Random, only: Sequence[Kind] = ()) -> list[Kind]:
    """So many kinds, of these or of all, by their shares."""
    cycle = [kind for kind, share in SHARES.items() for _ in range(share)]
    cycle = [kind for kind in cycle if not only or kind in only]
    rng.shuffle(cycle)
    return [cycle[index % len(cycle)] for index in range(kills)]


def wait_until(ripe: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came to that in time."""
    until = time.monotonic() + timeout_s
    while not (is_so := ripe()) and time.monotonic() < until:
        time.sleep(POLL_S)
    return is_so


Tell = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What a campaign is to do."""

    root: Path
    kinds: list[Kind]
    until: float
    rng: random.Random
    tell: Tell


def command(name: str, about: str, campaign: Callable[[Order], None]) -> None:
    """A campaign as a command."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no kill behind that")
    parser.add_argument("--only", type=Kind, action="append", default=[], help=", ".join(Kind))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path, help="where all is kept (default: a new directory)")
    args = parser.parse_args()
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix=f"{name}-") as directory:
        tell(f"seed {args.seed}")
        rng = random.Random(args.seed)
        kinds, until = mixed(args.kills, rng, args.only), begun + args.minutes * 60
        campaign(Order(args.dir or Path(directory), kinds, until, rng, tell))
        tell("all as it should be")

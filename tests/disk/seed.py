"""One seed: a bookie that lives, dies and is started again until its days are over."""

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.disk import faults
from tests.disk.acknowledged import Told, Violation
from tests.disk.bookie import BookieProcess, NotStarted
from tests.disk.control import Action, Op
from tests.disk.traffic import Traffic, check, remote

from magnetar.bookie.api import BookieError

HEALS_S: Final = 40.0
"""How long a disk that is well again may take to show; the bookie looks every 5 s."""
QUIET_S: Final = 0.15
"""Longer than `journal_mark_idle_s`: what was acknowledged is marked as such then."""
QUIET_LOOKS: Final = 4
"""Looks in a row that find the disk quiet: on a busy machine, the bookie may stand still."""
HANG_SEEN_S: Final = 20.0
"""Within which a bookie whose disk hangs must not be ready any more; its limit is 1.5 s."""
HANG_STEPS: Final = 400
FLUSH_STEPS: Final = 120
"""Some MiB of entries: several flushes."""
POLL_S: Final = 0.05


class Bypassed(Exception):
    """The disk changed in a way that the library did not see: the harness proves nothing."""


@dataclass
class Run:
    """One seed under way."""

    seed: int
    process: BookieProcess
    rng: Random
    told: Told
    story: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    harsh: bool = False
    """Whether each cut takes all that was not synced."""

    def say(self, text: str) -> None:
        self.story.append(f"life {self.process.lives}: {text}")

    async def live(self, day: "Callable[[Run, Traffic], Awaitable[None]]") -> None:
        """Requests to the process that lives now, as `day` has them."""
        bookie = remote(self.process)
        traffic = Traffic(self.told, self.rng, bookie, lambda: self.process.alive)
        try:
            await day(self, traffic)
        finally:
            self.counts["receipts"] += traffic.receipts
            self.counts["refusals"] += len(traffic.refusals)
            await bookie.close()

    def die(self, *, power: bool) -> None:
        """SIGKILL; with `power`, what was not synced may be gone."""
        self.process.kill()
        self.process.control.calm()
        self.told.index_failing = False
        found = self.process.disk.differences()
        if found:
            raise Bypassed("; ".join(found))
        if power:
            self.process.disk.cut(self.rng, harsh=self.harsh)
            self.counts["power cuts"] += 1
        else:
            self.process.disk.settle()
            self.counts["kills"] += 1

    async def start(self) -> None:
        """Starts the bookie, now and then after cuts of the power while it starts."""
        while not self.told.lossy and self.rng.random() < 0.2:
            self.say("starts, " + faults.arm_cut(self.process, self.rng, starting=True))
            try:
                self.process.start()
            except NotStarted as error:
                if "Traceback" in str(error):
                    raise Violation(f"does not start after a power cut: {error}") from None
            self.die(power=True)
        try:
            self.process.start()
        except NotStarted as error:
            raise Violation(f"does not start: {error}") from None

    async def check(self) -> None:
        bookie = remote(self.process)
        try:
            await check(self.told, bookie)
        finally:
            await bookie.close()


async def cut(run: Run, traffic: Traffic) -> None:
    """The power goes at some operation, or while the requests run."""
    run.say(faults.arm_cut(run.process, run.rng, starting=False))
    await traffic.run(run.rng.randint(20, 250))


async def write_errors(run: Run, traffic: Traffic) -> None:
    """Writes and syncs fail; then the power goes."""
    await traffic.run(run.rng.randint(0, 60))
    run.told.index_failing = True
    run.say(", ".join(faults.arm_write_errors(run.process, run.rng)))
    await traffic.run(run.rng.randint(60, 200))


async def read_errors(run: Run, traffic: Traffic) -> None:
    """Entry logs and index lie when they are read."""
    await traffic.run(120)
    run.told.lying = True
    run.say(", ".join(faults.arm_read_errors(run.process, run.rng)))
    for _ in range(8):
        await traffic.run(12)
        for key in run.rng.sample(sorted(run.told.acked), min(10, len(run.told.acked))):
            await traffic.read(*key, run.rng.randint(0, 50))
    await traffic.settle()
    run.process.control.calm()
    run.told.lying = False


async def full(run: Run, traffic: Traffic) -> None:
    """The disk is full for a while, and the bookie takes adds again without a restart."""
    await traffic.run(run.rng.randint(0, 80))
    run.process.control.set_full(True)
    run.say("the disk is full")
    await traffic.run(run.rng.randint(60, 200))
    await traffic.settle()
    if run.rng.random() < 0.3:
        return  # the power goes while it is full
    run.process.control.set_full(False)
    await healed(run, traffic, "the disk has room again")


async def healed(run: Run, traffic: Traffic, what: str) -> None:
    """Adds are taken again, and the bookie is ready."""
    end = time.monotonic() + HEALS_S
    error: BookieError | None = None
    while time.monotonic() < end:
        error = await traffic.add_one()
        status, text = await asyncio.to_thread(run.process.readyz)
        if error is None and status == 200:
            run.say("healed")
            return
        await asyncio.sleep(POLL_S)
    raise Violation(f"{what}, and after {HEALS_S:g} s: {error!r}; readyz: {status} {text}")


async def hang(run: Run, traffic: Traffic) -> None:
    """A write or a sync takes for ever: no receipts, and the bookie says that it is not well."""
    await traffic.run(run.rng.randint(10, 80))
    await traffic.settle()
    control = run.process.control
    place = run.rng.choice(("/journal", "/journal", "/entry-logs", "/index"))
    rule = control.arm(Op.WRITE | Op.WRITE_SYNCED | Op.SYNC, place, Action.HANG, times=-1)
    run.told.index_failing = place == "/index"
    run.say(f"{place} hangs")
    sending = asyncio.ensure_future(traffic.run(HANG_STEPS))
    try:
        text = await not_ready(run, traffic, place)
        run.say(f"not ready: {text}")
        if run.rng.random() < 0.3:
            return  # the power goes while it hangs
        control.disarm(rule)
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await traffic.settle()
    await healed(run, traffic, f"{place} hangs no more")


async def not_ready(run: Run, traffic: Traffic, place: str) -> str:
    """Waits until the bookie is not ready, and sees that it gives no receipts; why it is not."""
    end = time.monotonic() + HANG_SEEN_S
    while time.monotonic() < end:
        await asyncio.sleep(POLL_S * 4)
        before, hung = traffic.receipts, run.process.control.hanging
        status, text = await asyncio.to_thread(run.process.readyz)
        if status == 200:
            continue
        await asyncio.sleep(POLL_S * 4)
        if hung and place == "/journal" and traffic.receipts > before:
            raise Violation("receipts while the journal hangs")
        return text
    raise Violation(f"{place} hangs for {HANG_SEEN_S:g} s, and the bookie is ready")


async def flush(run: Run, traffic: Traffic) -> None:
    """Enough for flushes, and all answered; then the power goes."""
    await traffic.run(FLUSH_STEPS)
    await traffic.settle()


async def short_writes(run: Run, traffic: Traffic) -> None:
    """The disk takes half of each write and says so; then the power goes."""
    faults.arm_short_writes(run.process)
    await traffic.run(FLUSH_STEPS)


async def failed_sync(run: Run, traffic: Traffic) -> None:
    """A sync of the journal fails once, and its data is gone; soon after, the power goes."""
    rule = faults.arm_failed_sync(run.process, run.rng)
    for _ in range(FLUSH_STEPS):
        await traffic.run(1)
        if run.process.control.hits(rule):
            break
    # A flush would bring what is gone into the entry logs, from memory.
    await traffic.run(3)
    await traffic.settle()


async def lying_reads(run: Run, traffic: Traffic) -> None:
    """Every read of an entry log has a flipped bit."""
    await flush(run, traffic)
    run.told.lying = True
    faults.arm_flips(run.process, run.rng)
    for key in run.rng.sample(sorted(run.told.acked), min(60, len(run.told.acked))):
        await traffic.read(*key, 5)
    run.process.control.calm()
    run.told.lying = False


DAYS: Final[dict[str, Callable[[Run, Traffic], Awaitable[None]]]] = {
    "cut": cut,
    "write errors": write_errors,
    "read errors": read_errors,
    "full": full,
    "hang": hang,
    "flush": flush,
    "short writes": short_writes,
    "failed sync": failed_sync,
    "lying reads": lying_reads,
}
WEIGHTS: Final = {
    "cut": 6,
    "write errors": 6,
    "read errors": 2,
    "full": 1,
    "hang": 1,
    "short writes": 1,
    "failed sync": 2,
}
LAST_DAYS: Final = ("latent", "latent", "latent", "unreadable", "old index", "end", "end")
"""After these, errors are right answers, or the bookie does not start."""


async def latent(run: Run) -> None:
    """Damages what is on the disk, and starts the bookie on it twice: never a wrong answer."""
    await run.live(quiet)
    run.die(power=False)
    damages = [faults.spoil(run.process, run.rng) for _ in range(run.rng.choice((1, 1, 2)))]
    await _face(run, [damage for damage in damages if damage is not None])


async def unreadable(run: Run) -> None:
    """The end of the journal cannot be read: that is no torn write."""
    await run.live(quiet)
    run.die(power=False)
    await _face(run, [faults.Latent("journal", faults.spoil_end(run.process))])


async def old_index(run: Run) -> None:
    """Somebody restores the index of yesterday: the bookie must not start with it."""
    index, copy = run.process.data_dir / "index", run.process.root / "index.copy"
    for copied in (False, True):
        await run.live(flush)
        run.die(power=False)
        if not copied:
            shutil.copytree(index, copy)
            await run.start()
    shutil.rmtree(index)
    shutil.move(copy, index)
    run.process.disk.take_over()
    try:
        run.process.start()
    except NotStarted as error:
        if "older than the checkpoint" not in str(error):
            raise Violation(f"the index of yesterday, and it says: {error}") from None
        run.counts["refused to start"] += 1
    else:
        await run.check()
        raise Violation("the bookie started with the index of yesterday")


async def _face(run: Run, stories: list[faults.Latent]) -> None:
    for damage in stories:
        run.say(f"damage: {damage.story}")
        run.counts["latent errors"] += 1
    run.process.disk.take_over()
    run.told.lossy = True
    for _ in range(2):
        try:
            run.process.start()
        except NotStarted as error:
            if "Traceback" in str(error) or not any(d.may_refuse_to_start for d in stories):
                raise Violation(f"does not start on a damaged disk: {error}") from None
            run.counts["refused to start"] += 1
            return
        await run.check()
        await run.live(quiet)
        run.process.kill()


async def quiet(run: Run, traffic: Traffic) -> None:
    """Some requests, all answered; then none, until the journal has said that it is synced."""
    await traffic.run(run.rng.randint(30, 150))
    await traffic.settle()
    before, quiet_looks = -1, 0
    while quiet_looks < QUIET_LOOKS:
        now = run.process.control.operations
        quiet_looks = quiet_looks + 1 if now == before else 0
        before = now
        await asyncio.sleep(QUIET_S)


LAST: Final[dict[str, Callable[[Run], Awaitable[None]]]] = {
    "latent": latent,
    "unreadable": unreadable,
    "old index": old_index,
}


async def run_seed(
    seed: int,
    root: Path,
    metadata_url: str,
    *,
    bug: str = "",
    days: tuple[str, ...] = (),
    harsh: bool = False,
) -> Run:
    """Raises Violation with the seed's story."""
    rng = Random(seed)
    process = BookieProcess(root / str(seed), metadata_url, bug=bug)
    run = Run(seed, process, rng, Told(seed), harsh=harsh)
    names = days or tuple(
        rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rng.randint(1, 3))
        + rng.choices(LAST_DAYS, k=1)
    )
    try:
        await run.start()
        for name in names:
            run.say(name)
            run.counts[f"days of {name}"] += 1
            if name in LAST:
                await LAST[name](run)
            elif name in DAYS:
                await run.live(DAYS[name])
                run.die(power=harsh or rng.random() < 0.9)
                await run.start()
                await run.check()
    except Violation as violation:
        story = "\n  ".join(run.story)
        raise Violation(f"seed {seed}: {violation}\n  {story}") from violation
    finally:
        with contextlib.suppress(AssertionError):
            process.kill()
        run.counts.update(process.control.counts())
        run.counts["lives"] += process.lives
    return run

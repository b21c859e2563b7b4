"""A smaller world: ledgers that are written by some and ended by others at the same time.

Between a topic and its ledgers stand ownership and leases, which see to it that a ledger is seldom
ended under a living writer. Here nothing sees to that, so that the ledger protocol (fencing,
ensemble change, recovery, close) meets itself as often as possible. What must hold: an entry that
was confirmed to its writer is in the ledger, whoever ended it; all who ended it agree on its end;
every entry up to there reads back as it was appended. Who reads a ledger that is not ended sees no
entry that its writer did not see confirmed.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.sim.bookies import registered_bookies
from tests.sim.brokers import ledger_settings
from tests.sim.copies import check_copies
from tests.sim.faults import play
from tests.sim.late_quorum import late_quorum
from tests.sim.metadata import MetadataClient
from tests.sim.nodes import Node
from tests.sim.world import World

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.records import read_record
from magnetar.ledger.writer import LedgerWriter

APPENDS_MAX: Final = 30
LEDGERS_MAX: Final = 24
READ_BYTES: Final = 1 << 20
SETTLE_S_MAX: Final = 120.0
WAITS_MAX: Final = 200
PASSING: Final = (MagnetarError, TimeoutError)


@dataclass(slots=True)
class LedgerLog:
    """What is known of one ledger from outside."""

    appended: list[bytes] = field(default_factory=list)
    confirmed: int = -1
    ends: dict[int, str] = field(default_factory=dict)
    """The ends that processes found, with their names."""


class LedgerWorld(World):
    """See the module's text. Its `brokers` are processes that write and end ledgers."""

    logs: dict[int, LedgerLog]
    writing: dict[int, tuple[Node, LedgerWriter]]
    """Ledgers that are being written, and by whom."""

    async def run_all(self) -> None:
        """The whole run."""
        self.logs = {}
        self.writing = {}
        for node in self.nodes.values():
            node.start()
        await asyncio.sleep(1.0)
        self.tell("started")
        await play(self)
        await self.heal()
        await self._check()
        await check_copies(self)

    def member_main(self, node: Node) -> Coroutine[Any, Any, None]:
        return ledger_main(node, self)

    def writers(self) -> list[tuple[Node, LedgerWriter]]:
        return [one for one in self.writing.values() if one[1].error is None]

    def log(self, ledger_id: int) -> LedgerLog:
        return self.logs.setdefault(ledger_id, LedgerLog())

    def ended(self, ledger_id: int, last_entry: int, by: str) -> None:
        """Somebody found the ledger closed."""
        log = self.log(ledger_id)
        if log.ends and last_entry not in log.ends:
            self.history.violated(
                f"ledger {ledger_id} ends at {last_entry} for {by}, but at {log.ends}"
            )
        log.ends.setdefault(last_entry, by)

    async def late_copy(self, rng: Random) -> None:
        """One copy of an entry is stored, the others come late: after others ended the ledger.

        What goes from the writer to its bookies waits, but for one entry to one of them; another
        process ends the ledger, and loses sight of that bookie as soon as it is fenced; then what
        waited is let through, to one bookie after the other.
        """
        able = [
            (node, writer)
            for node, writer in self.writing.values()
            if node.alive and writer.error is None and len(writer.bookies) > 1
        ]
        enders = [node for node in self.brokers if node.alive and node.service is not None]
        if not able or not enders:
            return
        node, writer = rng.choice(able)
        ender = rng.choice(enders)
        first, *others = rng.sample([one.bookie_id for one in writer.bookies], len(writer.bookies))
        cuts = [(node.name, one) for one in (*others, first)]
        self.tell(f"ledger {writer.ledger_id}: {first} gets one more entry, {others} get it late")
        for cut in cuts[:-1]:
            self.network.cut(*cut)
        await self._stored(self.nodes[first], writer.ledger_id, writer.next_entry)
        self.network.cut(*cuts[-1])
        promises, unseen = self.nodes[first].promises, (ender.name, first)
        promises.on_fence = lambda: self.network.cut(*unseen)
        assert ender.process is not None
        ending = end_ledger(self, ender.service, writer.ledger_id, ender.name)
        ender.process.start(ending, "end a ledger")
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        promises.on_fence = lambda: None
        for cut in cuts:
            self.network.heal(*cut)
            await asyncio.sleep(rng.uniform(0.2, 1.2))
        self.network.heal(*unseen)

    async def end_by(self, ender: Node, ledger_id: int) -> None:
        """Has another process begin to end the ledger."""
        if ender.process is not None and ender.alive and ender.service is not None:
            ending = end_ledger(self, ender.service, ledger_id, ender.name)
            ender.process.start(ending, "end a ledger")

    async def late_quorum(self, rng: Random) -> None:
        await late_quorum(self, rng)

    async def _stored(self, bookie: Node, ledger_id: int, entry_id: int) -> None:
        for _ in range(WAITS_MAX):
            if entry_id in bookie.promises.entries.get(ledger_id, ()):
                return
            await asyncio.sleep(0.005)

    async def _check(self) -> None:
        judge = Node(self.loop, self.network, "judge", lambda node: self._judge(node))
        judge.start()
        deadline = self.loop.now + SETTLE_S_MAX
        while not judge.ready:
            if self.loop.now > deadline:
                self.history.violated("the ledgers could not be ended and read in time")
                break
            await asyncio.sleep(0.5)
        for node in self.brokers:
            node.kill()
        for ledger_id, log in self.logs.items():
            # Repeated: entries that were confirmed late count as well.
            for last_entry in log.ends:
                if log.confirmed > last_entry:
                    self.history.violated(
                        f"ledger {ledger_id}: entry {log.confirmed} was confirmed, "
                        f"but it ends at {last_entry} ({log.ends[last_entry]})"
                    )

    async def _judge(self, node: Node) -> None:
        client = await connected(node, self)
        for ledger_id in sorted(self.logs):
            while True:
                try:
                    reader = await client.open(ledger_id, recover=True)
                    self.ended(ledger_id, reader.last_entry, node.name)
                    await read_whole(self, reader, ledger_id)
                    break
                except NoSuchLedger:
                    self.history.violated(f"ledger {ledger_id} is gone")
                    break
                except PASSING as error:
                    self.tell(f"ledger {ledger_id} not read yet: {error}")
                    await asyncio.sleep(1.0)
        node.ready = True


async def connected(node: Node, world: World) -> LedgerClient:
    """A client of ledgers in this node's process."""
    store = MetadataClient(world.metadata, node.clock)
    bookies = registered_bookies(node, store)
    await bookies.start()
    return LedgerClient(store, bookies, node.clock, ledger_settings(world), rng=node.rng)


async def ledger_main(node: Node, world: LedgerWorld) -> None:
    """Writes ledgers, and ends those of others and its own."""
    client = node.service = await connected(node, world)
    node.ready = True
    tasks = [write_ledgers(node, world, client), write_ledgers(node, world, client)]
    tasks.append(end_ledgers(node, world, client))
    if world.plan.tells:
        tasks.append(read_open_ledgers(node, world, client))
    await asyncio.gather(*tasks)


async def write_ledgers(node: Node, world: LedgerWorld, client: LedgerClient) -> None:
    rng = Random(node.rng.randrange(1 << 30))
    while not world.healed_at and len(world.logs) < LEDGERS_MAX:
        try:
            writer = await client.create({})
            world.writing[writer.ledger_id] = node, writer
            await write_ledger(rng, world, writer)
            del world.writing[writer.ledger_id]
            if rng.random() < 0.4:
                closed = await writer.close()
                world.ended(writer.ledger_id, closed.last_entry, node.name)
            await asyncio.sleep(rng.uniform(0.2, 2.5))
        except PASSING:
            await asyncio.sleep(rng.uniform(0.05, 0.5))


async def write_ledger(rng: Random, world: LedgerWorld, writer: LedgerWriter) -> None:
    log = world.log(writer.ledger_id)
    pace_s = rng.choice((0.001, 0.01, 0.05, 0.3))
    for _ in range(rng.randint(1, APPENDS_MAX)):
        count = rng.choice((1, 1, 2, 7))
        first = len(log.appended)
        entries = [
            f"{writer.ledger_id}/{first + at}/".encode() + rng.randbytes(rng.choice((5, 200)))
            for at in range(count)
        ]
        log.appended += entries

        def on_appended(
            first: int, error: MagnetarError | None, log: LedgerLog = log, count: int = count
        ) -> None:
            if error is None:
                log.confirmed = max(log.confirmed, first + count - 1)

        writer.append(entries, on_appended)
        if writer.error is not None:
            return
        await asyncio.sleep(rng.expovariate(1.0) * pace_s)


async def end_ledgers(node: Node, world: LedgerWorld, client: LedgerClient) -> None:
    rng = Random(node.rng.randrange(1 << 30))
    while not world.healed_at:
        await asyncio.sleep(rng.expovariate(3.0))
        if not world.logs:
            continue
        known = sorted(world.logs)
        ledger_id = rng.choice(known[-3:] if rng.random() < 0.8 else known)
        await end_ledger(world, client, ledger_id, node.name)


async def read_open_ledgers(node: Node, world: LedgerWorld, client: LedgerClient) -> None:
    """Reads ledgers that others write or have left, without fencing them."""
    rng = Random(node.rng.randrange(1 << 30))
    while not world.healed_at:
        await asyncio.sleep(rng.expovariate(2.0))
        if world.logs:
            ledger_id = rng.choice(sorted(world.logs)[-4:])
            await read_open_ledger(world, client, ledger_id, node.name)


async def read_open_ledger(
    world: LedgerWorld, client: LedgerClient, ledger_id: int, by: str
) -> None:
    """Reads an open ledger: only confirmed entries, unless a recovery has begun."""
    with suppress(*PASSING):
        reader = await client.open(ledger_id, recover=False)
        confirmed = world.log(ledger_id).confirmed
        metadata, _ = await read_record(client._context, ledger_id)
        if metadata.state is LedgerState.OPEN and reader.last_entry > confirmed:
            world.history.violated(
                f"ledger {ledger_id}: {by} may read up to entry {reader.last_entry}, "
                f"but {confirmed} is confirmed"
            )
        await read_whole(world, reader, ledger_id)


async def end_ledger(world: LedgerWorld, client: LedgerClient, ledger_id: int, by: str) -> None:
    """Ends a ledger, if that can be done, and reads it."""
    with suppress(*PASSING):
        reader = await client.open(ledger_id, recover=True)
        world.ended(ledger_id, reader.last_entry, by)
        await read_whole(world, reader, ledger_id)


async def read_whole(world: LedgerWorld, reader: LedgerReader, ledger_id: int) -> None:
    """Asserts that every entry up to the end equals the appended one."""
    appended: Sequence[bytes] = world.log(ledger_id).appended
    at = 0
    while at <= reader.last_entry:
        for entry_id, data in await reader.read(at, reader.last_entry, bytes_max=READ_BYTES):
            if entry_id != at or at >= len(appended) or data != appended[at]:
                world.history.violated(f"ledger {ledger_id}: entry {at} is not what was appended")
                return
            at += 1

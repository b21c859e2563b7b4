"""Random ledgers; bookies leave, return, are wiped and rot: in the end all is whole or named.

After each storm autorecovery gets time to come to rest. Then every ledger whose entries have at
least one copy on a living bookie that its record names, and for which there are bookies enough, has
all its copies; every other entry is named as lost; and nothing is tried any more.
"""

import asyncio
from random import Random

import looptime
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.autorecovery.stage import Stage, TroubledBookie, data_of

from magnetar.autorecovery.records import RecordState
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.quorum import write_set

REST_S = 400
LEDGERS_MAX = 12
CHECK_S = 100.0


class Storm(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=looptime.new_event_loop)

    @initialize(count=st.integers(3, 6))
    def begin(self, count: int) -> None:
        async def begin() -> Stage:
            settings = AutorecoverySettings(
                check_interval_s=CHECK_S,
                look_interval_s=2.0,
                lost_bookie_delay_s=2.0,
                backoff_max_s=10.0,
            )
            stage = Stage(*[f"b{number}" for number in range(count)], settings=settings)
            await stage.node(1)
            await stage.node(2)
            await asyncio.sleep(20)
            return stage

        self.stage = self.runner.run(begin())
        self.down: list[TroubledBookie] = []
        self.ledgers = 0
        self.incarnations = 1

    @rule(seed=st.integers(0, 1 << 30), last=st.integers(-1, 25), changes=st.integers(0, 3))
    def ledger(self, seed: int, last: int, changes: int) -> None:
        up = self.stage.bookies.up()
        if self.ledgers >= LEDGERS_MAX or len(up) < 2:
            return
        rng = Random(seed)
        self.ledgers += 1
        stage = self.stage
        stage.by_name = {f"{one.identity}": one for one in up}
        firsts = sorted({0, *(rng.randint(1, 20) for _ in range(changes))})
        ensembles = []
        for first in firsts:
            size = rng.randint(2, min(4, len(up)))
            chosen = rng.sample(sorted(stage.by_name), size)
            ensembles.append((first, chosen))
        self.runner.run(self._write(ensembles, last, rng.randint(1, 2) + 1))

    async def _write(self, ensembles: list[tuple[int, list[str]]], last: int, quorum: int) -> None:
        stage = self.stage
        short = {f"n{number}": one for number, one in enumerate(stage.by_name.values())}
        keys = {str(one.identity): name for name, one in short.items()}
        stage.by_name = short
        named = [(first, " ".join(keys[one] for one in chosen)) for first, chosen in ensembles]
        await stage.ledger(self.ledgers, *named, last=last, write_quorum=quorum)

    @rule(number=st.integers(0, 10))
    def lose(self, number: int) -> None:
        up = self.stage.bookies.up()
        if up:
            bookie = up[number % len(up)]
            self.stage.bookies.lose(bookie)
            self.down.append(bookie)

    @precondition(lambda self: self.down)
    @rule(number=st.integers(0, 10), wiped=st.booleans())
    def come_back(self, number: int, wiped: bool) -> None:
        bookie = self.down.pop(number % len(self.down))
        if wiped:
            self.incarnations += 1
            name = bookie.identity.bookie_id
            self.stage.bookies.add(name, incarnation=str(self.incarnations))
        else:
            self.stage.bookies.back(bookie)

    @rule(seed=st.integers(0, 1 << 30))
    def rot(self, seed: int) -> None:
        """A copy goes wrong on a living bookie."""
        rng = Random(seed)
        held = [
            (bookie, ledger_id, entry_id)
            for bookie in self.stage.bookies.up()
            for ledger_id in range(1, self.ledgers + 1)
            for entry_id in bookie.holds(ledger_id)
        ]
        if held:
            bookie, ledger_id, entry_id = rng.choice(held)
            if rng.random() < 0.5:
                bookie.corrupt.add((ledger_id, entry_id))
            else:
                bookie.drop(ledger_id, entry_id)

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule()
    def rest(self) -> None:
        async def rest() -> None:
            await asyncio.sleep(REST_S)
            # Where no bookie lives at all nobody can be asked, and nothing is said.
            for ledger_id in range(1, self.ledgers + 1 if self.stage.bookies.up() else 1):
                await self._judge(ledger_id)
            before = [node.stats.outcomes for node in self.stage.nodes]
            bytes_before = [node.stats.bytes_copied for node in self.stage.nodes]
            tried = [dict(outcomes) for outcomes in before]
            await asyncio.sleep(2 * CHECK_S)
            assert [node.stats.outcomes for node in self.stage.nodes] == tried
            assert [node.stats.bytes_copied for node in self.stage.nodes] == bytes_before
            assert all(node.health().ok for node in self.stage.nodes)

        self.runner.run(rest())

    async def _judge(self, ledger_id: int) -> None:
        stage = self.stage
        metadata = await stage.metadata(ledger_id)
        report = await stage.check(ledger_id)
        record = (await stage.listed()).get(ledger_id)
        if record is None:
            assert report.verdict == "healthy", (report, metadata)
            return
        assert record.state is not RecordState.WAITING, record
        gone = {
            entry_id
            for entry_id in range(metadata.last_entry + 1)
            if not self._copies(metadata, entry_id)
        }
        if record.state is RecordState.LOST:
            named = {e for one in record.lost for e in range(one.first, one.last + 1)}
            assert named == gone, (record, report)
        else:
            widest = max(metadata.write_quorum, *(len(one.bookies) for one in metadata.ensembles))
            assert len(stage.bookies.up()) < widest, (record, metadata)

    def _copies(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """How many living bookies of its write set have the entry as it was written."""
        count = 0
        for identity in write_set(metadata, entry_id):
            bookie = self.stage.bookies.get(identity)
            if bookie is None or (metadata.ledger_id, entry_id) in bookie.corrupt:
                continue
            data = bookie.holds(metadata.ledger_id).get(entry_id)
            count += data == data_of(metadata.ledger_id, entry_id)
        return count

    def teardown(self) -> None:
        try:
            self.rest()
        finally:
            self.runner.run(self.stage.stop())
            self.runner.close()


Storm.TestCase.settings = hypothesis_settings(max_examples=8, stateful_step_count=14, deadline=None)
TestStorm = Storm.TestCase

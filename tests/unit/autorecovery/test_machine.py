"""Random faults: bookies leave, return, are wiped and corrupted; all is repaired or named.

After each storm, autorecovery gets time to finish. Then every ledger whose entries have at least
one copy on a living bookie that its record names, and for which enough bookies exist, has all its
copies. Every other entry is named as lost, and no ledger is attempted any more.
"""

import asyncio
from random import Random

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.autorecovery.stage import Stage, TroubledBookie, data_of
from tests.unit.ledger.cluster import new_event_loop

from magnetar.autorecovery.records import RecordState
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.quorum import write_set

REST_S = 400
LEDGERS_MAX = 12
CHECK_S = 100.0
LEASE_S = 60.0
"""No session ends in these tests, so a long lease saves renewals."""
TEST_TIMEOUT_S = 300.0
"""Real time. The storm takes seconds on an idle machine."""

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


class Storm(RuleBasedStateMachine):
    """Random ledgers, faults and checks, as a state machine."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=new_event_loop)

    @initialize(count=st.integers(3, 6))
    def begin(self, count: int) -> None:
        async def begin() -> Stage:
            settings = AutorecoverySettings(
                check_interval_s=CHECK_S,
                observe_interval_s=5.0,
                lost_bookie_delay_s=2.0,
                backoff_max_s=10.0,
            )
            stage = Stage(*[f"b{number}" for number in range(count)], settings=settings)
            await stage.node(1, lease_s=LEASE_S)
            await stage.node(2, lease_s=LEASE_S)
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
        stage.by_name = {f"{bookie.identity}": bookie for bookie in up}
        firsts = sorted({0, *(rng.randint(1, 20) for _ in range(changes))})
        ensembles = []
        for first in firsts:
            size = rng.randint(2, min(4, len(up)))
            chosen = rng.sample(sorted(stage.by_name), size)
            ensembles.append((first, chosen))
        self.runner.run(self._write(ensembles, last, rng.randint(1, 2) + 1))

    async def _write(self, ensembles: list[tuple[int, list[str]]], last: int, quorum: int) -> None:
        stage = self.stage
        short = {f"n{number}": bookie for number, bookie in enumerate(stage.by_name.values())}
        keys = {str(bookie.identity): name for name, bookie in short.items()}
        stage.by_name = short
        named = [
            (first, " ".join(keys[identity] for identity in chosen)) for first, chosen in ensembles
        ]
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
        """Corrupts or drops a copy on a living bookie."""
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
            # Without any living bookie no ledger is attempted, so none is named.
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
        missing = {
            entry_id
            for entry_id in range(metadata.last_entry + 1)
            if not self._copies(metadata, entry_id)
        }
        if record.state is RecordState.LOST:
            named = {e for entries in record.lost for e in range(entries.first, entries.last + 1)}
            assert named == missing, (record, report)
        else:
            widest = max(
                metadata.write_quorum, *(len(ensemble.bookies) for ensemble in metadata.ensembles)
            )
            assert len(stage.bookies.up()) < widest, (record, metadata)

    def _copies(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """Returns the number of living bookies of the write set with a right copy of the entry."""
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


@pytest.mark.parametrize("wait_s", [0.0, 30.0])
def test_damage_of_a_lost_ledger_is_named_or_repaired(wait_s: float) -> None:
    """A sequence that Hypothesis found: entries of a ledger rot after others of it were lost."""
    storm = Storm()
    try:
        storm.begin(count=6)
        storm.ledger(seed=1377, last=5, changes=2)
        storm.rot(seed=141534)
        storm.lose(1)
        storm.lose(2)
        for seed in (52178784, 668948433):
            storm.rot(seed)
        storm.wait(wait_s)
        storm.lose(9)
        for seed in (141534, 318903):
            storm.rot(seed)
        storm.rest()
        storm.rest()
        for seed in (1073741824, 1214423):
            storm.rot(seed)
        storm.rest()
    finally:
        storm.teardown()

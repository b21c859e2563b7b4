"""Coordinators share groups of writes, and one that is fenced fails alone."""

import asyncio
import random

import pytest
from tests.unit.broker.transactions.stage import TOPIC, HoldingStore, Stage, turns

from magnetar.broker.transactions import groups as groups_module
from magnetar.broker.transactions.coordinator import Coordinator
from magnetar.broker.transactions.groups import GroupWriter
from magnetar.broker.transactions.participants import Notifier
from magnetar.core.errors import MetadataError, TransactionCoordinatorNotFound
from magnetar.metadata.store import TRANSACTION_OPS_MAX
from magnetar.transactions.model import Outcome, TxnId, TxnState
from magnetar.transactions.records import head_key, record_key

TIMEOUT_MS = 60_000


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("RETRY_S_MIN", "RETRY_S_MAX"):
        monkeypatch.setattr(groups_module, bound, 0.0)


async def loaded(stage: Stage, groups: GroupWriter, *ids: int) -> list[Coordinator]:
    rng = random.Random(1)
    notifier = Notifier(stage.participants, at_once=8, timeout_s=30.0, random=rng)
    rest = (notifier, stage.clock, rng, stage.limits)
    return [await Coordinator.load(id_, groups, "a", *rest) for id_ in ids]


async def held_begins(
    stage: Stage, coordinators: list[Coordinator]
) -> "list[asyncio.Future[TxnId]]":
    """Begins a transaction at each, in one group that the store holds back."""
    stage.store.holding = True
    begun: list[asyncio.Future[TxnId]] = [
        asyncio.ensure_future(each.begin(None, TIMEOUT_MS)) for each in coordinators
    ]
    await turns()
    assert len(stage.store.held) == 1
    stage.store.holding = False
    return begun


async def test_coordinators_share_a_group() -> None:
    stage = Stage()
    coordinators = await loaded(stage, GroupWriter(stage.store, random.Random(1)), 0, 1, 2)
    before = stage.store.transactions
    ids = await asyncio.gather(*(each.begin(None, TIMEOUT_MS) for each in coordinators))
    assert ids == [TxnId(0, 0), TxnId(1, 0), TxnId(2, 0)]
    assert stage.store.transactions - before == 1
    for each in coordinators:
        await each.end(0, stage.caller(), Outcome.COMMIT)
        await each.close()


async def test_a_fenced_coordinator_fails_alone() -> None:
    stage = Stage()
    first, second = await loaded(stage, GroupWriter(stage.store, random.Random(1)), 0, 1)
    begun = await held_begins(stage, [first, second])
    (taken,) = await loaded(stage, GroupWriter(stage.store, random.Random(2)), 0)
    await stage.store.held[0].lands()
    with pytest.raises(TransactionCoordinatorNotFound):
        await begun[0]
    assert await begun[1] == TxnId(1, 0)
    assert first.failed
    assert not second.failed
    assert await stage.store.get(record_key(TxnId(0, 0))) is None
    assert await taken.begin(None, TIMEOUT_MS) == TxnId(0, 0)
    for each in (first, second, taken):
        await each.close()


async def test_a_group_that_landed_without_an_answer_is_not_written_again() -> None:
    stage = Stage()
    first, second = await loaded(stage, GroupWriter(stage.store, random.Random(1)), 0, 1)
    begun = await held_begins(stage, [first, second])
    await stage.store.held[0].lands_unanswered()
    assert await asyncio.gather(*begun) == [TxnId(0, 0), TxnId(1, 0)]
    assert first.groups_written == second.groups_written == 1
    assert not first.failed
    assert not second.failed
    await first.close()
    await second.close()


async def test_a_group_that_landed_before_a_take_over_has_landed_for_the_others() -> None:
    stage = Stage()
    first, second = await loaded(stage, GroupWriter(stage.store, random.Random(1)), 0, 1)
    begun = await held_begins(stage, [first, second])
    held = stage.store.held[0]
    revision = await held.land()
    (taken,) = await loaded(stage, GroupWriter(stage.store, random.Random(2)), 0)
    held.is_lost()
    with pytest.raises(TransactionCoordinatorNotFound):
        await begun[0]  # it is there, but its former owner cannot know what became of it
    assert await begun[1] == TxnId(1, 0)
    head = await stage.store.get(head_key(1))
    assert head is not None
    assert head.revision == revision
    assert list(taken.active) == [TxnId(0, 0)]
    for each in (first, second, taken):
        await each.close()


async def test_a_part_that_the_store_refuses_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    first, second = await loaded(stage, GroupWriter(stage.store, random.Random(1)), 0, 1)
    transact = HoldingStore.transact

    async def refusing(self: HoldingStore, operations: object) -> int:
        if any(operation.key == head_key(0) for operation in operations):  # type: ignore[attr-defined]
            raise MetadataError("too large")
        return await transact(self, operations)  # type: ignore[arg-type]

    monkeypatch.setattr(HoldingStore, "transact", refusing)
    begun = [asyncio.ensure_future(each.begin(None, TIMEOUT_MS)) for each in (first, second)]
    with pytest.raises(TransactionCoordinatorNotFound):
        await begun[0]
    assert await begun[1] == TxnId(1, 0)
    await first.close()
    await second.close()


async def test_a_full_group_leaves_the_rest_for_the_next_and_serves_all() -> None:
    stage = Stage()
    coordinators = await loaded(stage, GroupWriter(stage.store, random.Random(1)), 0, 1, 2)
    before = stage.store.transactions
    many = [
        each.begin(None, TIMEOUT_MS) for each in coordinators for _ in range(TRANSACTION_OPS_MAX)
    ]
    ids = await asyncio.gather(*many)
    assert len(set(ids)) == 3 * TRANSACTION_OPS_MAX
    assert stage.store.transactions - before == 4  # each with at least one head
    await asyncio.gather(*(each.close() for each in coordinators))


async def test_a_closed_coordinator_leaves_the_others_in_its_group_alone() -> None:
    stage = Stage()
    groups = GroupWriter(stage.store, random.Random(1))
    first, second = await loaded(stage, groups, 0, 1)
    begun = await held_begins(stage, [first, second])
    await first.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        await begun[0]
    await stage.store.held[0].lands()
    assert await begun[1] == TxnId(1, 0)
    await second.add(0, stage.caller(), [TOPIC])
    await second.end(0, stage.caller(), Outcome.COMMIT)
    await second.close()
    # Its record landed; the next owner finds the open transaction.
    (taken,) = await loaded(stage, groups, 0)
    assert [record.state for record in taken.active.values()] == [TxnState.OPEN]
    await taken.close()


async def test_a_stopped_writer_answers_all() -> None:
    stage = Stage()
    groups = GroupWriter(stage.store, random.Random(1))
    (only,) = await loaded(stage, groups, 0)
    (begun,) = await held_begins(stage, [only])
    await groups.stop()
    with pytest.raises(TransactionCoordinatorNotFound):
        await begun
    with pytest.raises(TransactionCoordinatorNotFound):
        await only.begin(None, TIMEOUT_MS)
    await only.close()

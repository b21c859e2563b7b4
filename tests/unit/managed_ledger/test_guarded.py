"""Writes under a claim succeed while it holds, and an unknown outcome is resolved."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from tests.support.held_store import HeldStore
from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.managed_ledger.claim import Grant
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import Check, MetadataUnavailable, Operation

CLAIM = "/ownership/bundle"

Write = Callable[[ManagedLedger], Awaitable[object]]


class Owner:
    """A claim in the store, and its guard."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.revision = self.origin = 0
        self.owned = True
        self.outdated: list[int] = []
        """Revisions that the guard returns first."""

    async def claim(self) -> None:
        """A claim that has nothing to do with the one before."""
        await self.split()
        self.origin = self.revision

    async def split(self) -> None:
        """Writes another record, for a part of the claimed bundle."""
        self.revision = await self.store.put(CLAIM, b"mine")

    async def guard(self, name: str) -> Grant:
        if not self.owned:
            raise ManagedLedgerFenced(f"{name} is not owned")
        revision = self.outdated.pop(0) if self.outdated else self.revision
        return Grant(self.origin, (Check(CLAIM, revision),))


class UnsureStore(MemoryStore):
    """Its next writes are not answered; they have landed, or have not, as the test says."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.unanswered: list[bool] = []

    async def _meet(self, doing: Callable[[], Awaitable[int]]) -> int:
        if not self.unanswered:
            return await doing()
        if self.unanswered.pop(0):
            await doing()
        raise MetadataUnavailable("no answer came")

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        write = super().put
        return await self._meet(lambda: write(key, value, expected=expected, lease_id=lease_id))

    async def transact(self, operations: Sequence[Operation]) -> int:
        write = super().transact
        return await self._meet(lambda: write(operations))


async def trimmed(ledger: ManagedLedger) -> None:
    await ledger.roll_over()
    ledger.set_retention(0, 0)
    await ledger.truncate()


WRITES: dict[str, Write] = {
    "properties": lambda ledger: ledger.set_properties({"a": "1"}),
    "new cursor": lambda ledger: ledger.open_cursor("new"),
    "cursor deleted": lambda ledger: ledger.delete_cursor("old"),
    "cursor's properties": lambda ledger: ledger.cursors["old"].set_properties({"a": "1"}),
    "terminated": lambda ledger: ledger.terminate(),
    "trimmed": trimmed,
    "next ledger": lambda ledger: rolled(ledger),
    "cursor's ledger": lambda ledger: acked(ledger),
}


async def rolled(ledger: ManagedLedger) -> None:
    await ledger.roll_over()
    await publish(ledger, b"x")


async def acked(ledger: ManagedLedger) -> None:
    cursor = ledger.cursors["old"]
    cursor.ack_cumulative(ledger.last_confirmed)
    await cursor.flush()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)


async def opened(stage: Stage, owner: Owner) -> tuple[ManagedLedgerFactory, ManagedLedger]:
    await owner.claim()
    factory = stage.factory(guard=owner.guard)
    ledger = await factory.open(NAME)
    await ledger.open_cursor("old", initial=EARLIEST)
    await publish(ledger, b"a")
    return factory, ledger


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("known", [True, False], ids=["told", "not told"])
async def test_without_the_claim_no_record_is_written(write: Write, known: bool) -> None:
    stage = Stage()
    stage.store = store = MemoryStore(SystemClock())
    owner = Owner(store)
    factory, ledger = await opened(stage, owner)
    if known:
        owner.owned = False
    else:
        await store.put(CLAIM, b"theirs")
    before = await store.list("/managed-ledgers")
    ledgers = len(await store.list("/ledgers/"))
    with pytest.raises(ManagedLedgerFenced):
        await write(ledger)
    assert await store.list("/managed-ledgers") == before
    assert len(await store.list("/ledgers/")) == ledgers
    assert ledger.fenced
    await factory.abandon()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "unanswered", [[True], [False], [False, True], [True, True]], ids=lambda u: f"landed={u}"
)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "alone"])
async def test_a_write_without_an_answer_is_made_once(
    write: Write, unanswered: list[bool], guarded: bool
) -> None:
    stage = Stage()
    stage.store = store = UnsureStore()
    owner = Owner(store)
    factory, ledger = await opened(stage, owner)
    if not guarded:
        await factory.close()
        factory = stage.factory()
        ledger = await factory.open(NAME)
    store.unanswered = list(unanswered)
    await write(ledger)
    assert not ledger.fenced
    # What is written next builds on what the store has.
    store.unanswered = []
    await ledger.set_properties({"b": "2"})
    if "old" in ledger.cursors:
        await ledger.cursors["old"].set_properties({"c": "3"})
    if not ledger.terminated:
        await publish(ledger, b"y")
        await acked(ledger) if "old" in ledger.cursors else None
    entries = ledger.entries_total
    await factory.close()
    again = stage.factory()
    reopened = await again.open(NAME, create=False)
    assert reopened.entries_total == entries
    assert reopened.properties["b"] == "2"
    await again.close()


async def test_a_write_that_is_never_answered_is_given_up() -> None:
    stage = Stage()
    stage.store = store = UnsureStore()
    factory, ledger = await opened(stage, Owner(store))
    store.unanswered = [False] * 1_000
    with pytest.raises(MetadataUnavailable):
        await ledger.set_properties({"a": "1"})
    store.unanswered = []
    await ledger.set_properties({"a": "2"})
    assert not ledger.fenced
    await factory.close()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
async def test_what_became_of_a_write_that_was_never_answered_is_found_out_by_the_next(
    write: Write, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the next write would take the topic for another owner's."""
    monkeypatch.setattr("magnetar.managed_ledger.managed_ledger.TERMINATE_RETRY_S", 0.001)
    stage = Stage()
    stage.store = store = HeldStore()
    hasty = replace(SINGLE, metadata_timeout_s=0.01)
    client = LedgerClient(store, LocalBookies([stage.bookie]), stage.clock, hasty)
    monkeypatch.setattr(stage, "client", lambda: client)
    factory, ledger = await opened(stage, Owner(store))
    store.lose(lambda operation: operation.key.startswith("/managed-ledgers"), lands=landed)
    with pytest.raises(MagnetarError):
        await write(ledger)
    store.away = False
    await ledger.set_properties({"b": "2"})
    await ledger.open_cursor("old")
    await ledger.cursors["old"].set_properties({"c": "3"})
    await acked(ledger)
    await ledger.open_cursor("new")
    if not ledger.terminated:
        await rolled(ledger)
    assert not ledger.fenced
    entries = ledger.entries_total
    await factory.close()
    reopened = await stage.factory().open(NAME, create=False)
    assert reopened.entries_total == entries
    assert reopened.properties["b"] == "2"
    assert set(reopened.cursors) == {"old", "new"}
    assert not reopened.broken_cursors


async def test_a_claim_that_moved_is_taken_up() -> None:
    """As in a split: the record that is checked is another one by the time of the write."""
    stage = Stage()
    stage.store = store = MemoryStore(SystemClock())
    owner = Owner(store)
    factory, ledger = await opened(stage, owner)
    for write in (rolled, acked, WRITES["properties"]):
        outdated = owner.revision
        await owner.split()
        owner.outdated = [outdated]
        await write(ledger)
        assert not owner.outdated
        assert not ledger.fenced
    await factory.close()


async def test_who_does_not_own_it_fences_nobody() -> None:
    stage = Stage()
    stage.store = store = MemoryStore(SystemClock())
    owner = Owner(store)
    factory, ledger = await opened(stage, owner)
    await publish(ledger, b"x")
    stale = Owner(store)
    stale.revision = owner.revision - 1
    other = stage.factory(guard=stale.guard)
    with pytest.raises(ManagedLedgerFenced):
        await other.open(NAME, create=False)
    await publish(ledger, b"y")
    assert not ledger.fenced
    await other.abandon()
    await factory.close()

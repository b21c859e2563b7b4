"""The right of one instance to write: its retries, and its handling of lost answers."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.unit.ledger.stage import NAME, Stage, turns
from tests.unit.managed_ledger.test_guarded import CLAIM, Owner, UnsureStore

from magnetar.ledger.settings import Quorums
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.errors import CursorClosed, ManagedLedgerClosed, ManagedLedgerFenced
from magnetar.managed_ledger.tenure import WRITE_ATTEMPTS_MAX, Tenure
from magnetar.metadata.store import (
    BadRevision,
    Check,
    Delete,
    MetadataUnavailable,
    Operation,
    Put,
)

KEY = "/managed-ledgers/x"


class Rig:
    """A claim, a store whose answers are lost on request, and a tenure."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.store = self.store = UnsureStore()
        self.owner = Owner(self.store)
        self.context: Context
        self.tenure: Tenure
        self.writes: list[list[Operation]] = []

    async def begin(self) -> "Rig":
        await self.owner.claim()
        factory = self.stage.factory(guard=self.owner.guard)
        self.context = factory._context
        self.tenure = await Tenure.begin(self.context, NAME)
        transact = self.store.transact

        async def noted(operations: Sequence[Operation]) -> int:
            self.writes.append(list(operations))
            return await transact(operations)

        self.store.transact = noted  # type: ignore[method-assign]
        return self

    async def stored(self, key: str = KEY) -> bytes | None:
        record = await self.store.get(key)
        return None if record is None else record.value


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.0001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.0001)


async def test_every_write_checks_the_claim() -> None:
    rig = await Rig().begin()
    revision = await rig.tenure.write([Put(KEY, b"a")])
    assert rig.writes == [[Put(KEY, b"a"), Check(CLAIM, rig.owner.revision)]]
    record = await rig.store.get(KEY)
    assert record is not None
    assert record.revision == revision


async def test_an_answered_write_leaves_nothing_behind() -> None:
    rig = await Rig().begin()
    await rig.tenure.write([Put(KEY, b"a")])
    assert rig.context.unanswered == set()
    with pytest.raises(BadRevision):
        await rig.tenure.write([Put(KEY, b"b", expected=1)])
    assert rig.context.unanswered == set()
    assert not (await Tenure.begin(rig.context, NAME)).follows_unanswered


@pytest.mark.parametrize("landed", [False, True])
async def test_a_write_whose_answer_was_lost_may_still_land_for_the_next_instance(
    landed: bool,
) -> None:
    rig = await Rig().begin()
    rig.store.unanswered = [landed]
    await rig.tenure.write([Put(KEY, b"a", expected=0)])
    assert rig.context.unanswered == {NAME}
    await rig.tenure.write([Put(KEY, b"b")])  # an answer says nothing of the earlier attempt
    assert rig.context.unanswered == {NAME}
    following = await Tenure.begin(rig.context, NAME)
    assert following.follows_unanswered
    await following.write([Put(KEY, b"c")])
    assert rig.context.unanswered == set()  # its own write keeps the earlier one out


async def test_a_write_is_under_way_from_before_it_is_sent() -> None:
    rig = await Rig().begin()
    entered, go = asyncio.Event(), asyncio.Event()
    transact = rig.store.transact

    async def held(operations: Sequence[Operation]) -> int:
        entered.set()
        await go.wait()
        return await transact(operations)

    rig.store.transact = held  # type: ignore[method-assign]
    branch = rig.tenure.branch()
    writing = asyncio.ensure_future(branch.write([Put(KEY, b"a")]))
    other = asyncio.ensure_future(rig.tenure.write([Put(KEY + "2", b"a")]))
    await entered.wait()
    assert rig.context.unanswered == {NAME}
    rig.tenure.end(ManagedLedgerClosed("closed"))
    settled = asyncio.ensure_future(rig.tenure.settled())
    await turns()
    assert not settled.done()
    writing.cancel()
    await asyncio.wait([writing])
    await turns()
    assert not settled.done()  # the other one is under way still
    go.set()
    await other
    await settled
    assert rig.context.unanswered == {NAME}  # the one that was cut off may have landed
    await rig.tenure.settled()


@pytest.mark.parametrize("what", ["write", "create"])
async def test_a_write_is_tried_so_often_and_no_more(what: str) -> None:
    rig = await Rig().begin()
    rig.store.unanswered = [False] * (WRITE_ATTEMPTS_MAX - 1)
    if what == "write":
        assert await rig.tenure.write([Put(KEY, b"a")])
        assert len(rig.writes) == WRITE_ATTEMPTS_MAX
        rig.writes.clear()
        rig.store.unanswered = [False] * 1000
        with pytest.raises(MetadataUnavailable, match="could not be written"):
            await rig.tenure.write([Put(KEY, b"b")])
        assert len(rig.writes) == WRITE_ATTEMPTS_MAX
        assert await rig.stored() == b"a"
    else:
        created = await rig.tenure.create({"k": "v"}, lambda _: Put(KEY, b"a"), Quorums(1, 1, 1))
        assert created.writer is not None
        assert created.writer.metadata.properties == {"k": "v"}
        record = await rig.store.get(KEY)
        assert record is not None
        assert (created.ledger_id, created.revision) == (
            created.writer.ledger_id,
            record.revision,
        )


Shape = Callable[[int], list[Operation]]


@pytest.mark.parametrize(
    "shape",
    [
        lambda revision: [Put(KEY, b"new", revision)],
        lambda revision: [Check("/other", 0), Put(KEY, b"new", revision)],
        lambda revision: [Put(KEY, b"new", revision), Put("/more", b"new", 0)],
    ],
)
async def test_of_a_write_whose_answer_was_lost_the_store_says_whether_it_landed(
    shape: Shape,
) -> None:
    rig = await Rig().begin()
    revision = await rig.store.put(KEY, b"old")
    rig.store.unanswered = [True]
    landed = await rig.tenure.write(shape(revision))
    record = await rig.store.get(KEY)
    assert record is not None
    assert (record.value, record.revision) == (b"new", landed)
    # A write that failed because another one succeeded reports that.
    await rig.store.put(KEY, b"theirs")
    rig.store.unanswered = [False]
    with pytest.raises(BadRevision) as caught:
        await rig.tenure.write(shape(landed))
    assert caught.value.key in (KEY, "/more")
    assert await rig.stored() == b"theirs"


async def test_a_deletion_whose_answer_was_lost_landed_where_the_record_is_gone() -> None:
    rig = await Rig().begin()
    revision = await rig.store.put(KEY, b"old")
    rig.store.unanswered = [True]
    assert await rig.tenure.write([Delete(KEY, revision)]) == 0
    assert await rig.stored() is None
    # A write that finds no record did not take effect.
    rig.store.unanswered = [False]
    with pytest.raises(BadRevision):
        await rig.tenure.write([Put(KEY, b"new", revision)])
    assert await rig.stored() is None


async def test_the_very_bytes_of_another_are_not_taken_for_a_write_that_was_answered() -> None:
    rig = await Rig().begin()
    await rig.store.put(KEY, b"same")
    with pytest.raises(BadRevision):
        await rig.tenure.write([Put(KEY, b"same", expected=0)])


async def test_a_deletion_that_found_another_record_did_not_land() -> None:
    rig = await Rig().begin()
    revision = await rig.store.put(KEY, b"old")
    await rig.store.put(KEY, b"theirs")
    rig.store.unanswered = [False]
    with pytest.raises(BadRevision):
        await rig.tenure.write([Delete(KEY, expected=revision)])
    assert await rig.stored() == b"theirs"


@pytest.mark.parametrize("end_at", ["attempt", "finding out"])
async def test_a_tenure_that_ends_meanwhile_tries_no_more(end_at: str) -> None:
    rig = await Rig().begin()
    error = ManagedLedgerClosed("closed")
    back_off, get = rig.tenure._back_off, rig.store.get
    asked: list[str] = []

    async def ends(attempt: int) -> None:
        rig.tenure.end(error)
        await back_off(attempt)

    async def noted(key: str):
        asked.append(key)
        if end_at == "finding out":
            raise MetadataUnavailable("away")
        return await get(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.store, "get", noted)
        if end_at == "attempt":
            rig.store.unanswered = [False]
            patch.setattr(Tenure, "_back_off", lambda _self, attempt: ends(attempt))
            with pytest.raises(ManagedLedgerClosed):
                await rig.tenure.write([Put(KEY, b"a")])
            assert len(rig.writes) == 1
            assert await get(KEY) is None
        else:
            patch.setattr(Tenure, "_back_off", lambda _self, attempt: ends(attempt))
            with pytest.raises(ManagedLedgerClosed):
                await rig.tenure._landed([Put(KEY, b"a")])
            assert asked == [KEY]


async def test_finding_out_is_tried_so_often() -> None:
    rig = await Rig().begin()
    await rig.store.put(KEY, b"a")
    get, left = rig.store.get, WRITE_ATTEMPTS_MAX - 1

    async def away(key: str):
        nonlocal left
        left -= 1
        if left >= 0:
            raise MetadataUnavailable("away")
        return await get(key)

    rig.store.get = away  # type: ignore[method-assign]
    assert await rig.tenure._landed([Put(KEY, b"a")])
    left = WRITE_ATTEMPTS_MAX
    with pytest.raises(MetadataUnavailable, match="could not be read again"):
        await rig.tenure._landed([Put(KEY, b"a")])
    assert left == 0


async def test_a_lost_creation_that_landed_is_a_ledger_to_retire() -> None:
    rig = await Rig().begin()
    expected = 0

    def put(ledger_id: int) -> Put:
        return Put(KEY, b"%d" % ledger_id, expected)

    create = rig.context.ledgers.create
    lost = True

    async def loses(*args: object, **more: object):
        nonlocal lost
        writer = await create(*args, **more)  # type: ignore[arg-type]
        if lost:
            lost = False
            raise MetadataUnavailable("no answer")
        return writer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.context.ledgers, "create", loses)
        created = await rig.tenure.create({}, put)
    record = await rig.store.get(KEY)
    assert record is not None
    assert created.writer is None
    assert (created.ledger_id, created.revision) == (int(record.value), record.revision)
    # Where another wrote the record, it is another's, whatever was lost.
    await rig.store.put(KEY, b"theirs")
    lost = True
    with pytest.raises(BadRevision):
        await rig.tenure.create({}, put)


async def test_a_branch_ends_alone_or_with_its_instance_and_resumes() -> None:
    rig = await Rig().begin()
    branch, other = rig.tenure.branch(), rig.tenure.branch()
    first, second = CursorClosed("deleted"), CursorClosed("again")
    branch.end(first)
    branch.end(second)
    assert (branch.error, other.error, rig.tenure.error) == (first, None, None)
    with pytest.raises(CursorClosed, match="deleted"):
        await branch.write([Put(KEY, b"a")])
    assert rig.writes == []
    await other.write([Put(KEY, b"a")])
    branch.resume()
    await branch.write([Put(KEY, b"b")])
    closed = ManagedLedgerClosed("closed")
    rig.tenure.end(closed)
    assert branch.error is other.error is closed
    branch.resume()
    for one in (branch, other, rig.tenure):
        with pytest.raises(ManagedLedgerClosed):
            one.check()
        with pytest.raises(ManagedLedgerClosed):
            await one.create({}, lambda _: Put(KEY, b"c"))
    assert await rig.stored() == b"b"


async def test_a_tenure_holds_while_it_has_the_claim_that_it_began_with() -> None:
    rig = await Rig().begin()
    assert await rig.tenure.holds()
    await rig.owner.split()
    assert await rig.tenure.holds()
    rig.tenure.end(ManagedLedgerClosed("closed"))
    assert not await rig.tenure.holds()
    rig = await Rig().begin()
    await rig.owner.claim()
    assert not await rig.tenure.holds()
    with pytest.raises(ManagedLedgerFenced, match="claimed anew"):
        await rig.tenure.write([Put(KEY, b"a")])
    assert rig.writes == []
    rig.owner.owned = False
    with pytest.raises(ManagedLedgerFenced):
        await rig.tenure.holds()


@pytest.mark.parametrize(
    ("change", "confirmed"),
    [
        (lambda _rig: turns(1), True),
        (lambda rig: rig.owner.split(), True),
        (lambda rig: rig.store.put(CLAIM, b"theirs"), False),
        (lambda rig: rig.store.delete(CLAIM), False),
    ],
)
async def test_a_claim_is_confirmed_by_the_store(
    change: Callable[[Rig], "asyncio.Future[object]"], confirmed: bool
) -> None:
    rig = await Rig().begin()
    outdated = rig.owner.revision
    await change(rig)
    if confirmed:
        rig.owner.outdated = [outdated]  # the guard says it before it knows
        await rig.tenure.confirm()
        await rig.tenure.write([Put(KEY, b"a")])
    else:
        with pytest.raises(ManagedLedgerFenced, match="not owned here any more"):
            await rig.tenure.confirm()
        with pytest.raises(ManagedLedgerFenced):
            await rig.tenure.write([Put(KEY, b"a")])
        with pytest.raises(ManagedLedgerFenced):
            await rig.tenure.create({}, lambda _: Put(KEY, b"a"))
        assert await rig.stored() is None


async def test_a_tenure_that_ends_while_the_guard_waits_writes_nothing() -> None:
    rig = await Rig().begin()
    guard = rig.owner.guard

    async def waits(name: str):
        rig.tenure.end(ManagedLedgerClosed("closed"))
        return await guard(name)

    rig.tenure._context = rig.context = type(rig.context)(
        **{name: getattr(rig.context, name) for name in rig.context.__slots__} | {"guard": waits}
    )
    with pytest.raises(ManagedLedgerClosed):
        await rig.tenure.write([Put(KEY, b"a")])
    assert rig.writes == []

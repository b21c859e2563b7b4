"""The full check: the ledgers that it lists, when it is due, and where it continues."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.brokers import View
from tests.unit.autorecovery.stage import LEASE_S
from tests.unit.autorecovery.test_auditing import GRACE_MS, Rig, rigged

from magnetar.autorecovery.answers import NO_ENTRY, NOT_REGISTERED
from magnetar.autorecovery.audit.full_check import CHECK_DUE_INTERVAL_S, has_new_damage
from magnetar.autorecovery.check.ledger_check import Finding
from magnetar.autorecovery.check.prover import PRESENT, Verdict
from magnetar.autorecovery.lease_lock import LockLost
from magnetar.autorecovery.records import (
    AUDITOR_KEY,
    CHECK_STATE_KEY,
    LOST_RANGES_MAX,
    Answer,
    CheckState,
    LostEntries,
    RecordState,
    UnderReplicated,
    decode_check,
)
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.api import BookieIdentity
from magnetar.metadata.store import Record


def test_a_full_check_lists_wrong_copies_and_keeps_existing_records() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 2, 3, 4):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        for ledger_id in (1, 2):
            rig.stage.by_name["a"].drop(ledger_id, 3)
        kept = await rig.put(UnderReplicated(2, ("known",), 5))
        rig.stage.by_name["b"].corrupt.add((4, 1))
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        now = rig.now_ms()
        records = await rig.listed()
        assert set(records) == {1, 2, 4}
        assert records[2] == kept
        assert records[1] == UnderReplicated(
            1,
            ("too few proven copies: 1 entries",),
            now,
            grace_until_ms=now + GRACE_MS,
            prove=True,
        )
        assert await rig.checked() == CheckState(77)
        assert (rig.stats.checks, rig.stats.ledgers_checked) == (1, 4)

    rigged(test)


def test_a_ledger_is_not_listed_because_a_bookie_is_silent() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        rig.stage.by_name["a"].silent = True
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        assert await rig.listed() == {}

    rigged(test)


def test_a_full_check_continues_at_the_saved_page() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 1001, 2001):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        saved: list[CheckState] = []
        transact = rig.view.transact

        async def noted(operations: Any) -> int:
            saved.append(decode_check(operations[1].value))
            return await transact(operations)

        rig.view.transact = noted  # type: ignore[method-assign]
        await rig.check._check_from(CheckState(77, 1), rig.lock)
        assert rig.stats.ledgers_checked == 2
        assert saved == [CheckState(77, 2), CheckState(77, 3), CheckState(77)]

    rigged(test)


@pytest.mark.parametrize("key", [AUDITOR_KEY, CHECK_STATE_KEY])
def test_a_full_check_ends_when_another_node_is_the_auditor(key: str) -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        rig.stage.by_name["a"].drop(1, 3)
        await rig.store.put(key, b"{}")
        if key == AUDITOR_KEY:
            with pytest.raises(LockLost, match="another node is the auditor"):
                await rig.check._check_from(CheckState(77, 0), rig.lock)
            with pytest.raises(LockLost, match="another node is the auditor"):
                await rig.check._save(CheckState(77, 0), rig.lock)
            assert await rig.listed() == {}
            return
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        assert set(await rig.listed()) == {1}

    rigged(test)


def test_a_new_cluster_is_checked_after_each_interval() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        begun = rig.now_ms()
        rig.check.start_if_due(rig.lock)
        await asyncio.sleep(1)
        assert await rig.checked() == CheckState(begun)
        for looked, checks in ((CHECK_DUE_INTERVAL_S - 2, 0), (3, 0), (1000, 1), (1, 1), (1000, 2)):
            await asyncio.sleep(looked)
            rig.check.start_if_due(rig.lock)
            await asyncio.sleep(0.1)
            assert rig.stats.checks == checks
        assert (await rig.checked()).begun_ms > begun

    rigged(test, AutorecoverySettings(check_interval_s=900))


def test_a_cancelled_check_is_finished_before_the_next_interval() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 1001):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        begun = rig.now_ms() - 5
        await rig.check._save(CheckState(begun, 1), rig.lock)
        rig.check.start_if_due(rig.lock)
        await asyncio.sleep(1)
        assert rig.stats.ledgers_checked == 1
        assert await rig.checked() == CheckState(begun)

    rigged(test)


def test_no_interval_disables_the_check_and_a_cancelled_check_restarts() -> None:
    async def test(rig: Rig) -> None:
        rig.check.start_if_due(rig.lock)
        await asyncio.sleep(1)
        assert await rig.store.get(CHECK_STATE_KEY) is None

    rigged(test, AutorecoverySettings(check_interval_s=0))

    async def interrupted(rig: Rig) -> None:
        rig.check.start_if_due(rig.lock)
        rig.check.cancel()
        await asyncio.sleep(1)
        assert await rig.store.get(CHECK_STATE_KEY) is None
        await asyncio.sleep(CHECK_DUE_INTERVAL_S)
        rig.view.cut_off = True
        rig.check.start_if_due(rig.lock)
        await asyncio.sleep(1)
        assert rig.stats.failures == 1
        rig.view.cut_off = False
        await asyncio.sleep(CHECK_DUE_INTERVAL_S)
        rig.check.start_if_due(rig.lock)
        await asyncio.sleep(1)
        assert await rig.store.get(CHECK_STATE_KEY) is not None

    rigged(interrupted)


def test_a_check_ends_when_its_node_is_no_longer_the_auditor() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.check._save(CheckState(rig.now_ms(), 0), rig.lock)

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        rig.stage.by_name["a"].prove_entries = never  # type: ignore[method-assign]
        rig.auditor.start()
        await asyncio.sleep(5)
        task = rig.check._task
        assert task is not None
        assert not task.done()
        rig.view.renewing = False
        await asyncio.sleep(LEASE_S + 2)
        assert task.cancelled()
        assert rig.check._task is None

    rigged(test)


def test_a_lost_ledger_with_new_damage_is_requeued() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 2, 3):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
            for name in "ab":
                rig.stage.by_name[name].drop(ledger_id, 3)
        rig.stage.by_name["a"].drop(1, 7)
        for name in "ab":
            rig.stage.by_name[name].corrupt.add((2, 4))
        named = (LostEntries(3, 3, ()),)
        listed = [
            await rig.put(UnderReplicated(ledger_id, (), 5, state=RecordState.LOST, lost=named))
            for ledger_id in (1, 2, 3)
        ]
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        records = await rig.listed()
        for ledger_id in (1, 2):
            assert records[ledger_id] == UnderReplicated(ledger_id, (), 5, prove=True)
        assert records[3] == listed[2], "its record names all damage"

    rigged(test)


NAMED = LostEntries(4, 5, ())
DROPPED = (Answer(BookieIdentity("a", "1"), NO_ENTRY), Answer(BookieIdentity("b", "1"), PRESENT))
ABSENT = (Answer(BookieIdentity("a", "1"), NOT_REGISTERED),)


@pytest.mark.parametrize(
    ("finding", "is_new"),
    [
        (Finding(4, 5, Verdict.LOST, ()), False),
        (Finding(3, 5, Verdict.LOST, ()), True),
        (Finding(4, 6, Verdict.DIVERGENT, ()), True),
        (Finding(7, 7, Verdict.TOO_FEW, DROPPED), True),
        (Finding(5, 5, Verdict.TOO_FEW, DROPPED), False),
        (Finding(7, 7, Verdict.TOO_FEW, ABSENT), False),
        (Finding(7, 7, Verdict.UNPROVEN, ABSENT), False),
    ],
)
def test_damage_is_new_if_the_record_does_not_name_it(finding: Finding, is_new: bool) -> None:
    lost = UnderReplicated(1, (), 5, state=RecordState.LOST, lost=(NAMED,))
    assert has_new_damage(lost, [finding]) is is_new
    assert not has_new_damage(msgspec.structs.replace(lost, state=RecordState.PARKED), [finding])


def test_a_full_record_says_nothing_about_entries_after_its_last_range() -> None:
    ranges = tuple(LostEntries(3 * number, 3 * number, ()) for number in range(LOST_RANGES_MAX))
    record = UnderReplicated(1, (), 5, state=RecordState.LOST, lost=ranges)
    end = ranges[-1].last
    assert not has_new_damage(record, [Finding(end, end + 5, Verdict.LOST, ())])
    assert not has_new_damage(record, [Finding(end + 3, end + 5, Verdict.LOST, ())])
    assert has_new_damage(record, [Finding(end - 1, end - 1, Verdict.LOST, ())])
    shorter = msgspec.structs.replace(record, lost=ranges[:-1])
    assert has_new_damage(shorter, [Finding(end + 3, end + 5, Verdict.LOST, ())])


class Overtaking(View):
    """A view of the store in which another node writes a record after each read of it."""

    def __init__(self, rig: Rig, record: UnderReplicated) -> None:
        super().__init__(rig.store)
        self._rig = rig
        self._record = record

    async def get(self, key: str) -> Record | None:
        stored = await super().get(key)
        await self._rig.put(self._record)
        return stored


def test_a_record_that_changed_meanwhile_is_left_to_its_writer() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        for name in "ab":
            rig.stage.by_name[name].drop(1, 3)
        await rig.put(UnderReplicated(1, (), 5, state=RecordState.LOST))
        report = await rig.stage.check(1)
        changed = UnderReplicated(1, (), 5, attempts=3, state=RecordState.LOST)
        rig.check._store = Overtaking(rig, changed)
        await rig.check._requeue(report, rig.lock)
        assert await rig.listed() == {1: changed}

    rigged(test)

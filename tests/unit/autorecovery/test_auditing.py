"""The auditor: which records it lists, updates and deletes, and which it does not change."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from tests.support.brokers import View
from tests.unit.autorecovery.stage import LEASE_S, Stage, run

from magnetar.autorecovery.audit.auditor import Auditor
from magnetar.autorecovery.audit.full_check import FullCheck
from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.members import Members, MemberWatch
from magnetar.autorecovery.pages import LedgerPages, newest_ledger
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AUDITOR_KEY,
    CHECK_STATE_KEY,
    CheckState,
    LostEntries,
    RecordState,
    UnderReplicated,
    decode_audit,
    decode_check,
    record_key,
)
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.errors import MetadataError
from magnetar.ledger.metadata import LEDGER_ID_KEY, LedgerState, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession

SETTINGS = AutorecoverySettings()
GRACE_MS = int(SETTINGS.open_ledger_grace_s * 1000)


class Rig:
    """An auditor that holds its key and runs only when a test calls it."""

    def __init__(self, settings: AutorecoverySettings = SETTINGS) -> None:
        self.stage = Stage("a", "b", "c", "d", settings=settings)
        self.view = View(self.stage.store)
        clock = self.stage.clock
        self.session = MetadataSession(self.view, LEASE_S, clock, "auditor")
        self.stats = AutorecoveryStats(clock, 100)
        prover = Prover(self.stage.bookies, ByteRate(0, clock), 30.0)
        checker = LedgerChecker(self.stage.bookies, prover, None, 30.0)
        self.members = MemberWatch(self.stage.bookies, clock, settings.lost_bookie_delay_s)
        self.check = FullCheck(self.view, checker, clock, settings, self.stats)
        self.lock = LeaseLock(self.view, self.session, AUDITOR_KEY, "auditor")
        self.auditor = Auditor(
            self.view,
            self.session,
            self.members,
            self.check,
            clock,
            settings,
            self.stats,
            "auditor",
            Random(1),
        )

    @property
    def store(self) -> Any:
        return self.stage.store

    def now_ms(self) -> int:
        return self.stage.clock.now_ms()

    async def audit(self, *lost: str, changed: bool = False) -> list[str]:
        """Runs one audit, with these bookies missing."""
        living = {
            info.identity: info
            for info in self.stage.bookies.living()
            if info.identity.bookie_id not in lost
        }
        return await self.auditor.audit(Members(living), bookies_changed=changed)

    async def put(self, record: UnderReplicated) -> UnderReplicated:
        await self.store.put(record_key(record.ledger_id), encode(record))
        return record

    async def listed(self) -> dict[int, UnderReplicated]:
        return await self.stage.listed()

    async def checked(self) -> CheckState:
        record = await self.store.get(CHECK_STATE_KEY)
        return decode_check(record.value)


def rigged(
    test: Callable[[Rig], Coroutine[Any, Any, None]], settings: AutorecoverySettings = SETTINGS
) -> None:
    async def main() -> None:
        rig = Rig(settings)
        await rig.session.start()
        assert await rig.auditor._lock.take()
        assert await rig.lock.take(), "the same process, and the same token"
        await asyncio.sleep(100)
        await test(rig)
        await rig.auditor.stop()
        await rig.session.stop()
        await rig.stage.stop()

    run(main)


def test_a_ledger_that_lacks_copies_is_listed_with_its_reasons_and_is_due_at_once() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.stage.ledger(2, (0, "b c"), last=9)
        await rig.stage.ledger(3, (0, "a b"), state=LedgerState.OPEN)
        await rig.audit("a")
        now = rig.now_ms()
        assert await rig.listed() == {
            1: UnderReplicated(1, ("bookie a (1) is gone",), now, grace_until_ms=now),
            3: UnderReplicated(
                3,
                ("bookie a (1) is gone",),
                now,
                not_before_ms=now + GRACE_MS,
                grace_until_ms=now + GRACE_MS,
            ),
        }
        assert (rig.stats.audits, rig.stats.ledgers_audited) == (1, 3)

    rigged(test)


def test_repaired_and_deleted_ledgers_leave_the_list() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 2, 1500):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        await rig.audit("a")
        assert set(await rig.listed()) == {1, 2, 1500}
        await rig.store.delete(ledger_key(2))
        await rig.store.delete(ledger_key(1500))
        await rig.store.put("/underreplicated/other/x", b"of another release")
        await rig.audit()
        assert [record.key for record in await rig.store.list("/underreplicated/")] == [
            "/underreplicated/other/x"
        ]

    rigged(test)


def test_ledgers_whose_copies_must_be_read_stay_on_the_list() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 2, 3):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        await rig.put(UnderReplicated(1, ("copies",), 5, prove=True))
        lost = (LostEntries(1, 2, ()),)
        await rig.put(UnderReplicated(2, ("gone",), 5, RecordState.LOST, lost=lost))
        await rig.put(UnderReplicated(3, ("gone",), 5, RecordState.PARKED))
        await rig.audit()
        assert {ledger_id: record.state for ledger_id, record in (await rig.listed()).items()} == {
            1: RecordState.WAITING,
            2: RecordState.LOST,
        }

    rigged(test)


def test_an_unreadable_record_of_the_list_is_rewritten_with_prove_set() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.stage.ledger(2, (0, "a b"), last=9)
        for ledger_id in (1, 2):
            await rig.store.put(record_key(ledger_id), b"of another release")
        await rig.store.put(ledger_key(2), b"")
        unreadable = await rig.audit()
        assert unreadable == [ledger_key(2)]
        record = await rig.store.get(record_key(1))
        assert record is not None
        assert (await rig.store.get(record_key(2))).value == b"of another release"
        await rig.store.delete(record_key(2))
        record = (await rig.listed())[1]
        assert record.prove
        assert record.reasons == ("its entry in this list could not be read",)
        await rig.store.put(record_key(1), b"of another release")
        await rig.audit("a")
        assert (await rig.listed())[1].reasons == ("bookie a (1) is gone",)
        assert (await rig.listed())[1].prove

    rigged(test)


def test_a_listed_ledger_gets_its_new_reasons_and_a_new_grace_time() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        await rig.stage.ledger(2, (0, "a b"), state=LedgerState.OPEN)
        await rig.audit("a")
        first = await rig.listed()
        await asyncio.sleep(7)
        await rig.audit("a")
        assert await rig.listed() == first, "nothing is new"
        await rig.audit("a", "b")
        again = await rig.listed()
        reasons = ("bookie a (1) is gone", "bookie b (1) is gone")
        assert {record.reasons for record in again.values()} == {reasons}
        assert again[1].grace_until_ms == rig.now_ms()
        assert again[2].grace_until_ms == rig.now_ms() + GRACE_MS
        assert {record.since_ms for record in again.values()} == {first[1].since_ms}

    rigged(test)


def test_the_audit_requeues_parked_ledgers_after_the_bookies_changed() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        reasons = ("bookie a (1) is gone",)
        lost = await rig.put(UnderReplicated(1, reasons, 5, RecordState.LOST, attempts=3))
        await rig.audit("a")
        assert (await rig.listed())[1] == lost
        await rig.audit("a", changed=True)
        record = (await rig.listed())[1]
        assert (record.state, record.attempts, record.prove) == (RecordState.WAITING, 0, True)

    rigged(test)


def test_an_audit_retries_a_conflicting_transaction_record_by_record() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in range(1, 6):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=1)
        transact = rig.view.transact

        async def overtaken(operations: Any) -> int:
            rig.view.transact = transact  # type: ignore[method-assign]
            await rig.put(UnderReplicated(3, ("by a worker",), 5))
            return await transact(operations)

        rig.view.transact = overtaken  # type: ignore[method-assign]
        await rig.audit("a")
        listed = await rig.listed()
        assert set(listed) == {1, 2, 3, 4, 5}
        assert listed[3].reasons == ("by a worker",)

    rigged(test)


def test_an_audit_ends_when_another_node_is_the_auditor() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.store.put(AUDITOR_KEY, b"another")
        with pytest.raises(LockLost, match="another node is the auditor"):
            await rig.audit("a")
        assert await rig.listed() == {}

    rigged(test)


def test_an_audit_is_due_after_a_change_and_after_its_interval() -> None:
    async def test(rig: Rig) -> None:
        rig.auditor.start()
        await asyncio.sleep(10)
        assert rig.stats.audits == 1
        assert rig.stats.auditor
        state = decode_audit((await rig.store.get(AUDIT_STATE_KEY)).value)
        assert state.digest == rig.members.observe().digest
        await asyncio.sleep(100)
        assert rig.stats.audits == 1
        rig.stage.bookies.drain(rig.stage.by_name["a"])
        await asyncio.sleep(2)
        assert rig.stats.audits == 2
        await asyncio.sleep(497)
        assert rig.stats.audits == 2
        await asyncio.sleep(3)
        assert rig.stats.audits == 3

    rigged(test, AutorecoverySettings(audit_interval_s=500, check_interval_s=0))


def test_the_keys_of_unreadable_records_are_kept_with_the_audit() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=1)
        await rig.store.put(ledger_key(1), b"")
        rig.auditor.start()
        await asyncio.sleep(10)
        state = decode_audit((await rig.store.get(AUDIT_STATE_KEY)).value)
        assert (state.unreadable, state.unreadable_keys) == (1, (ledger_key(1),))
        assert state.audited_ms > 0

    rigged(test)


def test_an_auditor_continues_after_the_store_failed() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=1)
        rig.view.unanswered = [False] * 3
        rig.auditor.start()
        await asyncio.sleep(30)
        assert rig.stats.failures > 0
        assert rig.stats.audits == 1
        await rig.auditor.stop()
        assert not rig.stats.auditor
        assert await rig.store.get(AUDITOR_KEY) is None, "another node becomes the auditor at once"

    rigged(test, AutorecoverySettings(check_interval_s=0))


def test_a_walk_reads_each_page_once_and_the_newest_again() -> None:
    async def test(rig: Rig) -> None:
        pages = LedgerPages(rig.store)

        async def walked() -> list[tuple[int, int]]:
            return [(page.number, len(page.ledgers)) async for page in pages.walk()]

        assert await walked() == []
        for ledger_id in (1, 999, 1000, 3999):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=1)
        assert await walked() == [(0, 2), (1, 1), (3, 1)]
        await rig.stage.ledger(3500, (0, "a b"), last=1)
        await rig.stage.ledger(4000, (0, "a b"), last=1)
        await rig.store.delete(ledger_key(1000))
        assert await walked() == [(0, 2), (3, 2), (4, 1)]
        await rig.store.put(LEDGER_ID_KEY, b"no number")
        with pytest.raises(MetadataError, match="holds no number"):
            await newest_ledger(rig.store)

    rigged(test)

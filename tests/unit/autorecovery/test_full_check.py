"""The check of every copy: what it lists, when it is due, and where it goes on."""

import asyncio
from typing import Any

import pytest
from tests.unit.autorecovery.stage import LEASE_S
from tests.unit.autorecovery.test_auditing import GRACE_MS, Rig, rigged

from magnetar.autorecovery.full_check import LOOK_AGAIN_S
from magnetar.autorecovery.lease_lock import LockLost
from magnetar.autorecovery.records import (
    AUDITOR_KEY,
    CHECK_STATE_KEY,
    CheckState,
    UnderReplicated,
    decode_check,
)
from magnetar.autorecovery.settings import AutorecoverySettings


def test_a_full_check_lists_what_no_record_shows_and_leaves_what_is_listed() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 2, 3, 4):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        for ledger_id in (1, 2):
            rig.stage.by_name["a"].drop(ledger_id, 3)
        kept = await rig.put(UnderReplicated(2, ("known",), 5))
        rig.stage.by_name["b"].corrupt.add((4, 1))
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        now = rig.now_ms()
        found = await rig.listed()
        assert set(found) == {1, 2, 4}
        assert found[2] == kept
        assert found[1] == UnderReplicated(
            1,
            ("too few proven copies: 1 entries",),
            now,
            grace_until_ms=now + GRACE_MS,
            prove=True,
        )
        assert await rig.checked() == CheckState(77)
        assert (rig.stats.checks, rig.stats.ledgers_checked) == (1, 4)

    rigged(test)


def test_a_ledger_whose_bookie_is_silent_is_not_listed_for_it() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        rig.stage.by_name["a"].silent = True
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        assert await rig.listed() == {}

    rigged(test)


def test_a_full_check_goes_on_at_the_page_where_it_was_left() -> None:
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
def test_a_full_check_ends_when_another_is_the_auditor(key: str) -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        rig.stage.by_name["a"].drop(1, 3)
        await rig.store.put(key, b"{}")
        if key == AUDITOR_KEY:
            with pytest.raises(LockLost, match="another is the auditor"):
                await rig.check._check_from(CheckState(77, 0), rig.lock)
            with pytest.raises(LockLost, match="another is the auditor"):
                await rig.check._save(CheckState(77, 0), rig.lock)
            assert await rig.listed() == {}
            return
        await rig.check._check_from(CheckState(77, 0), rig.lock)
        assert set(await rig.listed()) == {1}

    rigged(test)


def test_a_new_cluster_is_checked_after_the_interval_and_then_each_time() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=9)
        begun = rig.now_ms()
        rig.check.look(rig.lock)
        await asyncio.sleep(1)
        assert await rig.checked() == CheckState(begun)
        for looked, checks in ((LOOK_AGAIN_S - 2, 0), (3, 0), (1000, 1), (1, 1), (1000, 2)):
            await asyncio.sleep(looked)
            rig.check.look(rig.lock)
            await asyncio.sleep(0.1)
            assert rig.stats.checks == checks
        assert (await rig.checked()).begun_ms > begun

    rigged(test, AutorecoverySettings(check_interval_s=900))


def test_a_check_that_was_cut_off_is_finished_whatever_its_interval() -> None:
    async def test(rig: Rig) -> None:
        for ledger_id in (1, 1001):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=9)
        begun = rig.now_ms() - 5
        await rig.check._save(CheckState(begun, 1), rig.lock)
        rig.check.look(rig.lock)
        await asyncio.sleep(1)
        assert rig.stats.ledgers_checked == 1
        assert await rig.checked() == CheckState(begun)

    rigged(test)


def test_no_interval_is_no_check_and_an_interrupted_one_begins_again() -> None:
    async def test(rig: Rig) -> None:
        rig.check.look(rig.lock)
        await asyncio.sleep(1)
        assert await rig.store.get(CHECK_STATE_KEY) is None

    rigged(test, AutorecoverySettings(check_interval_s=0))

    async def interrupted(rig: Rig) -> None:
        rig.check.look(rig.lock)
        rig.check.interrupt()
        await asyncio.sleep(1)
        assert await rig.store.get(CHECK_STATE_KEY) is None
        await asyncio.sleep(LOOK_AGAIN_S)
        rig.view.cut_off = True
        rig.check.look(rig.lock)
        await asyncio.sleep(1)
        assert rig.stats.failures == 1
        rig.view.cut_off = False
        await asyncio.sleep(LOOK_AGAIN_S)
        rig.check.look(rig.lock)
        await asyncio.sleep(1)
        assert await rig.store.get(CHECK_STATE_KEY) is not None

    rigged(interrupted)


def test_a_check_ends_with_the_office_of_its_auditor() -> None:
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

"""Records and locks that change between a read and the write that relies on it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run
from tests.unit.autorecovery.test_auditing import Rig, rigged
from tests.unit.autorecovery.test_drain_worker import spoil
from tests.unit.autorecovery.test_lease_lock import KEY, Holder, with_two
from tests.unit.autorecovery.test_restoring import Rig as WorkerRig

from magnetar.autorecovery.audit import auditor
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AuditState,
    CheckState,
    RecordState,
    UnderReplicated,
    decode_audit,
    decode_check,
    lock_key,
    record_key,
)
from magnetar.autorecovery.repair.next_step import Outcome, OutcomeKind
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import MetadataUnavailable, Operation, Record


def test_releasing_a_lock_that_was_not_granted_keeps_the_other_holders_key() -> None:
    async def test(store: MemoryStore, first: Holder, second: Holder) -> None:
        first.view.unanswered = [False]
        with pytest.raises(MetadataUnavailable):
            await first.lock.take()
        assert await second.lock.take()
        await first.lock.release()
        assert await store.get(KEY) is not None
        assert second.lock.held

    with_two(test)


def test_a_key_of_a_former_lease_is_not_held_with_the_next() -> None:
    """The key is deleted at any moment, with its own lease."""

    async def test(store: MemoryStore, first: Holder, _second: Holder) -> None:
        assert await first.lock.take()
        record = await store.get(KEY)
        assert record is not None
        await store.put(KEY, record.value)  # it outlives the lease
        first.view.renewing = False
        await asyncio.sleep(2 * LEASE_S)
        first.view.renewing = True
        await asyncio.sleep(2 * LEASE_S)
        assert first.session.valid
        assert not await first.lock.take()
        assert not first.lock.held

    with_two(test)


def test_a_lock_is_not_taken_if_the_lease_ends_before_the_answer() -> None:
    async def test(store: MemoryStore, first: Holder, _second: Holder) -> None:
        put = first.view.put

        async def late(key: str, value: bytes, **how: Any) -> int:
            revision = await put(key, value, **how)
            first.view.renewing = False
            await asyncio.sleep(LEASE_S)
            return revision

        first.view.put = late  # type: ignore[method-assign]
        assert not await first.lock.take()

    with_two(test)


@pytest.mark.parametrize("state", ["whole again", "lacking", "deleted"])
def test_the_auditor_leaves_a_record_that_a_worker_has_just_written(state: str) -> None:
    async def test(rig: Rig) -> None:
        if state != "deleted":
            await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.put(UnderReplicated(1, ("parked",), 1, RecordState.PARKED))
        written = UnderReplicated(1, ("a worker's",), 2, attempts=3)
        transact = rig.view.transact
        overtaken: list[UnderReplicated] = []

        async def late(operations: Sequence[Operation]) -> int:
            if not overtaken:
                overtaken.append(await rig.put(written))
            return await transact(operations)

        rig.view.transact = late  # type: ignore[method-assign]
        await rig.audit(*("a" if state == "lacking" else ""), changed=True)
        assert overtaken
        assert await rig.listed() == {1: written}

    rigged(test)


def test_a_worker_leaves_a_record_that_the_auditor_wrote_during_the_attempt() -> None:
    async def main() -> None:
        rig = WorkerRig("a", "b")
        await rig.session.start()
        await rig.ready()
        await rig.stage.store.put(record_key(1), encode(UnderReplicated(1, ("gone",), 0)))
        written = UnderReplicated(1, ("gone", "late"), 0, grace_until_ms=7)

        async def overtaken(record: UnderReplicated, check_lock: object) -> Outcome:
            await rig.stage.store.put(record_key(1), encode(written))
            return Outcome(OutcomeKind.FAILED, "in vain")

        rig.replicator.restore = overtaken  # type: ignore[method-assign]
        await rig.worker._attempt_under_lock(1)
        assert await rig.stage.listed() == {1: written}
        await rig.worker.stop()
        await rig.session.stop()

    run(main)


def test_an_attempt_whose_lock_was_taken_over_changes_nothing() -> None:
    async def main() -> None:
        rig = WorkerRig("a", "b")
        await rig.session.start()
        await rig.ready()
        record = UnderReplicated(1, ("gone",), 0)
        await rig.stage.store.put(record_key(1), encode(record))

        async def robbed(record: UnderReplicated, check_lock: object) -> Outcome:
            await rig.stage.store.put(lock_key(1), b"another")
            return Outcome(OutcomeKind.REPAIRED)

        rig.replicator.restore = robbed  # type: ignore[method-assign]
        await rig.worker._attempt_under_lock(1)
        await rig.worker.stop()
        assert await rig.stage.listed() == {1: record}
        assert rig.stats.outcomes["lock lost"] == 1
        lock = await rig.stage.store.get(lock_key(1))
        assert lock is not None
        assert lock.value == b"another"
        await rig.session.stop()

    run(main)


async def audited(rig: Rig) -> AuditState:
    record: Record | None = await rig.store.get(AUDIT_STATE_KEY)
    assert record is not None
    return decode_audit(record.value)


def test_an_audit_counts_all_unreadable_records_and_names_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auditor, "UNREADABLE_KEYS_MAX", 2)

    async def test(rig: Rig) -> None:
        for ledger_id in (1, 2, 3, 4):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=0)
            if ledger_id > 1:
                await spoil(rig.stage, ledger_id)
        await rig.auditor._audit_if_due(rig.members.observe())
        state = await audited(rig)
        assert (state.unreadable, len(state.unreadable_keys)) == (3, 2)

    rigged(test)


def test_an_audit_saves_the_digest_of_the_bookies_that_it_saw() -> None:
    async def test(rig: Rig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=0)
        members = rig.members.observe()
        children = rig.view.children

        async def late(prefix: str) -> Sequence[str]:
            rig.stage.bookies.add(f"late{len(rig.stage.bookies.living())}")
            return await children(prefix)

        rig.view.children = late  # type: ignore[method-assign]
        await rig.auditor._audit_if_due(members)
        assert (await audited(rig)).digest == members.digest
        assert rig.members.observe().digest != members.digest, "the next comparison starts an audit"

    rigged(test)


def test_nothing_is_listed_while_no_bookie_is_seen() -> None:
    """The auditor itself may be cut off: every ledger would seem lost."""

    async def main() -> None:
        stage = Stage("a", "b")
        await stage.ledger(1, (0, "a b"), last=3)
        node = await stage.node()
        await asyncio.sleep(100)
        audits = node.stats.audits
        for bookie in stage.bookies.up():
            stage.bookies.lose(bookie)
        await asyncio.sleep(3600)
        assert await stage.listed() == {}
        assert node.stats.audits == audits
        await stage.stop()

    run(main)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"audited_ms": "x"}', b'{"begun_ms": "x"}'])
def test_an_unreadable_state_counts_as_never_audited_or_checked(value: bytes) -> None:
    """Everything is read again, which is safe."""
    assert decode_audit(value) == AuditState()
    assert decode_check(value) == CheckState()

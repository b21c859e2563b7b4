"""Nodes that stop or are idle, and stores that do not answer."""

import asyncio
from typing import Any

import pytest
from tests.unit.autorecovery.stage import LEASE_S, Stage, run
from tests.unit.autorecovery.test_auditing import Rig as AuditRig
from tests.unit.autorecovery.test_auditing import rigged
from tests.unit.autorecovery.test_drain_worker import Checker, ask, ended, wait_for, working
from tests.unit.autorecovery.test_former_copies import end, moved
from tests.unit.autorecovery.test_restoring import Rig

from magnetar.autorecovery.audit import auditor
from magnetar.autorecovery.check.ledger_check import LedgerReport
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain import worker as drain_worker
from magnetar.autorecovery.drain.drains import DrainState, drain_key, drain_lock_key
from magnetar.autorecovery.drain.worker import IDLE_INTERVAL_S, _DrainRun
from magnetar.autorecovery.lease_lock import LeaseLock
from magnetar.autorecovery.records import (
    AUDITOR_KEY,
    RECORDS_PREFIX,
    RecordState,
    UnderReplicated,
    lock_key,
    record_key,
)
from magnetar.autorecovery.repair import former_copies, worker
from magnetar.autorecovery.repair.former_copies import FormerCopies
from magnetar.autorecovery.repair.next_step import OutcomeKind
from magnetar.autorecovery.service import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.registration import draining_key
from magnetar.core.errors import MetadataError
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession


async def never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


def tasks_of(owner: str) -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(owner)]


def test_a_stopped_node_releases_the_auditor_key_and_leaves_no_task_or_listener() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=9)
        node = await stage.node()
        await asyncio.sleep(20)
        assert node.stats.auditor
        assert await stage.store.get(AUDITOR_KEY) is not None
        assert len(tasks_of("autorecovery")) >= 4
        assert stage.bookies._listeners
        begun = asyncio.get_running_loop().time()
        for _ in range(2):
            await node.stop()
            assert not node.stats.auditor
            assert await stage.store.get(AUDITOR_KEY) is None
            assert tasks_of("autorecovery") == []
            assert stage.bookies._listeners == []
        assert asyncio.get_running_loop().time() == begun, "nothing is waited for"
        audits = node.stats.audits
        stage.bookies.lose(stage.by_name["a"])
        await asyncio.sleep(100)
        assert (node.stats.audits, await stage.listed()) == (audits, {})
        await stage.stop()

    run(main)


def test_another_node_continues_after_a_node_stops_during_an_attempt() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=9)
        node = await stage.node()
        await asyncio.sleep(20)
        source = stage.by_name["b"]
        read = source.read_entries
        source.read_entries = never  # type: ignore[method-assign]
        stage.bookies.lose(stage.by_name["a"])
        async with asyncio.timeout(100):
            while await stage.store.get(lock_key(1)) is None:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
        await node.stop()
        await stage.sessions[0].stop()
        source.read_entries = read  # type: ignore[method-assign]
        await stage.node(1)
        await asyncio.sleep(60)
        assert await stage.listed() == {}
        assert (await stage.check(1)).verdict == "healthy"
        await stage.stop()

    run(main)


def test_an_auditor_key_that_cannot_be_released_expires() -> None:
    async def test(rig: AuditRig) -> None:
        rig.auditor.start()
        await asyncio.sleep(5)
        assert rig.stats.auditor
        loop = asyncio.get_running_loop()
        delete, begun = rig.view.delete, loop.time()
        rig.view.delete = never  # type: ignore[method-assign]
        await rig.auditor.stop()
        assert loop.time() - begun == pytest.approx(auditor.LEAD_RETRY_S)
        assert not rig.stats.auditor
        rig.view.delete = delete

    rigged(test)


@pytest.mark.parametrize("error", [MetadataError("away"), None])
def test_a_node_that_was_never_the_auditor_releases_no_key(error: MetadataError | None) -> None:
    async def main() -> None:
        stage = Stage("a")
        first, second = await stage.node(0), await stage.node(1)
        await asyncio.sleep(20)
        assert (first.stats.auditor, second.stats.auditor) == (True, False)
        holder = await stage.store.get(AUDITOR_KEY)
        if error is not None:

            async def fails(*_: Any, **__: Any) -> Any:
                raise error

            stage.store.delete = fails  # type: ignore[method-assign]
        await second.stop()
        assert await stage.store.get(AUDITOR_KEY) == holder
        await first.stop()  # also if the store refuses

    run(main)


def test_a_node_without_an_established_session_reports_that_it_is_idle() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=9)
        session = MetadataSession(stage.store, LEASE_S, stage.clock, "late")
        settings = AutorecoverySettings(stalled_after_s=60)
        node = Autorecovery(stage.store, stage.bookies, session, stage.clock, settings)
        await stage.store.put(record_key(1), encode(UnderReplicated(1, ("gone",), 0)))
        await node.start()
        await asyncio.sleep(100)
        health = node.health()
        assert (health.ok, health.reason) == (True, "idle: its session is not established")
        assert await stage.store.get(AUDITOR_KEY) is None
        assert await stage.store.get(lock_key(1)) is None
        assert set(await stage.listed()) == {1}
        await session.start()
        await asyncio.sleep(20)
        assert node.stats.auditor
        assert await stage.listed() == {}
        assert node.health().reason == "nothing is due"
        await node.stop()
        await session.stop()
        await stage.stop()

    run(main)


@pytest.mark.parametrize("state", [DrainState.REMOVABLE, DrainState.REFUSED])
def test_a_drain_that_another_node_has_ended_is_not_changed(state: DrainState) -> None:
    """The drain ended between the read of the list and the lock."""

    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=3)
        session = MetadataSession(stage.store, LEASE_S, stage.clock, "late")
        await session.start()
        drain = drains.Drain("a", state, 5, 6, refused="why")
        await stage.store.put(drain_key("a"), encode(drain))
        await stage.store.put(draining_key("a"), b"5")
        lock = LeaseLock(stage.store, session, drain_lock_key("a"), "late")
        assert await lock.take()
        checker = Checker(stage)
        await _DrainRun(stage.store, stage.bookies, checker, stage.clock, "a", lock).execute()
        assert await drains.read(stage.store, "a") == drain
        assert checker.proven == []
        await session.stop()
        await stage.stop()

    run(main)


@pytest.mark.parametrize("silent", ["transact", "get"])
def test_a_silent_store_delays_other_drains_no_longer_than_the_timeout(
    silent: str,
) -> None:
    """The store does not answer while the drain of a deleted mark is to be deleted."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        drain = drains.Drain("a", DrainState.REMOVABLE, 5, incarnations=("1",))
        await stage.store.put(drain_key("a"), encode(drain))
        answers = getattr(stage.store, silent)
        setattr(stage.store, silent, never)
        async with working(stage):
            await ask(stage, "d") if silent == "transact" else None
            await asyncio.sleep(IDLE_INTERVAL_S)
            setattr(stage.store, silent, answers)
            await ask(stage, "d")
            await asyncio.sleep(drain_worker.STORE_TIMEOUT_S + 2 * IDLE_INTERVAL_S)
            assert await drains.read(stage.store, "a") is None
            ended = await wait_for(
                stage, lambda drain: drain is not None and drain.state.ended, "d"
            )
            assert ended is not None

    run(main)


def test_the_list_of_drains_is_read_again_if_the_store_does_not_answer() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        answers = stage.store.children
        stage.store.children = never  # type: ignore[method-assign]
        async with working(stage):
            await ask(stage)
            await asyncio.sleep(IDLE_INTERVAL_S)
            stage.store.children = answers  # type: ignore[method-assign]
            await asyncio.sleep(drain_worker.STORE_TIMEOUT_S + 2 * IDLE_INTERVAL_S)
            assert (await ended(stage)).state is DrainState.REMOVABLE

    run(main)


@pytest.mark.parametrize("ends_by", ["time", "session"])
def test_a_round_over_former_copies_is_bounded_and_the_next_continues(
    ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each proof takes a second; a round has two seconds, or its session ends by then."""
    monkeypatch.setattr(former_copies, "ROUND_S_MAX", 2.0)

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1, 2, 3, 4)
        assert await collector.once() == []
        proven: list[int] = []
        checker = Checker(stage)
        check = checker.check

        async def slowly(metadata: LedgerMetadata, **how: Any) -> LedgerReport:
            proven.append(metadata.ledger_id)
            await asyncio.sleep(1)
            if ends_by == "session" and len(proven) == 1:
                await collector.session.stop()
            return await check(metadata, **how)

        checker.check = slowly  # type: ignore[method-assign]
        former = collector.garbage.former
        assert isinstance(former, FormerCopies)
        former._checker = checker
        deleted = await collector.once()
        if ends_by == "session":
            assert (proven, deleted) == ([1], [])
        else:
            assert (proven, deleted) == ([1, 2], [1, 2])
            assert await collector.once() == [3, 4]
            await collector.session.stop()
        await stage.stop()

    run(main)


def test_a_proof_that_does_not_end_proves_nothing() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, 1, 2)
        assert await collector.once() == []
        checker = Checker(stage)
        check = checker.check

        async def silent(metadata: LedgerMetadata, **how: Any) -> LedgerReport:
            return await (never() if metadata.ledger_id == 1 else check(metadata, **how))

        checker.check = silent  # type: ignore[method-assign]
        former = collector.garbage.former
        assert isinstance(former, FormerCopies)
        former._checker = checker
        begun = asyncio.get_running_loop().time()
        assert await collector.once() == []
        waited_s = asyncio.get_running_loop().time() - begun
        assert waited_s == pytest.approx(former_copies.PROOF_TIMEOUT_S)
        assert await collector.once() == [2], "the next round continues behind it"
        assert await stage.by_name["a"].list_ledgers() == [1]
        await end(collector)

    run(main)


@pytest.mark.parametrize("ready", [2, 3])
def test_a_bounded_number_of_former_copies_is_locked_at_once(
    ready: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_copies, "LOCKED_AT_ONCE_MAX", 2)

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        collector = await moved(stage, *range(1, ready + 1))
        assert await collector.once() == []
        most = 0
        put = stage.store.put

        async def counted(key: str, value: bytes, **how: Any) -> int:
            nonlocal most
            revision = await put(key, value, **how)
            keys = [lock_key(ledger_id) for ledger_id in range(1, ready + 1)]
            held = [key for key in keys if await stage.store.get(key) is not None]
            most = max(most, len(held))
            return revision

        stage.store.put = counted  # type: ignore[method-assign]
        assert await collector.once() == list(range(1, ready + 1))
        assert most == 2
        await end(collector)

    run(main)


def test_an_ensemble_that_cannot_be_restored_is_tried_once_per_attempt() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c", "d")
        await rig.stage.ledger(1, (0, "a b"), (4, "a c"), (8, "a c"), last=11)
        await rig.ready()
        await rig.lose("a")
        silent = rig.stage.by_name["b"]
        silent.silent = True
        reads: list[int] = []
        read = silent.read_entries

        async def noted(ledger_id: int, first: int, last: int, **how: Any) -> Any:
            reads.append(first)
            return await read(ledger_id, first, last, **how)

        silent.read_entries = noted  # type: ignore[method-assign]
        outcome = await rig.restore()
        assert outcome.kind is OutcomeKind.FAILED
        assert "entry 0 could not be read" in outcome.detail
        assert len(reads) == 1, "although the others were put right after it"
        assert outcome.entries == 8

    run(main)


def test_a_node_knows_how_many_ledgers_are_listed_due_parked_and_lost() -> None:
    async def main() -> None:
        stage = Stage("a", "b", settings=AutorecoverySettings(ledgers_at_once=1))
        states = {2: RecordState.PARKED, 3: RecordState.PARKED, 4: RecordState.LOST}
        later_ms = stage.clock.now_ms() + 100_000
        for ledger_id in range(1, 7):
            await stage.ledger(ledger_id, (0, "a b"), last=1)
            state = states.get(ledger_id, RecordState.WAITING)
            wait_ms = later_ms if ledger_id == 5 else 0
            record = UnderReplicated(
                ledger_id, ("gone",), 0, state, not_before_ms=wait_ms, prove=True
            )
            await stage.store.put(record_key(ledger_id), encode(record))
        for ledger_id in (1, 6):
            await stage.store.put(lock_key(ledger_id), b"another node")
        rig = Rig("a", "b")
        rig.view.store = stage.store
        await rig.session.start()
        wait_s = await rig.worker._round()
        stats = rig.stats
        assert (stats.listed, stats.due, stats.parked, stats.lost) == (6, 2, 2, 1)
        assert wait_s == worker.HELD_RETRY_S
        assert rig.stats.health().reason == "2 ledgers are due"
        await rig.worker.stop()
        await rig.session.stop()
        await stage.stop()

    run(main)


def test_an_audit_ignores_keys_that_are_no_page_of_the_list() -> None:
    async def test(rig: AuditRig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=1)
        for name in ("-1", "x", "1x"):
            await rig.store.put(f"{RECORDS_PREFIX}{name}/1", b"of another release")
        await rig.audit("a")
        for name in ("-1", "x", "1x"):
            assert await rig.store.get(f"{RECORDS_PREFIX}{name}/1") is not None

    rigged(test)

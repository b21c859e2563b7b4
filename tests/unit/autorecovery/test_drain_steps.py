"""Drains step by step: the remaining ledgers, the refusals, and the record."""

import asyncio

import pytest
from tests.unit.autorecovery.stage import Stage, run
from tests.unit.autorecovery.test_drain_worker import Checker, ask, ended, spoil, wait_for, working

from magnetar.autorecovery.check.check_all import CheckSummary
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.decommission import (
    MARK_SETTLES_S,
    NAMED_MAX,
    Decommission,
    InTheWay,
    Remaining,
    _share,
)
from magnetar.autorecovery.drain.drains import Drain, DrainState, drain_key, drain_lock_key
from magnetar.autorecovery.drain.worker import STUCK_POLLS_MAX
from magnetar.autorecovery.records import (
    AUDITOR_KEY,
    LostEntries,
    RecordState,
    UnderReplicated,
    record_key,
)
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.bookie.registration import draining_key, known_key
from magnetar.core.errors import MetadataError
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import Put


def job_on(stage: Stage, name: str = "a") -> Decommission:
    return Decommission(stage.store, stage.bookies, stage.clock, name)


async def listed(stage: Stage, record: UnderReplicated) -> None:
    await stage.store.put(record_key(record.ledger_id), encode(record))


@pytest.mark.parametrize(
    ("bookies", "quorum", "length", "counted", "share"),
    [
        (3, 2, 300, 0, 200),
        (3, 2, 0, 300, 200),
        (3, 2, 300, 900, 200),
        (2, 3, 300, 0, 300),
        (1, 1, 7, 0, 7),
    ],
)
def test_the_bytes_of_a_ledger_on_one_bookie(
    bookies: int, quorum: int, length: int, counted: int, share: int
) -> None:
    names = tuple(BookieIdentity(f"b{number}", "1") for number in range(bookies))
    metadata = LedgerMetadata(
        1,
        (Ensemble(0, names[:1]), Ensemble(5, names)),
        0,
        write_quorum=quorum,
        length_bytes=length,
        counted_bytes=counted,
    )
    assert _share(metadata) == share


def test_the_preflight_counts_the_ledgers_and_names_the_widest() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b"), last=3, changes={"length_bytes": 100})
        await stage.ledger(2, (0, "a b c"), last=3, changes={"length_bytes": 300})
        await stage.ledger(3, (0, "b c d"), last=3, changes={"length_bytes": 7})
        first = await job_on(stage).preflight()
        assert (first.ledgers, first.bytes) == (2, 100 + 200)
        assert (first.living, first.others, first.needed, first.problem) == (True, 3, 3, "")
        stage.by_name["b"].full = True
        stage.bookies.drain(stage.by_name["c"])
        first = await job_on(stage).preflight()
        assert first.problem == (
            "1 writable bookies would be left, and ledger 2 needs 3. Add a bookie first"
        )
        # A wide ledger on other bookies also counts, although this bookie holds nothing of it.
        await stage.ledger(4, (0, "b c d"), last=3, write_quorum=4)
        first = await job_on(stage).preflight()
        assert "ledger 4 needs 4" in first.problem
        await spoil(stage, 3)
        assert (await job_on(stage).preflight()).unreadable == (ledger_key(3),)
        await stage.stop()

    run(main)


def test_an_id_that_was_once_registered_is_known() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        await stage.store.put(known_key(BookieIdentity("old", "1")), b"{}")
        assert (await job_on(stage, "old").preflight()).problem == ""
        assert (await job_on(stage, "ol").preflight()).problem == (
            "no bookie ol was ever registered"
        )
        await stage.stop()

    run(main)


def test_remaining_ledgers_are_counted_and_named_the_hopeless_first() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        for ledger_id in (1, 2, 3):
            await stage.ledger(ledger_id, (0, "a b"), last=3, changes={"length_bytes": 10})
        await stage.ledger(1004, (0, "a b"), state=LedgerState.OPEN)
        await listed(stage, UnderReplicated(2, ("gone",), 0, RecordState.PARKED, detail="full"))
        lost = (LostEntries(1, 2, ()), LostEntries(4, 4, ()))
        await listed(stage, UnderReplicated(3, ("gone",), 0, RecordState.LOST, lost=lost))
        await listed(stage, UnderReplicated(1, ("gone", "late"), 0))
        job = job_on(stage)
        left = await job.remaining()
        assert (left.ledgers, left.bytes, left.hopeless, left.open) == (4, 30, 2, 1)
        assert not left.audited
        assert left.in_the_way == [
            InTheWay(2, "parked: full", hopeless=True),
            InTheWay(3, "entries 1-2, 4-4 have no readable copy", hopeless=True),
            InTheWay(1, "waiting: gone; late", hopeless=False),
            InTheWay(
                1004,
                "open: its writer replaces the bookie, or it is closed after the grace time",
                hopeless=False,
            ),
        ]
        assert job.held == {1, 2, 3, 1004}
        await stage.store.put(AUDITOR_KEY, b"x")
        for ledger_id in (1, 2, 3, 1004):
            await stage.ledger(ledger_id, (0, "b c"), last=3)
        left = await job.remaining()
        assert left == Remaining()
        assert left.audited
        assert job.held == {1, 2, 3, 1004}, "ledgers that were moved must be proven, too"
        await stage.stop()

    run(main)


def test_the_named_ledgers_are_bounded_and_include_hopeless_ledgers() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        for ledger_id in range(1, NAMED_MAX + 4):
            await stage.ledger(ledger_id, (0, "a b"), last=0)
        last = NAMED_MAX + 3
        await listed(stage, UnderReplicated(last, ("gone",), 0, RecordState.PARKED))
        left = await job_on(stage).remaining()
        assert left.ledgers == last
        assert len(left.in_the_way) == NAMED_MAX + 1
        assert left.in_the_way[0].ledger_id == last
        await stage.stop()

    run(main)


def test_an_existing_mark_is_kept_and_a_rewritten_mark_is_detected() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        job = job_on(stage)
        assert not await job.is_still_marked()
        await job.mark()
        record = await stage.store.get(draining_key("a"))
        await job.mark()
        assert await stage.store.get(draining_key("a")) == record
        assert await job.is_still_marked()
        await stage.store.delete(draining_key("a"))
        assert not await job.is_still_marked()
        await job_on(stage).mark()
        assert not await job.is_still_marked()
        await stage.stop()

    run(main)


def test_late_arrivals_are_read_after_brokers_have_seen_the_mark() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        job = job_on(stage)
        await job.mark()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        await job.late_arrivals()
        assert asyncio.get_running_loop().time() - began == MARK_SETTLES_S
        await job.late_arrivals()
        assert asyncio.get_running_loop().time() - began == MARK_SETTLES_S
        await stage.ledger(5, (0, "a b"), last=3)
        left = await job.late_arrivals()
        assert (left.ledgers, left.unproven) == (1, 1)
        await stage.stop()

    run(main)


def test_a_living_bookie_must_list_its_ledgers() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "b c"), last=3)
        bookie, job, asked = stage.by_name["a"], job_on(stage), []

        async def refused() -> list[int]:
            asked.append(asyncio.get_running_loop().time())
            raise BookieError("busy")

        bookie.list_ledgers = refused  # type: ignore[method-assign]
        with pytest.raises(BookieError, match="busy"):
            await job.late_arrivals()
        assert asked[-1] - asked[0] == 30
        asking = asyncio.ensure_future(job.late_arrivals())
        await asyncio.sleep(5)
        assert not asking.done()
        stage.bookies.lose(bookie)
        await asking
        assert (await job.preflight()).ledgers == 0
        await stage.stop()

    run(main)


def test_unreadable_records_refuse_the_proof() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "b c"), last=3)
        await spoil(stage, 1)
        job = job_on(stage)
        assert (await job.remaining()).unreadable == [ledger_key(1)]
        summary = await job.prove(Checker(stage), lambda _: None)
        assert summary == CheckSummary(unreadable=[ledger_key(1)])
        assert summary.exit_code == 1
        await stage.stop()

    run(main)


def test_a_request_continues_a_drain_under_way_and_restarts_an_ended_drain() -> None:
    async def main() -> None:
        stage = Stage("a")
        first = await drains.request(stage.store, "a", 5, "by me")
        assert first == Drain("a", DrainState.REQUESTED, 5, 5, "by me")
        assert await drains.request(stage.store, "a", 6, "again") == first
        for state in (DrainState.COPYING, DrainState.PROVING):
            drain = Drain("a", state, 5, ledgers_total=7)
            await stage.store.put(drain_key("a"), encode(drain))
            assert await drains.request(stage.store, "a", 6, "again") == drain
        for state in (DrainState.REMOVABLE, DrainState.REFUSED):
            ended = Drain("a", state, 5, proven_ms=7, refused="x", incarnations=("1",))
            await stage.store.put(drain_key("a"), encode(ended))
            again = Drain("a", DrainState.REQUESTED, 6, 6, "again")
            assert await drains.request(stage.store, "a", 6, "again") == again
            assert await drains.read_all(stage.store) == [again]
        await stage.store.put(drain_key("b"), b"")
        assert await drains.read_all(stage.store) == [again]
        with pytest.raises(MetadataError, match="/bookies-drains/b holds no drain"):
            await drains.read(stage.store, "b")
        await stage.stop()

    run(main)


@pytest.mark.parametrize("changed", ["nothing", "record", "mark"])
def test_a_drain_without_its_mark_is_deleted_unless_something_changed(changed: str) -> None:
    async def main() -> None:
        stage = Stage("a")
        drain = await drains.request(stage.store, "a", 5, "")
        ((_, revision),) = await drains.read_with_revisions(stage.store)
        if changed == "record":
            await stage.store.put(drain_key("a"), encode(drain))
        elif changed == "mark":
            await stage.store.put(draining_key("a"), b"1")
        await drains.delete_unmarked(stage.store, drain, revision)
        assert (await drains.read(stage.store, "a") is None) is (changed == "nothing")
        await stage.stop()

    run(main)


def test_a_refusal_names_a_bounded_number_of_ledgers() -> None:
    ways = [InTheWay(ledger_id, "x", hopeless=False) for ledger_id in range(NAMED_MAX + 1)]
    refused = drains.refusal(Drain("a", DrainState.PROVING, 5, 6), "why", ways, 9)
    assert (refused.state, refused.refused, refused.updated_ms) == (DrainState.REFUSED, "why", 9)
    assert refused.in_the_way == tuple(ways[:NAMED_MAX])
    assert drains.update_operation(refused, 3) == Put(drain_key("a"), encode(refused), 3)


def test_a_successful_drain_reports_the_ledgers_it_moved_and_proved() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in (1, 2):
            await stage.ledger(ledger_id, (0, "a b"), last=3, changes={"length_bytes": 20})
        await stage.store.put(known_key(stage.by_name["a"].identity), b"{}")
        async with working(stage):
            await ask(stage)
            copying = await wait_for(
                stage, lambda drain: drain is not None and drain.state is DrainState.COPYING
            )
            assert copying is not None
            assert (copying.ledgers_total, copying.bytes_total) == (2, 40)
            assert (copying.ledgers_left, copying.bytes_left) == (2, 40)
            await stage.ledger(1, (0, "c b"), last=3, changes={"length_bytes": 20})
            await wait_for(stage, lambda drain: drain is not None and drain.ledgers_left == 1)
            drain = await drains.read(stage.store, "a")
            assert drain is not None
            assert (drain.bytes_left, drain.ledgers_total) == (20, 2)
            assert [ledger.ledger_id for ledger in drain.in_the_way] == [2]
            await stage.ledger(2, (0, "c b"), last=3)
            done = await ended(stage)
            assert (done.state, done.ledgers_proven, done.ledgers_left) == (
                DrainState.REMOVABLE,
                2,
                0,
            )
            assert (done.bytes_left, done.in_the_way) == (0, ())
            assert done.incarnations == ("1",)
            assert copying.updated_ms < done.proven_ms <= done.updated_ms <= stage.clock.now_ms()
            assert await stage.store.get(drain_lock_key("a")) is None

    run(main)


def test_a_failed_proof_refuses_the_drain_and_lists_the_ledgers_for_repair() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in (1, 2, 3, 4):
            await stage.ledger(ledger_id, (0, "b c"), last=3, changes={"stripe_entries": 256})
            stage.by_name["a"].put(ledger_id, 0, b"left", 0)
        stage.by_name["b"].drop(1, 2)
        for name in "bc":
            stage.by_name[name].drop(3, 1)
        listed_before = UnderReplicated(3, ("known",), 5)
        await listed(stage, listed_before)
        async with working(stage):
            await ask(stage)
            done = await ended(stage)
            assert done.state is DrainState.REFUSED
            assert done.ledgers_proven == 2
            assert done.ledgers_left == 2
            assert done.refused.startswith("2 ledgers have too few copies that could be proven")
            assert done.in_the_way == (
                InTheWay(
                    1,
                    "too few proven copies: 1 of 4 entries; entries 2 to 2: "
                    "b: no such entry, c: present",
                    hopeless=False,
                ),
                InTheWay(
                    3,
                    "lost: 1 of 4 entries; entries 1 to 1: b: no such entry, c: no such entry",
                    hopeless=True,
                ),
            )
            records = await stage.listed()
            assert set(records) == {1, 3}
            assert records[3] == listed_before
            assert records[1].prove
            assert records[1].reasons == (
                "too few proven copies: 1 entries, found by the proof of a drain",
            )

    run(main)


def test_an_unproven_ledger_is_not_listed_for_repair() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c"), last=3)
        stage.by_name["a"].put(1, 0, b"left", 0)
        stage.by_name["b"].silent = True
        async with working(stage):
            await ask(stage)
            done = await ended(stage)
            assert done.state is DrainState.REFUSED
            assert [ledger.ledger_id for ledger in done.in_the_way] == [1]
            assert await stage.listed() == {}

    run(main)


def test_a_drain_is_refused_before_it_starts_if_too_few_bookies_would_be_left() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        await stage.ledger(1, (0, "a b"), last=3)
        async with working(stage):
            await ask(stage)
            done = await ended(stage)
            assert done.state is DrainState.REFUSED
            assert "1 writable bookies would be left" in done.refused
            assert [ledger.ledger_id for ledger in done.in_the_way] == [1]
            assert await stage.store.get(draining_key("a")) is None

    run(main)


def test_a_bookie_that_was_never_registered_is_removable() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        async with working(stage):
            await drains.request(stage.store, "nobody", 0, "")
            done = await wait_for(
                stage, lambda drain: drain is not None and drain.state.ended, "nobody"
            )
            assert done is not None
            assert done.state is DrainState.REMOVABLE

    run(main)


def test_a_drain_is_refused_after_autorecovery_has_given_up_on_all_its_ledgers() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        for ledger_id in (1, 2):
            await stage.ledger(ledger_id, (0, "a b"), last=3)
        await listed(stage, UnderReplicated(1, ("gone",), 0, RecordState.PARKED))
        async with working(stage):
            await ask(stage)
            await asyncio.sleep(10 * STUCK_POLLS_MAX)
            drain = await drains.read(stage.store, "a")
            assert drain is not None
            assert drain.state is DrainState.COPYING, "one of the two ledgers may still be moved"
            await listed(stage, UnderReplicated(2, ("gone",), 0, RecordState.LOST))
            done = await ended(stage)
            assert done.refused.startswith("autorecovery cannot move the remaining ledgers.")
            assert done.ledgers_left == 2

    run(main)

"""The rollover of ledgers, the queue of a topic meanwhile, and its stats."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns

from magnetar.bookie.api import BookieError, LedgerFenced
from magnetar.core.errors import MagnetarError, PersistenceError, TopicTerminated
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.appender import REPLAYS_MAX
from magnetar.managed_ledger.errors import (
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    TooManyPendingBytes,
)
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.store import MetadataUnavailable, Operation

SETTINGS = ManagedLedgerSettings(
    rollover_entries_max=4, rollover_bytes_max=100, rollover_ms_min=1000, rollover_ms_max=5000
)


async def opened(stage: Stage, settings: ManagedLedgerSettings = SETTINGS) -> ManagedLedger:
    return await stage.factory(settings).open(NAME)


@pytest.mark.parametrize(
    ("groups", "age_ms", "rolled"),
    [
        ([1, 1, 1], 1000, False),  # one entry less
        ([1, 1, 1, 1], 1000, True),
        ([4], 1000, True),
        ([4], 999, False),  # not old enough
        ([9], 999, False),
        ([1], 4999, False),
        ([1], 5000, True),
        ([1], 9999, True),
    ],
)
async def test_a_ledger_is_rolled_over_at_its_bound_and_age(
    groups: list[int], age_ms: int, rolled: bool
) -> None:
    stage = Stage()
    ledger = await opened(stage)
    for count in groups:
        first, _ = await publish(ledger, *[b"x"] * count)
    stage.clock.advance(age_ms)
    second, entry_id = await publish(ledger, b"next")
    assert (second != first) is rolled
    assert entry_id == (0 if rolled else sum(groups))
    assert [info.entries for info in ledger.ledgers] == (
        [sum(groups), 1] if rolled else [sum(groups) + 1]
    )


@pytest.mark.parametrize(("size", "rolled"), [(99, False), (100, True), (101, True)])
async def test_a_ledger_is_rolled_over_at_its_bytes(size: int, rolled: bool) -> None:
    stage = Stage()
    ledger = await opened(stage)
    first, _ = await publish(ledger, b"x" * size)
    stage.clock.advance(1000)
    second, _ = await publish(ledger, b"x")
    assert (second != first) is rolled


async def test_what_is_sent_and_not_confirmed_counts_towards_the_bound() -> None:
    stage = Stage()
    ledger = await opened(stage)
    await publish(ledger, b"x")
    stage.clock.advance(1000)
    stage.bookie.hold = True
    appends = Appends()
    for count in (2, 1, 1):
        ledger.append([b"x"] * count, appends)
    await turns()
    assert appends.results == []
    stage.bookie.release()
    results = await appends.wait(3)
    assert [first for _, first, _ in results] == [1, 3, 0]
    assert [info.entries for info in ledger.ledgers] == [4, 1]


async def test_a_new_ledger_begins_with_a_count_and_an_age_of_its_own() -> None:
    stage = Stage()
    ledger = await opened(stage)
    for _ in range(3):
        await publish(ledger, *[b"x"] * 4)
        stage.clock.advance(999)
        await publish(ledger, b"x")
        stage.clock.advance(1)
    assert [info.entries for info in ledger.ledgers] == [5, 5, 5]


async def test_an_old_ledger_without_entries_is_not_rolled_over() -> None:
    stage = Stage()
    ledger = await opened(stage)
    stage.bookie.refuse = lambda _ledger, _ids: True
    stage.bookie.hold = True
    appends = Appends()
    ledger.append([b"x"], appends)
    await turns(60)
    stage.clock.advance(10_000)
    assert ledger.state == "LedgerOpened"
    ledger.roll_if_aged()  # the request is not answered
    assert ledger.state == "LedgerOpened"


async def test_an_idle_ledger_is_closed_at_its_age_and_not_before() -> None:
    stage = Stage()
    ledger = await opened(stage)
    ledger.roll_if_aged()
    await publish(ledger, b"x")
    stage.clock.advance(4999)
    ledger.roll_if_aged()
    assert ledger.state == "LedgerOpened"
    stage.clock.advance(1)
    ledger.roll_if_aged()
    assert ledger.state == "ClosingLedger"
    await ledger.roll_over()
    assert ledger.state == "ClosedLedger"
    assert ledger.ledgers[0].closed_ms
    ledger.roll_if_aged()
    assert ledger.state == "ClosedLedger"
    await ledger.close()
    ledger.roll_if_aged()
    assert ledger.state == "Closed"


async def test_states_and_pending_groups_are_shown_as_they_are() -> None:
    stage = Stage()
    ledger = await opened(stage)
    assert (ledger.state, ledger.pending_appends) == ("ClosedLedger", 0)
    appends = Appends()
    ledger.append([b"a"], appends)
    assert (ledger.state, ledger.pending_appends) == ("CreatingLedger", 1)
    await appends.wait(1)
    await turns()
    assert (ledger.state, ledger.pending_appends) == ("LedgerOpened", 0)
    stage.bookie.hold = True
    ledger.append([b"b"], appends)
    ledger.append([b"c"], appends)
    rolling = asyncio.ensure_future(ledger.roll_over())
    await turns()
    ledger.append([b"d"], appends)
    assert (ledger.state, ledger.pending_appends) == ("ClosingLedger", 3)
    stage.bookie.release()
    await appends.wait(4)
    await rolling
    assert ledger.pending_appends == 0
    assert [first for _, first, _ in appends.results] == [0, 1, 2, 0]


async def test_a_topic_queues_up_to_its_bound_of_bytes() -> None:
    stage = Stage()
    ledger = await opened(stage, ManagedLedgerSettings(pending_bytes_max=10))
    appends = Appends()
    for label, size in enumerate((4, 6, 1, 0)):
        ledger.append([b"x" * size], appends.labelled(label))
    results = await appends.wait(4)
    assert [(label, type(error)) for label, _, error in results] == [
        (0, type(None)),
        (1, type(None)),
        (2, TooManyPendingBytes),
        (3, TooManyPendingBytes),  # it must not overtake the one that did not fit
    ]
    assert await publish(ledger, b"x" * 20) == (results[0][0] or ledger.ledgers[0].ledger_id, 2)


async def test_what_was_queued_and_sent_is_not_counted_any_more() -> None:
    stage = Stage()
    ledger = await opened(stage, ManagedLedgerSettings(pending_bytes_max=10))
    for _ in range(4):
        appends = Appends()
        ledger.append([b"x" * 10], appends)
        ((_, first, error),) = await appends.wait(1)
        assert (first, error) == (0, None)
        await ledger.roll_over()
    assert len(ledger.ledgers) == 4


async def test_a_listener_that_was_removed_hears_no_more() -> None:
    stage = Stage()
    ledger = await opened(stage)
    heard: list[str] = []

    def one() -> None:
        heard.append("one")

    def other() -> None:
        heard.append("other")

    ledger.add_append_listener(one)
    ledger.add_append_listener(other)
    await publish(ledger, b"x")
    assert heard == []  # on the next turn of the loop
    await turns()
    assert heard == ["one", "other"]
    ledger.remove_append_listener(one)
    ledger.remove_append_listener(one)
    await publish(ledger, b"x")
    await turns()
    assert heard == ["one", "other", "other"]


@pytest.mark.parametrize("failures", range(REPLAYS_MAX + 2))
async def test_a_group_is_tried_in_so_many_ledgers(failures: int) -> None:
    stage = Stage()
    ledger = await opened(stage)
    tried: set[int] = set()

    def refuse(ledger_id: int, _ids: Sequence[int]) -> bool:
        tried.add(ledger_id)
        return len(tried) <= failures

    stage.bookie.refuse = refuse
    if failures <= REPLAYS_MAX:
        assert await publish(ledger, b"x") == (max(tried), 0)
        assert len(tried) == failures + 1
        # A ledger that accepted entries resets the count.
        await ledger.roll_over()
        tried.clear()
        assert await publish(ledger, b"x") == (max(tried), 0)
        assert len(tried) == failures + 1
    else:
        with pytest.raises(BookieError, match="refused"):
            await publish(ledger, b"x")
        assert len(tried) == REPLAYS_MAX + 1
        stage.bookie.refuse = lambda _ledger, _ids: False
        _, first = await publish(ledger, b"x")
        assert first == 0
    assert ledger.pending_appends == 0


def test_without_a_ledger_in_time_everything_that_waits_fails_and_says_so() -> None:
    async def main() -> None:
        stage = Stage()
        ledger = await opened(stage)
        transact = stage.store.transact

        async def never(_: Sequence[Operation]) -> int:
            await asyncio.sleep(1e6)
            raise MetadataUnavailable("never")

        stage.store.transact = never  # type: ignore[assignment,method-assign]
        appends = Appends()
        begun = asyncio.get_running_loop().time()
        for _ in range(2):
            ledger.append([b"x"], appends)
        results = await appends.wait(2)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(30, abs=1)
        for _, first, error in results:
            assert first == -1
            assert isinstance(error, PersistenceError)
            assert "no ledger within 30 s" in str(error)
        stage.store.transact = transact  # type: ignore[method-assign]
        assert ledger.pending_appends == 0

    virtual(main())


async def test_after_its_end_a_topic_refuses_on_the_next_turn_with_the_reason() -> None:
    for end, error, state in (
        ("close", ManagedLedgerClosed, "Closed"),
        ("terminate", TopicTerminated, "Terminated"),
        ("fence", ManagedLedgerFenced, "Fenced"),
    ):
        stage = Stage()
        ledger = await opened(stage)
        await publish(ledger, b"x")
        if end == "fence":
            ledger.cursor_fenced(ManagedLedgerFenced("another owner"))
            await ledger.close()
        else:
            await getattr(ledger, end)()
        assert ledger.state == state
        assert ledger.fenced is (end == "fence")
        assert ledger.terminated is (end == "terminate")
        appends = Appends()
        ledger.append([b"y"], appends)
        assert appends.results == []
        ((_, first, failure),) = await appends.wait(1)
        assert first == -1
        assert isinstance(failure, error)
        if end == "terminate":
            ledger.check_open()  # consumers drain it
        else:
            with pytest.raises(error):
                ledger.check_open()


async def test_a_terminated_topic_still_takes_cursors_and_none_after_its_close() -> None:
    stage = Stage()
    ledger = await opened(stage)
    ledger_id, _ = await publish(ledger, b"x")
    assert await ledger.terminate() == (ledger_id, 0)
    assert (await ledger.open_cursor("late", initial=EARLIEST)).backlog == 1
    assert await ledger.terminate() == (ledger_id, 0)
    await ledger.close()
    with pytest.raises((ManagedLedgerClosed, TopicTerminated)):
        await ledger.open_cursor("later")


async def test_a_ledger_that_another_owner_fenced_ends_the_instance_at_once() -> None:
    stage = Stage()
    ledger = await opened(stage)
    ledger_id, _ = await publish(ledger, b"x")
    told: list[str] = []
    ledger.when_fenced(lambda: told.append("fenced"))
    await stage.bookie.ledger_end(ledger_id, fence=True)
    appends = Appends()
    for _ in range(3):
        ledger.append([b"y"], appends)
    results = await appends.wait(3)
    assert all(isinstance(error, ManagedLedgerFenced) for _, _, error in results)
    assert told == ["fenced"]
    assert ledger.fenced
    assert isinstance(ledger.tenure.error, ManagedLedgerFenced)
    assert not isinstance(ledger.tenure.error, LedgerFenced)


@pytest.mark.parametrize("refused", range(REPLAYS_MAX + 1))
async def test_a_group_fails_as_fenced_once_its_instance_is_fenced_whatever_failed_before(
    refused: int,
) -> None:
    """Else its producer would be asked to try again here, beside the new owner."""
    stage = Stage()
    ledger = await opened(stage)
    ledgers: list[int] = []

    def refuse(ledger_id: int, _ids: Sequence[int]) -> bool:
        if ledger_id not in ledgers:
            ledgers.append(ledger_id)
        if len(ledgers) > refused:
            with suppress(StopIteration):
                stage.bookie.ledger_end(ledger_id, fence=True).send(None)
        return len(ledgers) <= refused

    stage.bookie.refuse = refuse
    answers: list[tuple[bool, MagnetarError | None]] = []
    done = asyncio.Event()

    def answered(_ledger_id: int, _first: int, error: MagnetarError | None) -> None:
        answers.append((ledger.fenced, error))
        if len(answers) == 2:
            done.set()

    for _ in range(2):
        ledger.append([b"x"], answered)
    await done.wait()
    assert [fenced for fenced, _ in answers] == [True, True]
    assert all(isinstance(error, ManagedLedgerFenced) for _, error in answers)
    assert len(ledgers) == refused + 1


async def test_the_first_end_of_an_instance_stays() -> None:
    stage = Stage()
    ledger = await opened(stage)
    await publish(ledger, b"x")
    told: list[str] = []
    ledger.when_fenced(lambda: told.append("fenced"))
    first = ManagedLedgerFenced("first")
    for error in (first, ManagedLedgerFenced("second")):
        ledger.cursor_fenced(error)
    assert told == ["fenced"]
    assert ledger.tenure.error is first
    appends = Appends()
    ledger.append([b"y"], appends)
    ((_, _, said),) = await appends.wait(1)
    assert said is first
    closed = await opened(Stage())
    await closed.close()
    closed.when_fenced(lambda: told.append("fenced"))
    closed.cursor_fenced(first)
    assert (closed.state, told) == ("Closed", ["fenced"])

"""Reads of a log with transactions, with one change of the broker at one exact request."""

import pytest
from tests.spark.transactional_log import Stream, World, reader_of, rows, world

from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.jobs.log.ledgers import topic_end, topic_log
from magnetar.jobs.log.topic_log import TopicLog
from magnetar.ledger.metadata import LEDGERS_PREFIX, ledger_key
from magnetar.managed_ledger.record import ABORTED_CURSOR

Steps = list[tuple[str, int]]
RECORD = "/transactions/0/"
LAST: Steps = [("plain", 0), ("plain", 0)]
"""The bookie knows from the next entry that one is confirmed."""


async def done(w: World, *steps: tuple[str, int]) -> None:
    for step in steps:
        await w.do(*step)


async def read(w: World) -> TopicLog:
    return await topic_log(reader_of(w), w.topic.name)


def found(log: TopicLog) -> list[Position]:
    return rows(log, EARLIEST, LATEST)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    "ends",
    [
        [("abort", 1)],
        [("abort", 1), ("apply", 1)],
        [("abort", 1), ("apply", 1), ("forget", 1)],
    ],
)
@pytest.mark.parametrize("key", [RECORD, ABORTED_CURSOR, "end of", "entries of"])
async def test_an_abort_during_a_read_never_shows_its_messages(
    key: str, ends: Steps, moved: bool
) -> None:
    async with world() as w:
        await done(w, ("plain", 0), ("send_in", 1), *LAST)
        w.before[key] = [*ends, *([("move", 1)] if moved else [])]
        log = await read(w)
        assert not w.before
        aborted = w.written[1][0]
        assert aborted not in found(log)
        assert found(log)[0] == w.written[0][0]
        assert log.end >= aborted if key != ABORTED_CURSOR else log.horizon == aborted


@pytest.mark.parametrize("key", ["end of", LEDGERS_PREFIX])
async def test_a_first_transaction_that_begins_during_a_read_holds_it_back(key: str) -> None:
    async with world() as w:
        await done(w, ("plain", 0))
        w.before[key] = [("send_in", 1), *LAST]
        log = await read(w)
        assert log.horizon == w.written[1][0]
        assert found(log) == [w.written[0][0]]
        await done(w, ("move", 0))
        assert await topic_end(reader_of(w), w.topic.name) == w.written[0][0]
        w.before["end of"] = [("commit", 1)]


async def test_the_end_of_a_topic_whose_first_transaction_begins_meanwhile_is_before_it() -> None:
    async with world() as w:
        await done(w, ("plain", 0))
        w.before["end of"] = [("send_in", 1), *LAST]
        assert await topic_end(reader_of(w), w.topic.name) == w.written[0][0]


async def test_ledgers_that_are_trimmed_during_a_read_do_not_count_as_aborted() -> None:
    async with world() as w:
        await done(w, ("plain", 0), ("roll", 0), ("send_in", 1), ("send_in", 2), *LAST)
        await done(w, ("abort", 1), ("apply", 1))
        first, second = w.written[0][0], w.written[1][0]
        w.trimmable = second  # T1's entry is acked on the cursor, too
        # The set's mark-delete passes the first ledger once that is trimmed.
        w.before[ABORTED_CURSOR] = [("trim", 0), ("abort", 2), ("apply", 2)]
        log = await read(w)
        aborted = w.topic.managed_ledger.aborted
        assert aborted is not None
        assert aborted.mark_delete > first
        assert log.trimmed_to.ledger_id == first.ledger_id
        assert [span.ledger_id for span in log.ledgers] == [second.ledger_id]
        await done(w, ("plain", 0), ("move", 0))
        assert found(await read(w)) == [at for at, number in w.written[3:] if number is None]


async def test_the_ledger_of_the_set_may_be_replaced_and_deleted_during_a_read() -> None:
    async with world() as w:
        for slot in (1, 2):
            await done(w, ("send_in", slot), ("abort", slot), ("apply", slot), ("forget", slot))
        await done(w, *LAST)
        aborted = w.topic.managed_ledger.aborted
        assert aborted is not None
        assert aborted.log is not None
        ledger_id = aborted.log.ledger_id
        w.before[ledger_key(ledger_id)] = [("roll_set", 0), ("plain", 0)]
        log = await read(w)
        assert not w.before
        assert aborted.log.ledger_id != ledger_id
        assert found(log) == [w.written[2][0]]


async def test_a_log_that_is_deleted_during_its_read_is_read_again() -> None:
    async with world() as w:
        await done(w, ("plain", 0), ("send_in", 1), *LAST)
        w.before[RECORD] = [("delete", 0)]
        log = await read(w)
        assert not log.exists
        assert await topic_end(reader_of(w), w.topic.name) == EARLIEST


async def test_a_stream_stands_before_an_open_transaction_and_continues_after_it() -> None:
    async with world() as w:
        stream = Stream(w)
        await done(w, ("plain", 0), ("send_in", 1), ("plain", 0), ("send_in", 2), ("roll", 0))
        await stream.trigger()
        assert stream.offset == w.written[0][0]
        await stream.trigger()
        assert stream.rows == [w.written[0][0]]
        await done(w, ("abort", 2), ("apply", 2), ("forget", 2), ("plain", 0))
        await stream.trigger()
        assert stream.rows == [w.written[0][0]]
        await done(w, ("commit", 1), ("apply", 1), ("forget", 1), ("move", 0))
        await stream.trigger()
        assert stream.rows == [w.written[number][0] for number in (0, 1, 2, 4)]
        assert stream.rows == w.visible()


async def test_a_stream_reads_the_entries_of_a_transaction_once_while_it_stays_open() -> None:
    async with world() as w:
        stream = Stream(w)
        await done(w, *[("plain", 0)] * 5, ("send_in", 1), ("send_in", 1), ("roll", 0))
        await stream.trigger()
        known = stream.settled[w.topic.name]
        assert known.to >= w.written[4][0]
        w.before["entries of"] = [("delete", 0)]
        await done(w, ("watermark", 0))
        await stream.trigger()
        assert stream.offset == w.written[4][0]

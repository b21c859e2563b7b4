"""Reads of a log with transactions, while the broker works, the topic moves, and records vanish."""

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.transactional_log import Stream, World, reader_of, rows, world

from magnetar.core.ids import EARLIEST, LATEST
from magnetar.jobs.log.ledgers import topic_log

SLOTS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.just(0)),
        st.tuples(
            st.sampled_from(["send_in", "send_in", "commit", "abort", "apply", "forget"]), SLOTS
        ),
        st.tuples(st.sampled_from(["abort_whole", "commit_whole"]), SLOTS),
        st.tuples(st.sampled_from(["watermark", "roll", "roll_set", "trim"]), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 1)),
    ),
    min_size=20,
    max_size=60,
)


def script(steps: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Spells out the ends of transactions, which otherwise rarely come in order."""
    spelled: list[tuple[str, int]] = []
    for what, number in steps:
        if what.endswith("_whole"):
            end = what.removesuffix("_whole")
            spelled += [(end, number), ("apply", number), ("forget", number)]
        else:
            spelled.append((what, number))
    return spelled


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 1 << 30))
def test_a_stream_reads_every_committed_message_once_and_in_order(
    steps: list[tuple[str, int]], seed: int
) -> None:
    async def run() -> None:
        async with world() as w:
            rng = Random(seed)
            w.steps = iter(script(steps))
            w.pace = lambda: rng.choice((0, 0, 0, 1, 1, 3))
            stream = Stream(w)
            for _ in range(6):
                await stream.trigger()
                assert stream.rows == w.visible()[: len(stream.rows)]
            w.pace = lambda: 0
            await w.rest()
            await w.do("move", 0)  # closes the ledger, so that its end is certain
            await stream.trigger()
            assert stream.rows == w.visible()
            await _repeated(stream)

    asyncio.run(run())


async def _repeated(stream: Stream) -> None:
    """A restarted query plans the same rows between the same offsets, as far as they are kept."""
    log = await topic_log(reader_of(stream.world), stream.world.topic.name)
    for start, end, found in stream.batches:
        if start >= log.trimmed_to:
            assert await stream.planned(start, end) == found


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 1 << 30))
def test_a_batch_read_has_what_was_visible_before_and_nothing_that_never_is(
    steps: list[tuple[str, int]], seed: int
) -> None:
    async def run() -> None:
        async with world() as w:
            rng = Random(seed)
            w.steps = iter(script(steps))
            for _ in range(4):
                w.pace = lambda: rng.randrange(8)
                await w.some("")
                await _check_read(w, rng)

    asyncio.run(run())


async def _check_read(w: World, rng: Random) -> None:
    w.pace = lambda: rng.choice((0, 0, 0, 1, 1, 3))
    before = w.visible()
    newest = max(w.written, default=(EARLIEST, None))[0]
    log = await topic_log(reader_of(w), w.topic.name)
    w.trimmable = log.end
    found = rows(log, EARLIEST, LATEST)
    after = [position for position in w.visible() if position <= log.end]
    kept = {span.ledger_id for span in log.ledgers}
    assert found == [position for position in after if position.ledger_id in kept]
    # The last entry of an open ledger may not be known to be confirmed yet.
    assert all(at <= log.end for at in before if at.ledger_id < newest.ledger_id)

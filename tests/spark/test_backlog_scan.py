"""The scan's counts for any entries and acknowledgments, against counting them singly."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.jobs.log.ranges import Range
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    DELAYED,
    SCANNED,
    SCHEMA,
    UNREAD,
    UNREAD_BY_KEY,
    KeySums,
)
from magnetar_spark.jobs.backlog.scan.plan import RUN_BYTES, RUNS_WANTED, ScanRange, View, sampled
from magnetar_spark.jobs.backlog.scan.scan import RangeScan

FIRST = 3
KEYS = ("", "a", "b")
MARKER = 10
NOW_MS = 1_795_300_000_000


@dataclass(frozen=True)
class Message:
    key: str
    value: bytes


@dataclass(frozen=True)
class Made:
    """An entry: a batch of messages, a single message, or a marker (no messages)."""

    messages: tuple[Message, ...]
    batched: bool

    def data(self, time_ms: int) -> bytes:
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=time_ms)
        if not self.messages:
            metadata.marker_type = MARKER
            return build_entry(metadata, b"")
        if self.batched:
            metadata.num_messages_in_batch = len(self.messages)
            return build_entry(metadata, build_batch([_single(each) for each in self.messages]))
        if self.messages[0].key:
            metadata.partition_key = self.messages[0].key
        return build_entry(metadata, self.messages[0].value)


def _single(message: Message) -> tuple[SingleMessageMetadata, bytes]:
    single = SingleMessageMetadata(payload_size=0)
    if message.key:
        single.partition_key = message.key
    return single, message.value


messages = st.builds(Message, st.sampled_from(KEYS), st.binary(max_size=40))
batches = st.builds(Made, st.lists(messages, min_size=1, max_size=12).map(tuple), st.just(True))
alone = st.builds(Made, messages.map(lambda each: (each,)), st.just(False))
logs = st.lists(st.one_of(batches, alone, st.just(Made((), False))), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(logs, st.data())
def test_what_is_left_is_counted(log: list[Made], data: st.DataObject) -> None:
    last = FIRST + len(log) - 1
    ids = range(FIRST, last + 1)
    mark = data.draw(st.integers(-1, last))
    acked = data.draw(st.sets(st.integers(FIRST, last)))
    remains = {}
    for entry_id in ids:
        count = len(log[entry_id - FIRST].messages)
        if log[entry_id - FIRST].batched and entry_id > mark and entry_id not in acked:
            remains[entry_id] = data.draw(st.integers(0, (1 << count) - 1)) or 1
    some = data.draw(st.sets(st.sampled_from(sorted(remains)))) if remains else set()
    remains = {entry_id: remains[entry_id] for entry_id in some}
    view = View("sub", mark, BitMap({0, *acked, last + 9}).serialize(), remains)

    left: Counter[bytes | None] = Counter()
    entries = partly = 0
    for entry_id in ids:
        made = log[entry_id - FIRST]
        if entry_id <= mark or entry_id in acked:
            continue
        entries += 1
        for index, message in enumerate(made.messages):
            if entry_id in remains and not remains[entry_id] >> index & 1:
                partly += 1
            else:
                left[message.key.encode() or None] += 1

    rows = _scanned(log, view)
    unread = [row for row in rows if row["kind"] == UNREAD]
    assert sum(row["entries"] for row in unread) == entries
    assert sum(row["messages"] for row in unread) == left.total()
    assert sum(row["number"] for row in unread) == partly
    assert _by_key(rows, UNREAD_BY_KEY) == left
    every = [message for made in log for message in made.messages]
    assert _by_key(rows, BY_KEY) == Counter(each.key.encode() or None for each in every)
    (scanned,) = [row for row in rows if row["kind"] == SCANNED]
    assert (scanned["entries"], scanned["messages"]) == (len(log), len(every))
    assert scanned["number"] == sum(not made.messages for made in log)
    sizes = Counter(len(each.value).bit_length() for each in every)
    assert {row["number"]: row["messages"] for row in rows if row["kind"] == BY_SIZE} == sizes


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12))
def test_messages_that_are_not_due_are_counted_with_the_next_of_their_times(
    log: list[tuple[int, bool]],
) -> None:
    """Each entry: its delivery time beside now in s (0: none), and whether it is acknowledged."""
    acked = {FIRST + at for at, (_, is_acked) in enumerate(log) if is_acked}
    scan = _range_scan(len(log), View("sub", -1, BitMap(acked).serialize(), {}), KeySums())
    for at, (after_s, _) in enumerate(log):
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=5)
        if after_s:
            metadata.deliver_at_time = NOW_MS + after_s * 1_000
        scan.add(FIRST + at, build_entry(metadata, b"x"))
    rows = [row for batch in scan.finish() for row in batch.to_pylist()]
    found = [(row["messages"], row["oldest_ms"]) for row in rows if row["kind"] == DELAYED]
    later = [after_s for after_s, is_acked in log if after_s > 0 and not is_acked]
    assert found == ([(len(later), NOW_MS + min(later) * 1_000)] if later else [])


@pytest.mark.parametrize("beyond", [2**63, 2**64 - 1])
def test_a_number_that_is_no_time_is_counted_as_the_newest(beyond: int) -> None:
    log = [Made((Message("a", b"x"),), False)] * 3
    rows = _scanned(log, View("sub", -1, BitMap().serialize(), {}), [beyond, 5, beyond])
    (unread,) = [row for row in rows if row["kind"] == UNREAD]
    assert (unread["entries"], unread["oldest_ms"]) == (3, 5)
    minutes = {row["number"]: row["messages"] for row in rows if row["kind"] == BY_MINUTE}
    assert minutes == {0: 1, TIME_MS_MAX // 60_000 * 60_000: 2}


def _scanned(
    log: list[Made], view: View, times: Sequence[int] = range(1_000_000, 2_000_000)
) -> list[dict[str, Any]]:
    keys = KeySums()
    scan = _range_scan(len(log), view, keys)
    for number, (made, time_ms) in enumerate(zip(log, times, strict=False)):
        scan.add(FIRST + number, made.data(time_ms))
    rows: list[dict[str, Any]] = []
    for batch in (*scan.finish(), *keys.take()):
        assert batch.schema.equals(SCHEMA)
        rows += batch.to_pylist()
    return rows


def _range_scan(count: int, view: View, keys: KeySums) -> RangeScan:
    metadata = LedgerMetadata(7, (), 1)
    ranged = Range("persistent://a/b/c", -1, metadata, FIRST, FIRST + count - 1, 1)
    return RangeScan(ScanRange(ranged, (view,)), keys, NOW_MS)


def _by_key(rows: list[dict[str, Any]], kind: int) -> Counter[bytes | None]:
    found: Counter[bytes | None] = Counter()
    for row in rows:
        if row["kind"] == kind:
            found[row["key"]] += row["messages"]
    return found


@st.composite
def backlogs(draw: st.DrawFn) -> list[Range]:
    """Draws ranges of ledgers with entries of any size."""
    counts = draw(st.lists(st.integers(1, 2_000), min_size=1, max_size=8))
    sizes = [draw(st.integers(1, 300_000)) for _ in counts]
    return [
        Range("persistent://a/b/c", -1, LedgerMetadata(n, (), 1), 5, 4 + count, count * size)
        for n, (count, size) in enumerate(zip(counts, sizes, strict=True))
    ]


@settings(deadline=None)
@given(backlogs(), st.integers(1, 64 << 20))
def test_a_sample_is_spread_evenly_and_within_its_bound(
    ranges: list[Range], bytes_max: int
) -> None:
    whole = sum(each.size_bytes for each in ranges)
    bytes_max = min(bytes_max, whole)
    runs = sampled(ranges, bytes_max)
    assert sum(each.size_bytes for each in runs) <= bytes_max
    places = [(each.ledger_id, e) for each in runs for e in range(each.first, each.last + 1)]
    assert places == sorted(set(places)), "in order, and nothing is counted twice"
    for run in runs:
        of = ranges[run.ledger_id]
        assert of.first <= run.first <= run.last <= of.last
    largest = max(each.size_bytes // (each.last - each.first + 1) for each in ranges)
    if bytes_max < 4 * largest:
        return
    assert (runs[0].ledger_id, runs[0].first) == (0, 5), "the oldest"
    assert (runs[-1].ledger_id, runs[-1].last) == (len(ranges) - 1, ranges[-1].last), "the newest"
    run_bytes = max(min(RUN_BYTES, bytes_max // RUNS_WANTED), largest)
    starts = [_bytes_before(ranges, run) for run in runs]
    apart = [after - one for one, after in pairwise(starts)]
    assert max(apart, default=0) <= whole / (bytes_max // run_bytes - 1) + 2 * run_bytes


def _bytes_before(ranges: list[Range], run: Range) -> int:
    of = ranges[run.ledger_id]
    entry_bytes = of.size_bytes // (of.last - of.first + 1)
    older = sum(each.size_bytes for each in ranges[: run.ledger_id])
    return older + (run.first - of.first) * entry_bytes

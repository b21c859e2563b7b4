"""The pure parts of job `backlog`: causes, what-if, growth, holes, policies, sampling, flows."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from magnetar.compaction.records import (
    CompactedFile,
    CompactionRecord,
    CompactionRequest,
    compaction_key,
    request_key,
)
from magnetar.core.clock import SystemClock
from magnetar.core.errors import PreconditionFailed
from magnetar.core.hashing import sticky_key_hash
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.settings import MIB, MINUTE_MS, Retention
from magnetar.managed_ledger.trim_plan import trimmable
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.offload.records import RequestState
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.backlog.analyse.causes import Cause, Mark, held_by_cause, slowest
from magnetar_spark.jobs.backlog.analyse.growth import Before, Trend, appended_since, progress
from magnetar_spark.jobs.backlog.analyse.holes import Consumer, holders, holes
from magnetar_spark.jobs.backlog.analyse.what_if import NOW, Scenario, freed, parse_scenarios
from magnetar_spark.jobs.backlog.gather.policies import (
    KEEPS_ALL,
    Keeping,
    effective,
    parse_retention,
    parse_time_ms,
)
from magnetar_spark.jobs.backlog.gather.trim_limits import Compacted, compacted
from magnetar_spark.jobs.backlog.report.output import run_ms, run_name, store_of
from magnetar_spark.jobs.backlog.scan.flows import FlowKind, kind_of, merged, subscription_of
from magnetar_spark.jobs.backlog.scan.partials import FLOW, SumRow

NOW_MS = 1_000_000
DAY_MS = 86_400_000


@st.composite
def indexes(draw: st.DrawFn) -> LedgerIndex:
    """Draws ledgers with entries; the last one is open."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    index = LedgerIndex()
    for number, count in enumerate(counts):
        closed = 0 if number == len(counts) - 1 else draw(st.integers(1, NOW_MS))
        size = count * draw(st.integers(1, 50))
        index.add(LedgerInfo(number * 2, 1, entries=count, size_bytes=size, closed_ms=closed))
    return index


@st.composite
def states(draw: st.DrawFn) -> tuple[LedgerIndex, AckState]:
    """Draws an index and individual acks of its entries."""
    index = draw(indexes())
    places = [Position(info.ledger_id, e) for info in index.infos for e in range(info.entries)]
    acks = AckState(index, index.first_position, tracked=False)
    for place in draw(st.lists(st.sampled_from(places), max_size=len(places))):
        acks.ack(*place)
    return index, acks


limits = st.sampled_from([-1, 0, 1, 40, 100, 500_000, NOW_MS])
retentions = st.builds(Retention, limits, limits)


@settings(deadline=None)
@given(indexes(), st.data(), retentions)
def test_what_is_not_compacted_yet_is_kept_by_that_alone(
    index: LedgerIndex, data: st.DataObject, retention: Retention
) -> None:
    """Brokers trim up to the slowest subscription, but not beyond the horizon of compaction."""
    ranks = [data.draw(st.integers(0, index.rank_end)) for _ in range(2)]
    mark, horizon = (index.position_at(each) if each else EARLIEST for each in ranks)
    marks = [Mark("s", mark)]
    before = held_by_cause(index, marks, retention, NOW_MS, {})
    limited = held_by_cause(index, marks, retention, NOW_MS, {}, horizon)
    going = trimmable(index, min(ranks), retention, NOW_MS)
    assert [each.ledger_id for each in limited if each.cause is Cause.UNTRIMMED] == [
        info.ledger_id for info in going
    ]
    for one, other in zip(before, limited, strict=True):
        kept = one.cause is Cause.UNTRIMMED and other.cause is not Cause.UNTRIMMED
        assert (other.cause is Cause.COMPACTION) == kept
        assert kept or one == other


async def test_compaction_is_on_where_something_says_so() -> None:
    """A former log of the same name and a completed request do not count."""
    store = MemoryStore(SystemClock())
    name = "t/n/persistent/x"
    assert await compacted(store, name, 7, 0) == Compacted(None)
    assert await compacted(store, name, 7, 100) == Compacted(EARLIEST)
    for request, on in (
        (CompactionRequest(1), True),
        (CompactionRequest(1, RequestState.RUNNING, job="dead"), False),
        (CompactionRequest(1, RequestState.SUCCESS, job="done", finished_ms=2), False),
    ):
        await store.put(request_key(name), encode(request))
        assert (await compacted(store, name, 7, 0)).limit == (EARLIEST if on else None)
    files = tuple(
        CompactedFile(f"{n}", 10, 0, Position(n, 0), Position(n, 5), 5, 5, 50) for n in range(2)
    )
    spec = StoreSpec("filesystem", "somewhere")
    record = CompactionRecord(Position(2, 3), 7, "a", spec, 1, files)
    await store.put(compaction_key(name), encode(record))
    assert await compacted(store, name, 7, 0) == Compacted(Position(2, 3), 20)
    assert await compacted(store, name, 8, 0) == Compacted(None)
    await store.close()


@settings(deadline=None)
@given(indexes(), st.data(), retentions)
def test_every_ledger_has_the_cause_that_keeps_it(
    index: LedgerIndex, data: st.DataObject, retention: Retention
) -> None:
    ranks = data.draw(st.lists(st.integers(0, index.rank_end), max_size=3))
    marks = [
        Mark(f"s{n}", index.position_at(rank) if rank else index.first_position)
        for n, rank in enumerate(ranks)
    ]
    held = held_by_cause(index, marks, retention, NOW_MS, {})
    assert [each.ledger_id for each in held] == [info.ledger_id for info in index.infos]
    assert sum(each.size_bytes for each in held) == index.size_bytes
    name, rank = slowest(index, marks)
    going = {info.ledger_id for info in trimmable(index, rank, retention, NOW_MS)}
    for each, info in zip(held, index.infos, strict=True):
        consumed = info.base_rank + info.entries <= rank
        assert (each.cause is Cause.UNTRIMMED) == (info.ledger_id in going)
        assert (each.cause is Cause.OPEN) == (not info.closed_ms)
        if each.cause is Cause.SUBSCRIPTION:
            assert not consumed
            assert each.subscription == name
        if each.cause is Cause.RETENTION:
            assert consumed


def test_offloaded_ledgers_and_cursors_that_cannot_be_read() -> None:
    index = LedgerIndex()
    for ledger_id in range(3):
        index.add(LedgerInfo(ledger_id, 1, entries=2, size_bytes=20, closed_ms=2))
    unknown = [Mark("lost", None), Mark("fast", Position(2, 1))]
    causes = held_by_cause(index, unknown, Retention(), NOW_MS, {0: True, 1: False})
    assert [each.cause for each in causes] == [Cause.COLD, Cause.OFFLOADED, Cause.SUBSCRIPTION]
    assert causes[2].subscription == "lost"
    # Ledgers that nothing keeps are trimmed, whatever copies exist.
    none = held_by_cause(index, [], Retention(), NOW_MS, {1: False})
    assert {each.cause for each in none} == {Cause.UNTRIMMED}


class Until:
    """All entries up to a position are old."""

    def __init__(self, end: Position | None) -> None:
        self._end = end

    async def older_end(self, before_ms: int) -> Position | None:
        assert before_ms < NOW_MS
        return self._end


@settings(deadline=None)
@given(states(), retentions, st.data())
async def test_what_limits_free(
    state: tuple[LedgerIndex, AckState], retention: Retention, data: st.DataObject
) -> None:
    """As if the TTL had acked for every subscription, and the broker had trimmed afterwards."""
    index, acks = state
    rank = data.draw(st.integers(0, index.rank_end))
    end = index.position_at(rank) if rank else None
    scenario = Scenario("x", retention, ttl_s=5)
    before = (acks.mark_delete, acks.backlog)
    found = await freed(scenario, index, {"s": acks}, Keeping(), Until(end), NOW_MS)
    assert (acks.mark_delete, acks.backlog) == before
    backlog = acks.backlog
    if end is not None:
        acks.ack_cumulative(end)
    assert sum(found.expired.values()) == backlog - acks.backlog
    gone = trimmable(index, index.rank(*acks.mark_delete), retention, NOW_MS)
    assert found.ledgers == len(gone)
    assert found.size_bytes == sum(info.size_bytes for info in gone)


async def test_a_cursor_that_cannot_be_read_frees_nothing() -> None:
    index = LedgerIndex()
    index.add(LedgerInfo(1, 1, entries=2, size_bytes=20, closed_ms=2))
    kept = await freed(Scenario(NOW), index, {"lost": None}, Keeping(), Until(None), NOW_MS)
    assert (kept.ledgers, kept.size_bytes) == (0, 0)
    free = await freed(Scenario(NOW), index, {}, Keeping(), Until(None), NOW_MS)
    assert (free.ledgers, free.size_bytes) == (1, 20)


def test_scenarios_are_what_their_text_says() -> None:
    now, day, both = parse_scenarios(["retention=1d", "ttl=2h, retention=0"])
    keeping = Keeping(Retention(5, 6), 7)
    assert now.on(keeping) == keeping
    assert day.on(keeping) == Keeping(Retention(-1, DAY_MS), 7)
    assert both.on(keeping) == Keeping(Retention(0, 0), 7200)
    for text in ("ttl", "ttl=soon", "retention=1x", "quota=1G", "retention=1d/2d"):
        with pytest.raises(PreconditionFailed, match="write"):
            parse_scenarios([text])
    assert parse_retention("1w/10G") == Retention(10 << 30, 7 * DAY_MS)
    assert parse_time_ms("forever") == -1


counts = st.integers(0, 10_000)


@settings(deadline=None)
@given(counts, counts, counts, st.integers(2, 10_000))
def test_movement_adds_up(before: int, appended: int, consumed: int, seconds: int) -> None:
    """The backlog now is the former one plus the published messages minus the consumed ones."""
    entries = before + appended - consumed
    if entries < 0:
        return
    seen = Before(0, before, EARLIEST)
    found = progress(seen, entries, appended, seconds * 1000)
    assert found.growth_per_s is not None
    assert found.published_per_s is not None
    assert found.consumed_per_s is not None
    moved = found.published_per_s - found.consumed_per_s
    assert found.growth_per_s == pytest.approx(moved, abs=1e-6)
    assert (found.trend is Trend.EMPTY) == (entries == 0)
    assert (found.trend is Trend.STALLED) == (entries > 0 and consumed == 0)
    if found.drains_in_s is not None and entries:
        assert found.trend is Trend.DRAINING
        assert entries + found.growth_per_s * found.drains_in_s == pytest.approx(0, abs=1e-3)


def test_what_is_not_known_is_not_guessed() -> None:
    assert progress(None, 5, 10, 1000).trend is Trend.UNKNOWN
    assert progress(Before(0, 5, EARLIEST), 5, None, 5000).trend is Trend.UNKNOWN
    assert progress(Before(0, 5, EARLIEST), 5, 1, 500).growth_per_s is None
    back = progress(Before(0, 5, EARLIEST), 50, 10, 10_000)
    assert (back.trend, back.consumed_per_s, back.drains_in_s) == (Trend.RESET, None, None)


@settings(deadline=None)
@given(indexes(), st.data())
def test_appended_since_counts_entries_or_says_nothing(
    index: LedgerIndex, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(1, index.rank_end))
    end = index.position_at(rank)
    assert appended_since(index, EARLIEST, end) == index.rank_end - rank
    trimmed_to = Position(end.ledger_id, end.entry_id + 1)
    assert appended_since(index, trimmed_to, end) is None
    assert appended_since(index, EARLIEST, Position(1000, 0)) is None


@settings(deadline=None)
@given(states())
def test_holes_are_the_unacknowledged_before_the_acknowledged(
    state: tuple[LedgerIndex, AckState],
) -> None:
    index, acks = state
    unacked = [
        position
        for info in index.infos
        for e in range(info.entries)
        if not acks.is_acked(*(position := Position(info.ledger_id, e)))
    ]
    last_acked = max((last for _, last in acks.ranges()), default=EARLIEST)
    expected = [position for position in unacked if position < last_acked]
    found = list(holes(index, acks))
    assert sum(each.entries for each in found) == len(expected)
    within = [p for p in expected if any(each.first <= p <= each.last for each in found)]
    assert within == expected
    assert [each.first for each in found] == sorted(each.first for each in found)


def consumer(name: str, unacked: int, ranges: tuple[tuple[int, int], ...] = ()) -> Consumer:
    return Consumer(name, unacked, 0, "", 0, ranges)


def test_holders() -> None:
    assert holders(None, b"k") == ""
    assert holders([], b"k") == ""
    assert holders([consumer("only", 0)], None) == "only"
    assert holders([consumer("a", 1), consumer("b", 5), consumer("c", 0)], None) == "b, a"
    point = sticky_key_hash(b"k")
    split = [consumer("low", 9, ((0, point - 1),)), consumer("high", 0, ((point, 65_535),))]
    assert holders(split, b"k") == "high"
    assert holders(split, None) == "low"


def test_policies_topic_over_namespace_over_brokers() -> None:
    default = Keeping(Retention(1, 2), 3)
    hour = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    small: Mapping[str, int] = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10}
    namespace = {"retention_policies": hour, "message_ttl_in_seconds": 100}
    assert effective(default, {}, {}) == default
    of_namespace = Keeping(Retention(-1, 60 * MINUTE_MS), 100)
    assert effective(default, namespace, {}) == of_namespace
    topic = {"version": 1, "local": {"retention": small}, "global": {"message_ttl": 7}}
    assert effective(default, namespace, topic) == Keeping(Retention(10 * MIB, -1), 7)
    assert effective(default, {"compaction_threshold": 9}, {}).compaction_bytes == 9
    for strange in ({"retention_policies": {"retentionTimeInMinutes": "x"}}, None):
        assert effective(default, strange, {}).retention == KEEPS_ALL


def test_flows() -> None:
    assert kind_of("orders-shipping-DLQ") is FlowKind.DEAD_LETTER
    assert kind_of("orders-shipping-RETRY") is FlowKind.RETRY
    assert kind_of("orders") is FlowKind.OTHER
    assert subscription_of("orders-shipping-DLQ", "orders") == "shipping"
    assert subscription_of("elsewhere-DLQ", "orders") == ""
    row = SumRow(
        kind=FLOW, topic="t", key=b"o", number=1, messages=2, bytes=10, oldest_ms=5, newest_ms=9
    )
    later = replace(row, number=7, messages=1, oldest_ms=3, newest_ms=20)
    (found,) = merged([row, later])
    assert (found.messages, found.oldest_ms, found.newest_ms) == (3, 3, 20)
    assert (found.redeliveries_max, found.redeliveries_mean) == (7, 3.0)


@settings(deadline=None)
@given(st.integers(0, 4_000_000_000_000), st.integers(0, 4_000_000_000_000))
def test_runs_are_named_by_time(one: int, other: int) -> None:
    assert run_ms(run_name(one)) == one
    assert (run_name(one) < run_name(other)) == (one < other)


def test_places_of_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    spec = store_of("s3://bucket/some/prefix")
    assert (spec.driver, spec.bucket, spec.prefix) == ("aws-s3", "bucket", "some/prefix")
    assert spec.endpoint == "http://store:9000"
    assert store_of("out/here").driver == "filesystem"
    with pytest.raises(PreconditionFailed, match="--output ftp://x"):
        store_of("ftp://x")

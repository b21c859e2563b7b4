"""Plans which parts of a topic's log are scanned, within a bound. Pure.

Unacknowledged entries come first, then the rest from the newest back, up to `bytes_max` per topic.
If the unacknowledged part alone is larger, evenly spaced runs of RUN_BYTES (less if `bytes_max` is
small) are taken from it, including the oldest and the newest entries; results based on them are
marked as sampled. Only the chosen runs are created, so a plan is small however long the log is.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from magnetar.core.ids import Position
from magnetar.jobs.log.ranges import Range, Window, ranges_of
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog, cold_span
from magnetar.jobs.log.transactions.visible import aborted_in
from magnetar_spark.jobs.backlog.gather.topic_state import TopicState

RANGE_BYTES: Final = 32 << 20
RUN_BYTES: Final = 1 << 20
RUNS_WANTED: Final = 16
"""The minimal number of runs in a sample, as far as entries are small enough."""


@dataclass(frozen=True, slots=True)
class View:
    """The acknowledgments of one subscription within a range.

    Acknowledged are all entries up to `mark`, those of `holes` (a serialized bitmap), and in the
    entries of `remains` all messages but those of the bits.
    """

    subscription: str
    mark: int
    holes: bytes
    remains: dict[int, int]


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A range, and the views of subscriptions that have unacknowledged entries in it."""

    ranged: Range
    views: tuple[View, ...]


def scan_plan(state: TopicState, bytes_max: int) -> list[ScanRange]:
    """The ranges of a topic to scan, in the order of the log."""
    log = _log_of(state)
    start = unread_from(state)
    unread = [] if start is None else list(ranges_of(log, Window(first=start), RANGE_BYTES))
    size = sum(ranged.size_bytes for ranged in unread)
    if size > bytes_max and start is not None:
        return _viewed(state, sampled(unread, bytes_max))
    before = Window() if start is None else Window(last=Position(start[0], start[1] - 1))
    rest = list(ranges_of(log, before, RANGE_BYTES))
    chosen: list[Range] = []
    left = bytes_max - size
    for ranged in reversed(rest):
        if ranged.size_bytes > left:
            break
        chosen.append(ranged)
        left -= ranged.size_bytes
    return _viewed(state, [*reversed(chosen), *unread])


def unread_from(state: TopicState) -> Position | None:
    """The first entry that a subscription may not have acknowledged; None if there is none."""
    if any(subscription.acks is None for subscription in state.subscriptions):
        return state.index.first_position
    oldest = (subscription.oldest for subscription in state.subscriptions)
    return min((position for position in oldest if position), default=None)


def _log_of(state: TopicState) -> TopicLog:
    """The log as the data source sees it: offloaded ledgers are read from their files, and entries
    of aborted transactions are left out."""
    items = {item.ledger_id: item for item in state.record.ledgers}
    spans: list[LedgerSpan] = []
    for info in state.index.infos:
        file, metadata = state.files.get(info.ledger_id), state.ledgers.get(info.ledger_id)
        if file is not None:
            span = cold_span(items[info.ledger_id], file)
        elif metadata is not None:
            span = LedgerSpan(
                metadata, info.entries - 1, info.size_bytes, info.created_ms, info.closed_ms
            )
        else:
            continue
        ids = aborted_in(state.aborted, info.ledger_id, span.last_entry)
        spans.append(replace(span, aborted=ids.serialize()) if ids else span)
    return TopicLog(state.topic, tuple(spans), Position(*state.record.last_position))


def sampled(ranges: list[Range], bytes_max: int) -> list[Range]:
    """Evenly spaced runs of about `bytes_max` in total, including the first and last entries."""
    wanted = min(RUN_BYTES, bytes_max // RUNS_WANTED)
    run_bytes = max(wanted, *(int(_entry_bytes(ranged)) for ranged in ranges))
    count = bytes_max // run_bytes
    ends = list(accumulate(ranged.size_bytes for ranged in ranges))
    last = ends[-1] - 1
    runs: list[Range] = []
    for number in range(count):
        start = last if count == 1 else last * number // (count - 1)
        at = bisect_right(ends, start)
        run = _run(ranges[at], start - ends[at] + ranges[at].size_bytes, run_bytes)
        if runs and run.ledger_id == runs[-1].ledger_id and run.first <= runs[-1].last:
            run = replace(run, first=runs[-1].last + 1)
        if run.first <= run.last:
            runs.append(run)
    return runs


def _entry_bytes(ranged: Range) -> float:
    return max(1.0, ranged.size_bytes / (ranged.last - ranged.first + 1))


def _run(ranged: Range, within: int, run_bytes: int) -> Range:
    """About `run_bytes` of entries, starting `within` bytes after the range's start."""
    entries, entry_bytes = ranged.last - ranged.first + 1, _entry_bytes(ranged)
    count = min(entries, max(1, int(run_bytes / entry_bytes)))
    first = ranged.first + min(round(within / entry_bytes), entries - count)
    last = first + count - 1
    return replace(ranged, first=first, last=last, size_bytes=int(count * entry_bytes))


def _viewed(state: TopicState, ranges: Iterable[Range]) -> list[ScanRange]:
    return [ScanRange(ranged, tuple(_views(state, ranged))) for ranged in ranges]


def _views(state: TopicState, ranged: Range) -> Iterable[View]:
    """The views of subscriptions that have unacknowledged entries in the range."""
    ledger_id = ranged.ledger_id
    for subscription in state.subscriptions:
        acks = subscription.acks
        if acks is None:
            yield View(subscription.name, -1, b"", {})
            continue
        mark_ledger, mark_entry = acks.mark_delete
        if ledger_id < mark_ledger or (ledger_id == mark_ledger and ranged.last <= mark_entry):
            continue
        holes = acks.holes.get(ledger_id)
        remains = {
            entry_id: left
            for (ledger, entry_id), left in acks.batches.items()
            if ledger == ledger_id and ranged.first <= entry_id <= ranged.last
        }
        yield View(
            subscription.name,
            mark_entry if ledger_id == mark_ledger else -1,
            b"" if holes is None else holes.serialize(),
            remains,
        )

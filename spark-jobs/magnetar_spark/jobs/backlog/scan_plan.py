"""What is read of topics' logs, within a bound. Pure.

What a subscription has not acknowledged comes first, then the rest from the newest back, until
`bytes_max` of a topic. Where the unacknowledged part alone is more, runs of SAMPLE_BYTES are taken
from it, evenly spread: what is made of them is marked as sampled.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import Position
from magnetar_spark.jobs.backlog.topic_state import TopicState
from magnetar_spark.log.ledgers import LedgerSpan, TopicLog, cold_span
from magnetar_spark.log.planning import Range, Window, ranges_of

RANGE_BYTES: Final = 32 << 20
SAMPLE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class View:
    """What one subscription has acknowledged of one range: entries up to `mark`, those of `holes`
    (a serialised bitmap), and of the entries in `remains` all messages but those of the bits."""

    subscription: str
    mark: int
    holes: bytes
    remains: dict[int, int]


@dataclass(frozen=True, slots=True)
class ScanRange:
    """A range, and who has what left of it."""

    ranged: Range
    views: tuple[View, ...]


def scan_plan(state: TopicState, bytes_max: int) -> list[ScanRange]:
    """See the module's text. In the order of the log."""
    log = _log_of(state)
    start = _unread_from(state)
    unread = [] if start is None else list(ranges_of(log, Window(first=start), RANGE_BYTES))
    size = sum(each.size_bytes for each in unread)
    if size > bytes_max and start is not None:
        fine = list(ranges_of(log, Window(first=start), SAMPLE_BYTES))
        return _viewed(state, _spread(fine, bytes_max))
    before = Window() if start is None else Window(last=Position(start[0], start[1] - 1))
    rest = list(ranges_of(log, before, RANGE_BYTES))
    chosen: list[Range] = []
    left = bytes_max - size
    for each in reversed(rest):
        if each.size_bytes > left:
            break
        chosen.append(each)
        left -= each.size_bytes
    return _viewed(state, [*reversed(chosen), *unread])


def _unread_from(state: TopicState) -> Position | None:
    """The first entry that somebody may not have acknowledged."""
    if any(each.acks is None for each in state.subscriptions):
        return state.index.first_position
    return min((each.oldest for each in state.subscriptions if each.oldest), default=None)


def _log_of(state: TopicState) -> TopicLog:
    """As the data source knows it: offloaded ledgers are read from their files."""
    items = {item.ledger_id: item for item in state.record.ledgers}
    spans: list[LedgerSpan] = []
    for info in state.index.infos:
        file, metadata = state.files.get(info.ledger_id), state.ledgers.get(info.ledger_id)
        if file is not None:
            spans.append(cold_span(items[info.ledger_id], file))
        elif metadata is not None:
            spans.append(
                LedgerSpan(
                    metadata, info.entries - 1, info.size_bytes, info.created_ms, info.closed_ms
                )
            )
    return TopicLog(state.topic, tuple(spans), Position(*state.record.last_position))


def _spread(ranges: list[Range], bytes_max: int) -> list[Range]:
    """As many as fit, at even distances, the first and last among them."""
    count = min(len(ranges), max(0, bytes_max // SAMPLE_BYTES))
    if count < 2:
        return ranges[:count]
    step = (len(ranges) - 1) / (count - 1)
    return [ranges[round(number * step)] for number in range(count)]


def _viewed(state: TopicState, ranges: Iterable[Range]) -> list[ScanRange]:
    return [ScanRange(each, tuple(_views(state, each))) for each in ranges]


def _views(state: TopicState, ranged: Range) -> Iterable[View]:
    """Of the subscriptions that have something left there."""
    ledger_id = ranged.ledger_id
    for each in state.subscriptions:
        acks = each.acks
        if acks is None:
            yield View(each.name, -1, b"", {})
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
            each.name,
            mark_entry if ledger_id == mark_ledger else -1,
            b"" if holes is None else holes.serialize(),
            remains,
        )

"""Finds entries that a read requests and that are gone from a topic's log. Pure."""

from collections.abc import Iterator

from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.jobs.log.topic_log import TopicLog
from magnetar.managed_ledger.record import LedgerItem


def losses(
    log: TopicLog,
    start: Position | None,
    end: Position = LATEST,
    *,
    of_this_log: bool = True,
) -> Iterator[str]:
    """Describes the losses among the entries after `start`, up to and including `end`.

    `start` is None to read whatever the log has. `end` is LATEST, or a confirmed position that the
    log must reach. `of_this_log` is false if `start` may be a position of another log.
    """
    promised = end < LATEST
    if start is not None and not log.exists:
        if start > EARLIEST or promised:
            yield f"the log was deleted with what was behind {start}"
        return
    if start is not None:
        yield from _before(log, start, end, of_this_log=of_this_log)
    for item in log.gone:
        if item.ledger_id <= end.ledger_id and _wanted(log, item, start):
            yield f"ledger {item.ledger_id} is neither on bookies nor in files"
    if promised:
        yield from _behind(log, end)


def _before(log: TopicLog, start: Position, end: Position, *, of_this_log: bool) -> Iterator[str]:
    if start < log.trimmed_to:
        yield f"entries behind {start} up to {min(end, log.trimmed_to)} were trimmed by retention"
    elif of_this_log and start.entry_id >= 0 and not _knows(log, start.ledger_id):
        yield (
            f"ledger {start.ledger_id} was never in this log: the topic was deleted and created "
            f"again, and what was behind {start} is gone"
        )


def _behind(log: TopicLog, end: Position) -> Iterator[str]:
    last = {span.ledger_id: span.last_entry for span in log.ledgers}.get(end.ledger_id)
    if last is None:
        if not _knows(log, end.ledger_id):
            yield f"ledger {end.ledger_id} is not in the log any more, though {end} was confirmed"
    elif last < end.entry_id:
        yield f"ledger {end.ledger_id} ends at entry {last}, though {end} was confirmed"


def _knows(log: TopicLog, ledger_id: int) -> bool:
    """Whether the ledger is or was in the log."""
    return (
        ledger_id <= log.trimmed_to.ledger_id
        or any(ledger_id == span.ledger_id for span in log.ledgers)
        or any(ledger_id == item.ledger_id for item in log.gone)
    )


def _wanted(log: TopicLog, item: LedgerItem, start: Position | None) -> bool:
    """Whether the ledger has entries after `start`, according to the topic's record."""
    if item.closed_ms and not item.entries:
        return False
    if start is None:  # retention trims the oldest ledgers; the log starts after them
        return any(span.ledger_id < item.ledger_id for span in log.ledgers)
    last = Position(item.ledger_id, item.entries - 1) if item.closed_ms else None
    return item.ledger_id >= start.ledger_id and (last is None or last > start)

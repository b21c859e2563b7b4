"""The durable end of an open ledger: entries that an ack quorum holds, and no others."""

import pytest
from tests.spark.memory_log import ENTRY, MemoryLog

from magnetar.bookie.api import BookieError
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar_spark.jobs.backlog.gather import durable_end as durable_end_module
from magnetar_spark.jobs.backlog.gather.durable_end import DurableEnd, durable_end

LEDGER = 7


def ledger(log: MemoryLog) -> LedgerMetadata:
    stored = log.run(log.store.get(ledger_key(LEDGER)))
    assert stored is not None
    return decode(stored.key, stored.value)


def end(log: MemoryLog, *, size: bool = True) -> DurableEnd:
    return log.run(durable_end(log.context, ledger(log), size=size))


@pytest.mark.parametrize(
    ("stored", "ack_quorum", "last"),
    [
        (((5, 0), (5, 0), (5, 0)), 3, 4),
        (((5, 0), (5, 0), (4, 0)), 3, 3),
        (((5, 0), (4, 0), (4, 0)), 2, 3),
        (((5, 0), (5, 0), (0, 0)), 2, 4),
        (((5, 0), (0, 0), (0, 0)), 2, -1),
        (((5, 0), (0, 0), (0, 0)), 1, 4),
        (((5, 3), (0, 0), (0, 0)), 2, 2),
        (((5, 3), (4, 0), (1, 0)), 2, 3),
        (((5, 5), (5, 4), (5, 0)), 3, 4),
        (((0, 0), (0, 0), (0, 0)), 2, -1),
    ],
)
def test_an_entry_counts_that_is_confirmed_or_that_an_ack_quorum_holds(
    monkeypatch: pytest.MonkeyPatch,
    stored: tuple[tuple[int, int], ...],
    ack_quorum: int,
    last: int,
) -> None:
    log = MemoryLog(monkeypatch, bookies=3)
    log.open(LEDGER, *stored, write_quorum=3, ack_quorum=ack_quorum)
    assert end(log, size=False) == DurableEnd(last, 0 if last < 0 else -1)
    assert end(log) == DurableEnd(last, len(ENTRY) * (last + 1))
    assert not any(disk.ledger(LEDGER).fenced for disk in log.bookies.disks), "it is written to"


@pytest.mark.parametrize(
    ("away", "ack_quorum", "known"),
    [
        ({"b0"}, 2, True),
        ({"b0", "b1"}, 2, False),
        ({"b1", "b2"}, 2, False),
        ({"b0", "b1"}, 3, True),
        ({"b0"}, 1, False),
        ({"b0", "b1", "b2"}, 3, False),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_too_few_answers_are_no_answer(
    monkeypatch: pytest.MonkeyPatch, away: set[str], ack_quorum: int, known: bool
) -> None:
    """The unavailable bookies may have entries that the others lack."""
    log = MemoryLog(monkeypatch, bookies=3)
    log.open(LEDGER, (5, 5), (5, 5), (5, 5), write_quorum=3, ack_quorum=ack_quorum)
    log.bookies.away = away
    if known:
        assert end(log, size=False).last_entry == 4
    else:
        with pytest.raises(BookieError):
            end(log, size=False)


def test_a_closed_ledger_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch)
    log.closed(LEDGER, 9)
    log.bookies.away = {"b0", "b1"}
    assert end(log) == DurableEnd(8, 900)


def test_so_much_of_a_tail_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_end_module, "TAIL_ENTRIES_MAX", 3)
    log = MemoryLog(monkeypatch)
    log.open(LEDGER, (9, 2), (9, 0), ack_quorum=2)
    assert end(log, size=False).last_entry == 4


def test_an_end_that_is_too_much_to_prove_is_reported_as_an_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(monkeypatch)
    log.open(LEDGER, (10, 10), (10, 0), ack_quorum=2)
    for proved_max, exact in ((1000, True), (999, False)):
        monkeypatch.setattr(durable_end_module, "PROVED_BYTES_MAX", proved_max)
        assert end(log) == DurableEnd(9, 1000, exact=exact)

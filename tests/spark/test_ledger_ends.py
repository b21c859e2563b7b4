"""The ends of open ledgers: known only if answers cover the ack quorum."""

from collections.abc import Callable, Coroutine
from itertools import combinations
from typing import Any

import pytest
from tests.spark.memory_log import ENTRY, MemoryLog

from magnetar.bookie.api import BookieUnavailable
from magnetar.jobs.log.ends import end_of
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.quorum import answers_cover, write_sets
from magnetar_spark.jobs.backlog.gather.durable_end import durable_end

Reader = Callable[[LedgerContext, LedgerMetadata], Coroutine[Any, Any, int]]


async def data_source(context: LedgerContext, metadata: LedgerMetadata) -> int:
    return (await end_of(context, metadata)).confirmed


async def backlog_report(context: LedgerContext, metadata: LedgerMetadata) -> int:
    return (await durable_end(context, metadata, size=False)).last_entry


QUORUMS = [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]
READERS: list[Reader] = [data_source, backlog_report]


@pytest.mark.parametrize(("write_quorum", "ack_quorum"), QUORUMS)
@pytest.mark.parametrize("end", READERS)
def test_no_end_is_less_than_what_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
    end: Reader,
    write_quorum: int,
    ack_quorum: int,
) -> None:
    """Whichever bookies have the confirmed entry, and whichever are unavailable."""
    for slots in write_sets(3, write_quorum):
        for holders in combinations(slots, ack_quorum):
            log = MemoryLog(monkeypatch, bookies=3)
            metadata = log.metadata(5, write_quorum=write_quorum, ack_quorum=ack_quorum)
            entry_id = slots[0]  # the first entry of this write set
            for slot in holders:
                log.bookies.disks[slot].add_now(5, entry_id, [ENTRY], entry_id, recovery=False)
            for count in range(4):
                for away in combinations(log.bookies.disks, count):
                    log.bookies.away = {disk.identity.bookie_id for disk in away}
                    here = [disk.identity for disk in log.bookies.disks if disk not in away]
                    if answers_cover(metadata, here):
                        found = log.run(end(log.context, metadata))
                        assert found == entry_id, (holders, away)
                    else:
                        with pytest.raises(BookieUnavailable):
                            log.run(end(log.context, metadata))


@pytest.mark.parametrize("end", READERS)
def test_a_ledger_that_nobody_has_is_empty_once_enough_say_so(
    monkeypatch: pytest.MonkeyPatch, end: Reader
) -> None:
    log = MemoryLog(monkeypatch, bookies=3)
    metadata = log.metadata(5, write_quorum=3, ack_quorum=2)
    log.bookies.away = {"b0"}
    assert log.run(end(log.context, metadata)) == -1
    log.bookies.away = {"b0", "b1"}
    with pytest.raises(BookieUnavailable):
        log.run(end(log.context, metadata))

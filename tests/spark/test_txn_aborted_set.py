"""The aborted set, read from bookies that have more, less, or nothing of its ledger."""

from collections.abc import Iterable

import pytest
from pyroaring import BitMap
from tests.spark.memory_log import TOPIC, MemoryBookies, MemoryLog

from magnetar.bookie.api import Bookie, BookieIdentity, BookieUnavailable
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.log.transactions import aborted_set as module
from magnetar.jobs.log.transactions.aborted_set import aborted_set
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.cursor_codec_v3 import encode_delta, encode_snapshot
from magnetar.managed_ledger.cursor_state import StoredState
from magnetar.managed_ledger.errors import CursorCorrupt
from magnetar.managed_ledger.record import NO_LEDGER, CursorRecord, aborted_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import Put

NAME = log_name(parse_topic(TOPIC))
MARK = Position(3, -1)


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_ATTEMPTS", 2)


def records(*aborted: Iterable[int]) -> list[bytes]:
    """A ledger of the set: a snapshot, and a change per further argument."""
    holes = [{3: BitMap(ids)} for ids in aborted]
    snapshot = encode_snapshot(0, MARK, holes[0], {}, {})
    return [*snapshot, *(encode_delta(0, MARK, each, {}, {}) for each in holes[1:])]


def name_ledger(log: MemoryLog, ledger_id: int, mark: Position = MARK) -> None:
    log.put(aborted_key(NAME), encode(CursorRecord(mark, 1, 1, 1, ledger_id=ledger_id)))


def store(
    log: MemoryLog, ledger_id: int, entries: list[bytes], *ids: list[int], **quorums: int
) -> None:
    """Stores a ledger of the set; of each bookie the entries that it has. None is confirmed."""
    log.put(ledger_key(ledger_id), encode(log.metadata(ledger_id, **quorums)))
    for disk, held in zip(log.bookies.disks, ids, strict=True):
        for entry_id in held:
            disk.add_now(ledger_id, entry_id, [entries[entry_id]], -1, recovery=False)


def read(log: MemoryLog) -> StoredState | None:
    return log.run(aborted_set(log.context, NAME))


def aborted(log: MemoryLog) -> list[int]:
    state = read(log)
    assert state is not None
    assert state.mark_delete == MARK
    return list(state.holes[3])


def test_without_a_record_nothing_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(MemoryLog(monkeypatch)) is None


def test_a_set_without_a_ledger_is_in_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch)
    name_ledger(log, NO_LEDGER, Position(3, 4))
    state = read(log)
    assert state is not None
    assert (state.mark_delete, state.holes) == (Position(3, 4), {})


def test_an_entry_without_its_quorum_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch)
    name_ledger(log, 8)
    store(log, 8, records([1], [5], [7]), [0, 1, 2], [0, 1], ack_quorum=2)
    assert aborted(log) == [1, 5, 7]


def test_an_entry_that_no_bookie_has_ends_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch)
    name_ledger(log, 8)
    store(log, 8, records([1], [5], [7]), [0, 2], [0, 2], ack_quorum=2)
    assert aborted(log) == [1]


def test_a_bookie_that_may_have_more_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch)
    name_ledger(log, 8)
    store(log, 8, records([1], [5]), [0], [0, 1], ack_quorum=1)
    log.bookies.away = {"b1"}
    with pytest.raises(BookieUnavailable, match="the end of ledger 8 is unknown"):
        read(log)
    log.bookies.away.clear()
    assert aborted(log) == [1, 5]


def test_an_entry_that_an_absent_bookie_may_have_is_not_taken_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(monkeypatch, bookies=3)
    name_ledger(log, 8)
    quorums = {"write_quorum": 3, "ack_quorum": 2}
    store(log, 8, records([1], [5], [7]), [0, 2], [0], [0, 1, 2], **quorums)
    log.bookies.away = {"b2"}
    with pytest.raises(BookieUnavailable):
        read(log)


def test_a_ledger_that_vanishes_is_no_empty_set(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch)
    name_ledger(log, 8)
    with pytest.raises(CursorCorrupt, match="ledger 8 does not exist"):
        read(log)


def test_a_ledger_that_is_being_deleted_does_not_count_with_what_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog(monkeypatch, bookies=3)
    name_ledger(log, 8)
    quorums = {"write_quorum": 3, "ack_quorum": 2}
    store(log, 8, records([1], [5]), [0, 1], [0, 1], [0], **quorums)
    store(log, 9, records([1, 5]), [0], [0], [0], **quorums)
    log.bookies.away = {"b1"}

    new = encode(CursorRecord(MARK, 1, 1, 2, ledger_id=9))

    class Replacing(MemoryBookies):
        """The set's record names another ledger once the former one is read."""

        def get(self, identity: BookieIdentity) -> Bookie | None:
            if log.bookies.disks[0]._ledgers.pop(8, None) is not None:
                log.store._apply([Put(aborted_key(NAME), new)])
            return log.bookies.get(identity)

    log.context.bookies = Replacing(0)
    assert aborted(log) == [1, 5]

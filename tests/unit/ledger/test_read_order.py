"""Which copy a read asks first, and what a reader hears if no copy has the entry."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from tests.unit.ledger.cluster import Cluster, Disk, Links, virtual
from tests.unit.ledger.stage import ManualClock
from tests.unit.ledger.test_reading import quorum, written

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
    StoredEntry,
)
from magnetar.ledger.context import QUARANTINE_REFRESH_S, SLOW_S, SUSPECT_S, ReadHealth
from magnetar.ledger.copies_reader import _rotated, contiguous, verdict

QUICK_S = 0.001


class Stage:
    """Bookies a to e, all well and all of the same speed."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.links = Links([Disk(name) for name in "abcde"], Random(1))
        self.health = ReadHealth(self.links, self.clock)
        for identity in self.all:
            self.health.answered(identity, QUICK_S)

    @property
    def all(self) -> list[BookieIdentity]:
        return [BookieIdentity(name, "0") for name in "abcde"]

    def answered(self, name: str, latency_s: float, times: int = 1) -> None:
        for _ in range(times):
            self.health.answered(BookieIdentity(name, "0"), latency_s)

    def failed(self, name: str) -> None:
        self.health.failed(BookieIdentity(name, "0"), BookieUnavailable("gone"))

    @property
    def order(self) -> str:
        return "".join(identity.bookie_id for identity in self.health.ordered(self.all))


def test_copies_that_are_well_keep_their_order() -> None:
    stage = Stage()
    assert stage.order == "abcde"
    assert stage.health.ordered([]) == []


def test_the_worse_a_bookie_is_the_later_its_copy_is_asked() -> None:
    """Well, slow, suspect, quarantined, not here."""
    stage = Stage()
    del stage.links.links[BookieIdentity("a", "0")]
    stage.links.quarantined = {"b"}
    stage.failed("c")
    stage.answered("d", 60.0)
    assert stage.order == "edcba"


def test_a_bookie_is_slow_only_beyond_both_bounds() -> None:
    stage = Stage()
    stage.answered("a", SLOW_S, times=200)  # many times the others', but not slow
    assert stage.order == "abcde"
    stage.answered("a", 1.01 * SLOW_S, times=200)
    assert stage.order == "bcdea"
    for name in "bcde":
        stage.answered(name, SLOW_S, times=200)  # now it is about as slow as all others
    assert stage.order == "abcde"
    stage.answered("a", 3.9 * SLOW_S, times=200)
    assert stage.order == "abcde"
    stage.answered("a", 4.1 * SLOW_S, times=200)
    assert stage.order == "bcdea"


def test_a_single_slow_answer_does_not_make_a_bookie_slow_and_quick_ones_make_it_quick() -> None:
    stage = Stage()
    stage.answered("a", 4 * SLOW_S)
    assert stage.order == "abcde"
    stage.answered("a", 4 * SLOW_S, times=2)
    assert stage.order == "bcdea"
    stage.answered("a", QUICK_S, times=20)
    assert stage.order == "abcde"


def test_the_first_answer_counts_in_full() -> None:
    links = Links([Disk("a"), Disk("b")], Random(1))
    health = ReadHealth(links, ManualClock())
    first, second = BookieIdentity("a", "0"), BookieIdentity("b", "0")
    health.answered(first, 2 * SLOW_S)
    health.answered(second, QUICK_S)
    assert health.ordered([first, second]) == [second, first]


def test_a_copy_that_failed_is_asked_last_for_a_while_or_until_it_answers() -> None:
    stage = Stage()
    stage.failed("a")
    assert [identity.bookie_id for identity, _ in stage.links.failures] == ["a"]
    stage.clock.advance(round(SUSPECT_S * 1000) - 1)
    assert stage.order == "bcdea"
    stage.clock.advance(1)
    assert stage.order == "abcde"
    stage.health.late(BookieIdentity("b", "0"))
    assert stage.order == "acdeb"
    assert len(stage.links.failures) == 1  # one that is only late may be well
    stage.answered("b", QUICK_S)
    assert stage.order == "abcde"


def test_quarantine_is_looked_up_now_and_then() -> None:
    stage = Stage()
    assert stage.order == "abcde"
    stage.links.quarantined = {"a"}
    stage.clock.advance(round(QUARANTINE_REFRESH_S * 1000) - 1)
    assert stage.order == "abcde"
    stage.clock.advance(1)
    assert stage.order == "bcdea"
    stage.links.quarantined = set()
    stage.clock.advance(round(QUARANTINE_REFRESH_S * 1000))
    assert stage.order == "abcde"


def test_what_was_known_of_a_bookie_that_left_is_forgotten() -> None:
    stage = Stage()
    assert stage.order == "abcde"
    stage.failed("a")
    stage.failed("b")
    stage.answered("c", 60.0, times=9)
    stage.answered("d", 60.0, times=9)
    assert stage.order == "ecdab"
    for name in "ac":
        stage.links.leave(BookieIdentity(name, "0"))
    stage.clock.advance(round(QUARANTINE_REFRESH_S * 1000))
    assert stage.order == "acedb"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([NoSuchEntry("a"), NoSuchEntry("b")], NoSuchEntry),
        ([NoSuchLedger("a"), NoSuchLedger("b")], NoSuchLedger),
        ([NoSuchLedger("a"), NoSuchEntry("b")], NoSuchEntry),
        ([NoSuchEntry("a"), EntryUnknown("b")], EntryUnknown),
        ([EntryUnknown("a"), NoSuchLedger("b")], EntryUnknown),
        ([EntryUnknown("a"), EntryCorrupt("CRC", "b", 7)], EntryCorrupt),
        ([NoSuchEntry("a"), EntryCorrupt("CRC", "b", 7)], EntryCorrupt),
        ([EntryCorrupt("CRC", "a", 7), BookieUnavailable("b")], BookieUnavailable),
        ([BookieUnavailable("a"), NoSuchEntry("b")], BookieUnavailable),
    ],
)
def test_the_least_certain_copy_decides_what_is_said_of_an_entry(
    failures: Sequence[BookieError], expected: type[BookieError]
) -> None:
    said = verdict(7, 3, failures)
    assert type(said) is expected
    assert type(verdict(7, 3, failures[::-1])) is expected
    if expected in (EntryCorrupt, BookieUnavailable):
        assert said in failures
    else:
        assert all(str(failure) in str(said) for failure in failures)


def entries(*ids: int) -> list[StoredEntry]:
    return [StoredEntry(entry_id, b"%d" % entry_id) for entry_id in ids]


def test_of_a_bookies_answer_only_what_follows_without_a_gap_is_taken() -> None:
    assert contiguous(entries(5), 5, "b") == entries(5)
    assert contiguous(entries(5, 6, 7), 5, "b") == entries(5, 6, 7)
    assert contiguous(entries(5, 7), 5, "b") == entries(5)
    assert contiguous(entries(5, 6, 8, 9), 5, "b") == entries(5, 6)
    assert contiguous(entries(5, 7, 6), 5, "b") == entries(5)
    for others in ((), (4,), (6,), (6, 5), (4, 5)):
        with pytest.raises(NoSuchEntry, match="b answered for others than entry 5"):
            contiguous(entries(*others), 5, "b")


def test_ledgers_are_read_from_each_of_their_bookies_in_turn() -> None:
    copies = tuple(BookieIdentity(name, "0") for name in "abc")
    orders = [
        "".join(one.bookie_id for one in _rotated(copies, ledger_id)) for ledger_id in range(4)
    ]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_the_time_of_a_latency_is_taken_from_the_read() -> None:
    """A copy that takes long is asked after those that do not."""

    async def main() -> None:
        reader, links = await written(Cluster(2, quorum(2, 2, 2, speculative_read_delay_s=9.0)))
        (ensemble,) = reader.metadata.ensembles
        links.links[ensemble.bookies[reader.ledger_id % 2]].slow_s = 0.5
        loop = asyncio.get_running_loop()
        times = []
        for _ in range(2):
            begun = loop.time()
            await reader.read(0, 0, bytes_max=1)
            times.append(loop.time() - begun)
        assert times[0] > 0.5 > times[1]

    virtual(main())

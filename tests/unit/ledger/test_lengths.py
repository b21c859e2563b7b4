"""The length of a ledger that its writer did not close: its source, and the bookies asked."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tests.unit.ledger.cluster import Cluster, Link, virtual
from tests.unit.ledger.flaky_store import LoopClock

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    EntryProof,
    EntryProofs,
    LedgerEnd,
    ProofKind,
    StoredEntry,
)
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.length import Lengths
from magnetar.ledger.metadata import Ensemble, LedgerMetadata
from magnetar.ledger.quorum import write_set
from magnetar.ledger.settings import LedgerSettings

LEDGER = 7
ID = [BookieIdentity(f"b{n}", "0") for n in range(6)]
SIZES = [3, 5, 7, 11, 13, 17, 19, 23, 29, 31]


def record(*firsts: int, size: int = 3, write: int = 3, **changes: Any) -> LedgerMetadata:
    """A ledger whose ensembles of `size` bookies begin at these entries."""
    ensembles = tuple(Ensemble(first, tuple(ID[n : n + size])) for n, first in enumerate(firsts))
    return LedgerMetadata(
        LEDGER,
        ensembles,
        0,
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=2,
        stripe_entries=2,
        **changes,
    )


class Stage:
    """Bookies that hold every entry of SIZES on all of its write set."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.cluster = Cluster(len(ID), LedgerSettings(recovery_request_timeout_s=1.0))
        _, self.links = self.cluster.client()
        self.asked: list[str] = []
        for entry_id, size in enumerate(SIZES):
            for identity in write_set(metadata, entry_id):
                disk = self.cluster.disks[identity.bookie_id]
                disk.add_now(LEDGER, entry_id, [b"x" * size], -1, recovery=True)
        for link in self.links.links.values():
            self.watch(link)
        settings = self.cluster.settings
        context = LedgerContext(self.cluster.store, self.links, LoopClock(), settings, Random(1))
        self.lengths = Lengths(context, metadata)

    def watch(self, link: Link) -> None:
        prove, bookie_id = link.prove_entries, link.identity.bookie_id

        async def watched(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            self.asked.append(bookie_id)
            assert count_max == last - first + 1
            return await prove(ledger_id, first, last, count_max=count_max)

        link.prove_entries = watched  # type: ignore[method-assign]

    def lacks(self, slot: int, *entry_ids: int) -> None:
        for entry_id in entry_ids:
            del self.cluster.disks[f"b{slot}"].ledger(LEDGER).entries[entry_id]

    def begin(self, confirmed: int, **ends: LedgerEnd) -> None:
        self.lengths.begin(
            confirmed, {BookieIdentity(name, "0"): end for name, end in ends.items()}
        )


def end(last_entry: int, length_bytes: int) -> LedgerEnd:
    return LedgerEnd(-1, last_entry, fenced=True, length_bytes=length_bytes)


def read_back(*ids: int) -> list[StoredEntry]:
    return [StoredEntry(entry_id, b"x" * SIZES[entry_id]) for entry_id in ids]


def test_a_bookie_that_has_everything_knows_the_length_and_nobody_is_asked() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.begin(9, b0=end(9, sum(SIZES)))
        assert await stage.lengths.until(9) == sum(SIZES)
        assert stage.asked == []

    virtual(main())


def test_of_those_that_answer_the_one_with_most_bytes_lacks_least() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.begin(9, b0=end(9, sum(SIZES) - 5), b1=end(9, sum(SIZES)), b2=end(9, 3))
        assert await stage.lengths.until(9) == sum(SIZES)

    virtual(main())


def test_what_recovery_read_behind_a_bookies_end_is_added() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.begin(5, b0=end(6, sum(SIZES[:7])))
        stage.lengths.add(read_back(6, 7))
        stage.lengths.add_harmed()
        stage.lengths.add(read_back(9))
        assert await stage.lengths.until(9) == sum(SIZES[:8]) + SIZES[9]
        assert stage.asked == []

    virtual(main())


@pytest.mark.parametrize(
    "useless",
    [
        end(9, -1),  # it does not know
        end(4, 39),  # it lacks confirmed entries
        end(10, 1000),  # it has more than the ledger
    ],
)
def test_an_end_that_does_not_fit_is_not_believed(useless: LedgerEnd) -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.begin(5, b0=useless)
        stage.lengths.add(read_back(6, 7, 8, 9))
        assert await stage.lengths.until(9) == sum(SIZES)
        assert stage.asked == ["b0"]  # a proof of one bookie is enough

    virtual(main())


def test_an_end_fits_from_the_last_confirmed_entry_to_the_last() -> None:
    async def main() -> None:
        for last_entry in (5, 9):
            stage = Stage(record(0))
            stage.begin(5, b1=end(last_entry, sum(SIZES[: last_entry + 1])))
            stage.lengths.add(read_back(6, 7, 8, 9))
            assert await stage.lengths.until(9) == sum(SIZES)
            assert stage.asked == []

    virtual(main())


@pytest.mark.parametrize("metadata", [record(0, 4), record(0, size=4, write=2)])
def test_no_single_bookie_knows_the_length_over_ensembles_or_stripes(
    metadata: LedgerMetadata,
) -> None:
    async def main() -> None:
        stage = Stage(metadata)
        stage.begin(9, b1=end(9, 1))
        assert await stage.lengths.until(9) == sum(SIZES)
        assert stage.asked

    virtual(main())


def test_as_few_bookies_prove_as_have_every_entry() -> None:
    async def main() -> None:
        stage = Stage(record(0, size=4, write=2))
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)
        assert sorted(stage.asked) == ["b0", "b2"]

    virtual(main())


def test_what_they_lack_is_asked_of_the_others_once() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.lacks(0, 2, 9)
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)
        assert sorted(stage.asked) == ["b0", "b1", "b2"]

    virtual(main())


def test_an_entry_that_nobody_can_prove_counts_as_empty() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        for slot in range(3):
            stage.lacks(slot, 3)
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES) - SIZES[3]

    virtual(main())


def test_a_bookie_that_may_prove_what_is_missing_is_not_done_without() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.lacks(0, 3)
        stage.lacks(1, 3)
        stage.links.links[ID[2]].hold()
        stage.begin(9)
        with pytest.raises(RecoveryFailed, match="1 of its entries 0 to 9 are not counted"):
            await stage.lengths.until(9)
        del stage.links.links[ID[2]]  # lost for good: no request waits for it
        assert await stage.lengths.until(9) == sum(SIZES) - SIZES[3]

    virtual(main())


def test_a_silent_bookie_is_no_matter_where_nothing_is_missing() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.links.links[ID[0]].hold()
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)

    virtual(main())


def test_only_a_copy_that_is_there_is_counted() -> None:
    async def main() -> None:
        stage = Stage(record(0))

        async def harmed(*_: object, **__: object) -> EntryProofs:
            proofs = [
                EntryProof(entry_id, ProofKind.CORRUPT if entry_id % 2 else ProofKind.UNKNOWN, 999)
                for entry_id in range(10)
            ]
            return EntryProofs(proofs, 10)

        stage.links.links[ID[0]].prove_entries = harmed  # type: ignore[method-assign]
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)

    virtual(main())


@pytest.mark.parametrize("at_once", [1, 3])
def test_proofs_that_come_in_portions_are_counted_once_each(at_once: int) -> None:
    async def main() -> None:
        stage = Stage(record(0))
        disk = stage.cluster.disks["b0"]
        asked: list[int] = []

        async def some(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            asked.append(first)
            return await disk.prove_entries(ledger_id, first, last, count_max=at_once)

        stage.links.links[ID[0]].prove_entries = some  # type: ignore[method-assign]
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)
        assert asked == list(range(0, 10, at_once))

    virtual(main())


def test_a_bookie_that_does_not_get_on_is_not_asked_for_ever() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        asked = 0

        async def stuck(_ledger_id: int, first: int, _last: int, *, count_max: int) -> EntryProofs:
            nonlocal asked
            asked += count_max > 0
            return EntryProofs([], first)

        stage.links.links[ID[0]].prove_entries = stuck  # type: ignore[assignment,method-assign]
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)
        assert asked == 1

    virtual(main())


@pytest.mark.parametrize("window", [1, 2, 4, 100])
def test_long_ledgers_are_proven_window_by_window(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.ledger.length.PROOFS_AT_ONCE", window)

    async def main() -> None:
        stage = Stage(record(0, 4))
        stage.begin(9)
        assert await stage.lengths.until(9) == sum(SIZES)
        expected = -(-4 // window) + -(-6 // window)
        assert len(stage.asked) == expected

    virtual(main())


@pytest.mark.parametrize(
    ("counted", "confirmed", "tail"),
    [
        (4, 9, ()),  # the record counts the first four
        (6, 5, (6, 7, 8, 9)),  # … all that is confirmed
        (8, 5, (6, 7, 8, 9)),  # … and some of what recovery read itself
        (10, 5, (6, 7, 8, 9)),  # … everything
    ],
)
def test_what_the_record_counts_is_not_counted_again(
    counted: int, confirmed: int, tail: Sequence[int]
) -> None:
    async def main() -> None:
        metadata = record(0, 2, counted_entries=counted, counted_bytes=sum(SIZES[:counted]))
        stage = Stage(metadata)
        stage.begin(confirmed)
        stage.lengths.add(read_back(*tail))
        assert await stage.lengths.until(9) == sum(SIZES)
        assert bool(stage.asked) is (counted <= confirmed)

    virtual(main())


def test_a_count_beyond_the_end_is_not_used() -> None:
    async def main() -> None:
        stage = Stage(record(0, 2, counted_entries=9, counted_bytes=sum(SIZES[:9])))
        stage.begin(5)
        assert await stage.lengths.until(5) == sum(SIZES[:6])

    virtual(main())


def test_an_empty_ledger_has_no_bytes() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        stage.begin(-1)
        assert await stage.lengths.until(-1) == 0
        assert stage.asked == []

    virtual(main())


def test_a_bookie_that_is_certain_to_have_nothing_is_not_waited_for() -> None:
    async def main() -> None:
        stage = Stage(record(0))
        for slot in range(3):
            stage.cluster.disks[f"b{slot}"].ledger(LEDGER).entries.clear()
        stage.cluster.disks["b1"]._ledgers.clear()
        stage.begin(3)
        assert await stage.lengths.until(3) == 0

        async def broken(*_: object, **__: object) -> EntryProofs:
            raise BookieError("a failing disk")

        stage.links.links[ID[2]].prove_entries = broken  # type: ignore[method-assign]
        with pytest.raises(RecoveryFailed, match="a failing disk"):
            await stage.lengths.until(3)

    virtual(main())

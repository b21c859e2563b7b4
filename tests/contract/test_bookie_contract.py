"""What every bookie promises (`bookie.api`), run over the one in memory and the one on disk.

The one on disk runs four ways: as it is; with each add flushed to entry logs before it is read;
reopened before each read; and reopened after a crash, so that reads see a replayed journal. Over
TCP it runs as it is, with the connection cut and with the server started anew before each read.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from google_crc32c import value
from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    EntryProof,
    LedgerEnd,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    ProofKind,
    StoredEntry,
)
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.server import BookieServer
from magnetar.bookie.settings import BookieSettings

SETTINGS = BookieSettings(
    journal_preallocate_bytes=1 << 20, disk_usage_high=1.0, disk_usage_low=1.0
)
ALL = 1 << 62


class Subject:
    """A bookie, and how to disturb it between writing and reading."""

    def __init__(self, kind: str, data_dir: Path) -> None:
        self.kind = kind
        self._data_dir = data_dir
        self._local: LocalBookie | None = None
        self._server: BookieServer | None = None
        self.bookie: Bookie

    async def open(self) -> None:
        if self.kind == "memory":
            self.bookie = MemoryBookie("b1")
            return
        local = await LocalBookie.open(self._data_dir, "b1", settings=SETTINGS)
        self.bookie = local
        if self.kind.startswith("tcp"):
            self._local = local
            await self._serve(0)
            assert self._server is not None
            self.bookie = RemoteBookie(local.identity, "127.0.0.1", self._server.port)

    async def _serve(self, port: int) -> None:
        assert self._local is not None
        self._server = BookieServer(self._local, pressure=self._local)
        await self._server.start(host="127.0.0.1", port=port)

    async def close(self) -> None:
        await self.bookie.close()
        if self._server is not None:
            await self._server.stop()
        if self._local is not None:
            await self._local.close()

    async def settle(self) -> Bookie:
        """Brings what was written to where this kind of subject reads it from."""
        bookie = self.bookie
        if isinstance(bookie, LocalBookie):
            if self.kind == "flushed":
                await bookie.flush()
            elif self.kind == "reopened":
                await bookie.close()
                await self.open()
            elif self.kind == "crashed":
                await bookie.abort()
                await self.open()
        elif self.kind == "tcp-cut":
            assert self._server is not None
            for connection in self._server.connections:
                connection.abort()
            await asyncio.wait_for(self._lost(), 20)
        elif self.kind == "tcp-restarted":
            assert self._server is not None
            port = self._server.port
            await self._server.stop()
            await asyncio.wait_for(self._lost(), 20)
            await self._serve(port)
        return self.bookie

    async def _lost(self) -> None:
        assert isinstance(self.bookie, RemoteBookie)
        while self.bookie.connected:  # noqa: ASYNC110  # the end of a connection is no event here
            await asyncio.sleep(0)


KINDS = "memory local flushed reopened crashed tcp tcp-cut tcp-restarted"


@pytest.fixture(params=KINDS.split())
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    subject = Subject(request.param, tmp_path / "data")
    await subject.open()
    yield subject
    await subject.close()


async def add(
    bookie: Bookie,
    ledger_id: int,
    entry_ids: Sequence[int],
    *,
    lac: int = -1,
    recovery: bool = False,
    entries: Sequence[bytes] | None = None,
) -> None:
    """Adds a group and waits; raises what it was answered."""
    answered: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    if entries is None:
        entries = [data(ledger_id, entry_id) for entry_id in entry_ids]
    bookie.add_entries(
        ledger_id,
        entry_ids,
        entries,
        last_add_confirmed=lac,
        on_added=answered.set_result,
        recovery=recovery,
    )
    error = await asyncio.wait_for(answered, 20)
    if error is not None:
        raise error


def data(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d;" % (ledger_id, entry_id) * (entry_id % 5 + 1)


def end_of(ledger_id: int, lac: int, last: int, *, fenced: bool) -> LedgerEnd:
    """The end of a ledger of entries 0 to `last`."""
    length = sum(len(data(ledger_id, entry_id)) for entry_id in range(last + 1))
    return LedgerEnd(lac, last, fenced, length)


async def read_ids(bookie: Bookie, ledger_id: int, first: int, last: int = ALL) -> list[int]:
    found = await bookie.read_entries(ledger_id, first, last, bytes_max=1 << 30)
    assert all(entry.data == data(ledger_id, entry.entry_id) for entry in found)
    return [entry.entry_id for entry in found]


async def test_what_was_added_is_read(subject: Subject) -> None:
    await add(subject.bookie, 7, range(3))
    await add(subject.bookie, 7, range(3, 4))
    bookie = await subject.settle()
    found = await bookie.read_entries(7, 1, 3, bytes_max=1 << 20)
    assert found == [StoredEntry(entry_id, data(7, entry_id)) for entry_id in (1, 2, 3)]


async def test_ledgers_do_not_mix(subject: Subject) -> None:
    for ledger_id in (3, 1, 2, 256):
        await add(subject.bookie, ledger_id, range(10))
    bookie = await subject.settle()
    for ledger_id in (3, 1, 2, 256):
        assert await read_ids(bookie, ledger_id, 0) == list(range(10))
    assert await bookie.list_ledgers() == [1, 2, 3, 256]


async def test_completions_come_in_order_and_later(subject: Subject) -> None:
    seen: list[tuple[int, BookieError | None]] = []
    all_done = asyncio.Event()

    def done(number: int, error: BookieError | None) -> None:
        seen.append((number, error))
        if len(seen) == 20:
            all_done.set()

    for number in range(20):
        subject.bookie.add_entries(
            5,
            range(number, number + 1),
            [data(5, number)],
            last_add_confirmed=number - 1,
            on_added=partial(done, number),
        )
    assert not seen
    await asyncio.wait_for(all_done.wait(), 20)
    assert seen == [(number, None) for number in range(20)]


async def test_bytes_max_bounds_all_but_the_first(subject: Subject) -> None:
    entries = [b"x" * 100 for _ in range(10)]
    await add(subject.bookie, 1, range(10), entries=entries)
    bookie = await subject.settle()
    for bytes_max, count in ((0, 1), (99, 1), (100, 1), (199, 1), (200, 2), (950, 9), (1000, 10)):
        found = await bookie.read_entries(1, 0, 9, bytes_max=bytes_max)
        assert [entry.entry_id for entry in found] == list(range(count))


async def test_entries_may_be_empty(subject: Subject) -> None:
    await add(subject.bookie, 1, range(3), entries=[b"", b"x", b""])
    await add(subject.bookie, 1, range(3, 4), entries=[b""])
    bookie = await subject.settle()
    found = await bookie.read_entries(1, 0, 9, bytes_max=100)
    assert [entry.data for entry in found] == [b"", b"x", b"", b""]


async def test_holes_are_passed_over_but_not_at_the_first(subject: Subject) -> None:
    await add(subject.bookie, 9, [0, 2, 3, 7])
    await add(subject.bookie, 9, (9, 12))
    await add(subject.bookie, 9, range(20, 23))
    bookie = await subject.settle()
    assert await read_ids(bookie, 9, 0) == [0, 2, 3, 7, 9, 12, 20, 21, 22]
    assert await read_ids(bookie, 9, 2, 9) == [2, 3, 7, 9]
    for absent in (1, 4, 8, 10, 13, 23, 1000):
        with pytest.raises(NoSuchEntry):
            await bookie.read_entries(9, absent, ALL, bytes_max=100)


async def test_holes_are_filled_later(subject: Subject) -> None:
    await add(subject.bookie, 9, [0, 4, 5, 9])
    bookie = await subject.settle()
    await add(bookie, 9, [1, 2], recovery=True)
    await add(bookie, 9, range(6, 9), recovery=True)
    bookie = await subject.settle()
    assert await read_ids(bookie, 9, 0) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


async def test_adding_again_changes_nothing(subject: Subject) -> None:
    await add(subject.bookie, 4, range(10))
    await subject.settle()
    await add(subject.bookie, 4, range(5, 15))
    await add(subject.bookie, 4, [3, 4])
    bookie = await subject.settle()
    await add(bookie, 4, range(2))
    bookie = await subject.settle()
    assert await read_ids(bookie, 4, 0) == list(range(15))


async def test_what_is_not_there(subject: Subject) -> None:
    await add(subject.bookie, 4, range(1))
    bookie = await subject.settle()
    with pytest.raises(NoSuchLedger):
        await bookie.read_entries(5, 0, 0, bytes_max=100)
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(5)
    with pytest.raises(NoSuchEntry):
        await bookie.read_entries(4, 1, 1, bytes_max=100)
    assert await bookie.list_ledgers() == [4]


async def test_a_ledgers_end(subject: Subject) -> None:
    await add(subject.bookie, 4, range(5), lac=2)
    await add(subject.bookie, 4, range(5, 6), lac=1)
    bookie = await subject.settle()
    assert await bookie.ledger_end(4) == end_of(4, 2, 5, fenced=False)


async def test_a_writers_word_raises_what_is_confirmed(subject: Subject) -> None:
    for ledger_id in (4, 5, 6):
        await add(subject.bookie, ledger_id, range(5), lac=2)
    await subject.bookie.note_confirmed([(4, 4), (5, 9), (6, 1), (77, 3)])
    bookie = await subject.settle()
    # A crash may lose it. It may be above what is here: others have the rest.
    kept = subject.kind != "crashed"
    assert await bookie.ledger_end(4) == end_of(4, 4 if kept else 2, 4, fenced=False)
    assert await bookie.ledger_end(5) == end_of(5, 9 if kept else 2, 4, fenced=False)
    assert await bookie.ledger_end(6) == end_of(6, 2, 4, fenced=False)
    assert await bookie.list_ledgers() == [4, 5, 6]
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(77)
    await add(bookie, 4, range(5, 6), lac=3)
    bookie = await subject.settle()
    assert await bookie.ledger_end(4) == end_of(4, 4 if kept else 3, 5, fenced=False)


async def test_a_writers_word_is_not_taken_behind_a_fence(subject: Subject) -> None:
    await add(subject.bookie, 4, range(5), lac=2)
    await add(subject.bookie, 5, range(5), lac=2)
    await subject.bookie.ledger_end(4, fence=True)
    await subject.bookie.ledger_end(8, fence=True)
    await subject.bookie.delete_ledger(5)
    bookie = await subject.settle()
    await bookie.note_confirmed([(4, 4), (5, 4), (8, 4)])
    bookie = await subject.settle()
    assert await bookie.ledger_end(4) == end_of(4, 2, 4, fenced=True)
    assert await bookie.ledger_end(8) == LedgerEnd(-1, -1, True, 0)
    assert await bookie.list_ledgers() == [4, 8]


async def test_the_ends_of_many_ledgers_are_taken_at_once(subject: Subject) -> None:
    """More than one frame has room for."""
    count = 2100
    for ledger_id in (0, 1500, count - 1):
        await add(subject.bookie, ledger_id, range(2), lac=0)
    await subject.bookie.note_confirmed([(ledger_id, 1) for ledger_id in range(count)])
    for ledger_id in (0, 1500, count - 1):
        assert (await subject.bookie.ledger_end(ledger_id)).last_add_confirmed == 1


async def test_a_fence_keeps_the_writer_out(subject: Subject) -> None:
    await add(subject.bookie, 4, range(5), lac=3)
    assert await subject.bookie.ledger_end(4, fence=True) == end_of(4, 3, 4, fenced=True)
    bookie = await subject.settle()
    with pytest.raises(LedgerFenced):
        await add(bookie, 4, range(5, 6), lac=4)
    await add(bookie, 4, range(5, 7), lac=4, recovery=True)
    bookie = await subject.settle()
    assert await bookie.ledger_end(4, fence=True) == end_of(4, 4, 6, fenced=True)
    assert await read_ids(bookie, 4, 0) == list(range(7))


async def test_an_unknown_ledger_stays_fenced(subject: Subject) -> None:
    assert await subject.bookie.ledger_end(8, fence=True) == LedgerEnd(-1, -1, True, 0)
    bookie = await subject.settle()
    with pytest.raises(LedgerFenced):
        await add(bookie, 8, range(1))
    with pytest.raises(NoSuchEntry):
        await bookie.read_entries(8, 0, 0, bytes_max=1)
    assert await bookie.list_ledgers() == [8]


async def test_a_fence_comes_after_the_adds_before_it(subject: Subject) -> None:
    results: list[BookieError | None] = []
    for entry_id in range(5):
        subject.bookie.add_entries(
            4, (entry_id,), [data(4, entry_id)], last_add_confirmed=-1, on_added=results.append
        )
    end = await subject.bookie.ledger_end(4, fence=True)
    assert end.last_entry == 4
    assert results == [None] * 5


async def test_a_refusal_does_not_overtake(subject: Subject) -> None:
    results: list[BookieError | None] = []
    fence = asyncio.ensure_future(subject.bookie.ledger_end(4, fence=True))
    subject.bookie.add_entries(4, (0,), [b"x"], last_add_confirmed=-1, on_added=results.append)
    await asyncio.sleep(0)
    subject.bookie.add_entries(4, (1,), [b"x"], last_add_confirmed=-1, on_added=results.append)
    await fence
    await add(subject.bookie, 5, range(1))
    assert results[0] is None
    assert isinstance(results[1], LedgerFenced)


async def test_a_deleted_ledger_is_gone_for_good(subject: Subject) -> None:
    await add(subject.bookie, 4, range(5))
    await add(subject.bookie, 5, range(5))
    await subject.settle()
    await subject.bookie.delete_ledger(4)
    await subject.bookie.delete_ledger(4)
    await subject.bookie.delete_ledger(77)
    bookie = await subject.settle()
    assert await bookie.list_ledgers() == [5]
    with pytest.raises(NoSuchLedger):
        await bookie.read_entries(4, 0, 0, bytes_max=1)
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(4)
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(4, fence=True)
    # Ledger ids are never given out again: a late add must not bring the ledger back.
    with pytest.raises(NoSuchLedger):
        await add(bookie, 4, range(5, 6), recovery=True)
    bookie = await subject.settle()
    assert await bookie.list_ledgers() == [5]
    assert await read_ids(bookie, 5, 0) == list(range(5))


async def test_a_group_must_be_well_formed(subject: Subject) -> None:
    def answer(_: BookieError | None) -> None:
        raise AssertionError("answered")

    bad: list[tuple[Sequence[int], list[bytes]]] = [
        ((), []),
        ((0,), [b"a", b"b"]),
        ((1, 0), [b"a", b"b"]),
        ((1, 1, 3), [b"a", b"b", b"c"]),
        ((-1,), [b"a"]),
    ]
    for ids, entries in bad:
        with pytest.raises(ValueError, match=r"entr|ids"):
            subject.bookie.add_entries(1, ids, entries, last_add_confirmed=-1, on_added=answer)
    await subject.settle()


async def test_large_and_many(subject: Subject) -> None:
    large = bytes(range(256)) * 4096
    await add(subject.bookie, 1, range(3), entries=[large, b"", large[:-1]])
    for start in range(0, 3000, 300):
        await add(subject.bookie, 2, range(start, start + 300))
    bookie = await subject.settle()
    found = await bookie.read_entries(1, 0, 2, bytes_max=1 << 30)
    assert [entry.data for entry in found] == [large, b"", large[:-1]]
    position = 0
    while position < 3000:
        part = await bookie.read_entries(2, position, ALL, bytes_max=5000)
        assert [entry.entry_id for entry in part] == list(range(position, position + len(part)))
        assert all(entry.data == data(2, entry.entry_id) for entry in part)
        position += len(part)


async def test_the_length_is_exact_or_unknown(subject: Subject) -> None:
    await add(subject.bookie, 4, range(5))
    bookie = await subject.settle()
    await add(bookie, 4, range(3, 8), recovery=True)
    bookie = await subject.settle()
    length = (await bookie.ledger_end(4)).length_bytes
    assert length in (-1, end_of(4, -1, 7, fenced=False).length_bytes)


async def test_identity_and_writable(subject: Subject) -> None:
    before = subject.bookie.identity
    assert before.bookie_id == "b1"
    bookie = await subject.settle()
    assert bookie.identity == before
    assert bookie.writable


async def test_a_recovery_read_fences_even_where_there_is_nothing(subject: Subject) -> None:
    await add(subject.bookie, 7, range(2))
    with pytest.raises(NoSuchEntry):
        await subject.bookie.read_entries(7, 2, 2, bytes_max=1, fence=True)
    with pytest.raises((NoSuchEntry, NoSuchLedger)):
        await subject.bookie.read_entries(8, 0, 0, bytes_max=1, fence=True)
    bookie = await subject.settle()
    for ledger_id, next_entry in ((7, 2), (8, 0)):
        with pytest.raises(LedgerFenced):
            await add(bookie, ledger_id, [next_entry])
    await add(bookie, 7, [2], recovery=True)
    assert await read_ids(bookie, 7, 0) == [0, 1, 2]


async def test_entries_are_proven_without_those_that_are_not_here(subject: Subject) -> None:
    await add(subject.bookie, 7, [0, 1, 4])
    bookie = await subject.settle()
    proofs, next_entry = await bookie.prove_entries(7, 0, 5, count_max=100)
    assert next_entry == 6
    assert proofs == [
        EntryProof(id_, ProofKind.PRESENT, len(data(7, id_)), value(data(7, id_)))
        for id_ in (0, 1, 4)
    ]
    proofs, next_entry = await bookie.prove_entries(7, 1, 5, count_max=2)
    assert ([proof.entry_id for proof in proofs], next_entry) == ([1], 3)
    with pytest.raises(NoSuchLedger):
        await bookie.prove_entries(8, 0, 5, count_max=100)

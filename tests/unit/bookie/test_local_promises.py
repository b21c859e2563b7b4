"""Guarantees of a bookie on disk to its callers: answers, refusals, durability."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from google_crc32c import value
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie import local as local_module
from magnetar.bookie.api import (
    ID_END,
    BookieError,
    BookieReadOnly,
    EntryUnknown,
    LedgerEnd,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    ProofKind,
)
from magnetar.bookie.index.index import Damage
from magnetar.bookie.index.ledgers import LedgerState
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.packed import pack

from .conftest import DATA, SMALL, add, entry, open_sim, read_all, until

BY_HAND = replace(SMALL, tick_s=1000.0)


class Rig:
    """A bookie on a simulated disk that can be opened again."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.index = SimIndexStore(self.disk, DATA / "index")
        self.bookie: LocalBookie

    async def open(self) -> None:
        self.index = SimIndexStore(self.disk, DATA / "index", self.index.synced)
        self.bookie = await open_sim(self.disk, self.index, BY_HAND)

    async def again(self, *, clean: bool) -> None:
        await (self.bookie.close() if clean else self.bookie.abort())
        await self.open()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.open()
    yield made
    await made.bookie.close()


async def answer(
    bookie: LocalBookie, ledger_id: int, first: int, **options: bool
) -> BookieError | None:
    """Returns the answer to an add of one entry."""
    answered: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        ledger_id,
        range(first, first + 1),
        [entry(ledger_id, first)],
        last_add_confirmed=first - 1,
        on_added=answered.set_result,
        **options,
    )
    return await asyncio.wait_for(answered, 20)


async def confirmed(bookie: LocalBookie, ledger_id: int = 1) -> int:
    return (await bookie.ledger_end(ledger_id)).last_add_confirmed


async def test_last_add_confirmed_only_increases_and_is_kept(rig: Rig) -> None:
    await add(rig.bookie, 1, range(9))
    assert await confirmed(rig.bookie) == -1
    for reported, expected in ((3, 3), (2, 3), (3, 3), (5, 5), (-1, 5)):
        await rig.bookie.note_confirmed([(1, reported)])
        assert await confirmed(rig.bookie) == expected
    await rig.bookie.flush()
    await rig.again(clean=False)
    assert await confirmed(rig.bookie) == 5
    assert await answer(rig.bookie, 1, 9) is None
    assert await confirmed(rig.bookie) == 8, "an add says it too"
    assert await answer(rig.bookie, 1, 4) is None
    assert await confirmed(rig.bookie) == 8


async def test_confirm_skips_absent_fenced_and_deleted_ledgers(rig: Rig) -> None:
    for ledger_id in (1, 2, 3):
        await add(rig.bookie, ledger_id, range(3))
    await rig.bookie.ledger_end(1, fence=True)
    await rig.bookie.delete_ledger(2)
    await rig.bookie.note_confirmed([(1, 2), (2, 2), (4, 2), (3, 2)])
    assert await confirmed(rig.bookie, 1) == -1
    assert await confirmed(rig.bookie, 3) == 2
    assert await rig.bookie.list_ledgers() == [1, 3]
    with pytest.raises(NoSuchLedger):
        await rig.bookie.ledger_end(4)


@pytest.mark.parametrize("wrong", [(-1, 0), (ID_END, 0), (1, -2), (1, ID_END)])
async def test_invalid_confirmation_rejects_the_whole_request(
    rig: Rig, wrong: tuple[int, int]
) -> None:
    await add(rig.bookie, 1, range(3))
    with pytest.raises(ValueError, match="no last add confirmed"):
        await rig.bookie.note_confirmed([(1, 1), wrong])
    assert await confirmed(rig.bookie) == -1
    await rig.bookie.note_confirmed([(0, -1), (ID_END - 1, ID_END - 1)])


async def test_group_size_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "GROUP_BYTES_MAX", 10)
    monkeypatch.setattr(local_module, "ENTRIES_PER_GROUP_MAX", 3)

    def made(entries: list[bytes]) -> None:
        rig.bookie.add_entries(
            1, range(len(entries)), entries, last_add_confirmed=-1, on_added=lambda _: None
        )

    made([b"x" * 10])
    made([b"", b"", b""])
    for too_large in ([b"x" * 11], [b""] * 4, pack([b"x" * 6, b"y" * 5])):
        with pytest.raises(ValueError, match="is too large"):
            made(too_large)


@pytest.mark.parametrize(
    ("ids", "count", "lac"),
    [
        (range(2), 1, -1),
        (range(1), 2, -1),
        (range(0), 0, -1),
        (range(-1, 1), 2, -1),
        (range(ID_END - 1, ID_END + 1), 2, -1),
        (range(1), 1, -2),
        (range(1), 1, ID_END),
    ],
    ids=str,
)
async def test_invalid_groups_are_refused_at_once(
    rig: Rig, ids: range, count: int, lac: int
) -> None:
    with pytest.raises(ValueError, match=r"entries for|neither an entry id"):
        rig.bookie.add_entries(
            1, ids, [b"x"] * count, last_add_confirmed=lac, on_added=lambda _: None
        )
    assert rig.bookie.pending_bytes == 0


async def test_a_fence_refuses_the_writer_at_once_and_costs_one_record(rig: Rig) -> None:
    await add(rig.bookie, 1, range(3))
    fencing = asyncio.ensure_future(rig.bookie.ledger_end(1, fence=True))
    await asyncio.sleep(0)
    assert isinstance(await answer(rig.bookie, 1, 3), LedgerFenced)
    assert await fencing == LedgerEnd(-1, 2, True, 300)
    steps = rig.disk.steps
    assert (await rig.bookie.ledger_end(1, fence=True)).fenced
    assert rig.disk.steps == steps
    result = await rig.bookie.read_entries(1, 0, 0, bytes_max=1, fence=True)
    assert len(result) == 1
    assert await answer(rig.bookie, 1, 3, recovery=True) is None
    for clean in (False, True):
        await rig.again(clean=clean)
        assert isinstance(await answer(rig.bookie, 1, 4), LedgerFenced)


async def test_no_answer_before_durability(rig: Rig) -> None:
    """Adds, fences, reads that fence, and deletions: each waits for the sync of its record."""
    for ledger_id in (1, 2, 3, 4):
        await add(rig.bookie, ledger_id, range(3))
    rig.bookie._journal.hold()
    asked = [
        asyncio.ensure_future(answer(rig.bookie, 1, 3)),
        asyncio.ensure_future(rig.bookie.ledger_end(2, fence=True)),
        asyncio.ensure_future(rig.bookie.read_entries(3, 0, 0, bytes_max=1, fence=True)),
        asyncio.ensure_future(rig.bookie.delete_ledger(4)),
        asyncio.ensure_future(rig.bookie.ledger_end(5, fence=True)),
    ]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not [item for item in asked if item.done()]
    with pytest.raises(NoSuchEntry):
        await rig.bookie.read_entries(1, 3, 3, bytes_max=1)
    assert (await rig.bookie.ledger_end(4)).last_entry == 2, "it is there until its delete is"
    syncs: list[str] = []
    rig.disk.fault = lambda step, path: syncs.append(path.name) if "sync" in step else None
    rig.bookie._journal.release()
    assert not [item for item in asked if item.done()]
    await asyncio.gather(*asked)
    assert [name for name in syncs if name.endswith(".journal")]
    rig.disk.fault = None
    await rig.again(clean=False)
    assert await read_all(rig.bookie, 1) == [0, 1, 2, 3]
    for ledger_id in (2, 3, 5):
        assert isinstance(await answer(rig.bookie, ledger_id, 3), LedgerFenced)
    assert isinstance(await answer(rig.bookie, 4, 3), NoSuchLedger)


@pytest.mark.parametrize("asked", ["add", "fence", "reading fence", "delete"])
async def test_records_that_fail_are_answered_with_an_error(rig: Rig, asked: str) -> None:
    await add(rig.bookie, 1, range(3))
    await rig.bookie.flush()
    broken = OSError(5, "Input/output error")
    rig.disk.fault = lambda _, path: broken if path.suffix == ".journal" else None
    if asked == "add":
        assert isinstance(await answer(rig.bookie, 1, 3), BookieReadOnly)
    else:
        made = {
            "fence": rig.bookie.ledger_end(1, fence=True),
            "reading fence": rig.bookie.read_entries(1, 0, 0, bytes_max=1, fence=True),
            "delete": rig.bookie.delete_ledger(1),
        }
        for name, item in made.items():
            if name == asked:
                with pytest.raises(BookieReadOnly, match="journal failed"):
                    await item
            else:
                item.close()
    rig.disk.fault = None
    assert await read_all(rig.bookie, 1) == [0, 1, 2]
    assert rig.bookie._ledgers.get(1).pending == 0
    assert isinstance(await answer(rig.bookie, 1, 3), BookieReadOnly | LedgerFenced)
    await rig.again(clean=False)
    assert await read_all(rig.bookie, 1) == [0, 1, 2]
    assert await answer(rig.bookie, 1, 3) is None


async def test_fencing_read_fences(rig: Rig) -> None:
    await add(rig.bookie, 1, range(3))
    with pytest.raises(NoSuchEntry):
        await rig.bookie.read_entries(1, 9, 9, bytes_max=1, fence=True)
    assert isinstance(await answer(rig.bookie, 1, 3), LedgerFenced)
    await rig.bookie.ledger_end(7, fence=True)
    assert await rig.bookie.list_ledgers() == [1, 7], "a ledger that never was is fenced too"
    await rig.again(clean=False)
    assert isinstance(await answer(rig.bookie, 7, 0), LedgerFenced)


async def test_deleted_ledger_is_absent_for_all_requests(rig: Rig) -> None:
    await rig.bookie.delete_ledger(9)
    assert await answer(rig.bookie, 9, 0) is None, "what was never here is not deleted"
    await add(rig.bookie, 1, range(3))
    await add(rig.bookie, 2, range(3))
    await rig.bookie.flush()
    deleting = asyncio.ensure_future(rig.bookie.delete_ledger(1))
    await asyncio.sleep(0)
    assert isinstance(await answer(rig.bookie, 1, 3, recovery=True), NoSuchLedger)
    await deleting
    await rig.bookie.delete_ledger(1)
    for clean in (None, False, True):
        if clean is not None:
            await rig.again(clean=clean)
        for asked in (
            rig.bookie.read_entries(1, 0, 0, bytes_max=1),
            rig.bookie.ledger_end(1),
            rig.bookie.ledger_end(1, fence=True),
            rig.bookie.prove_entries(1, 0, 2, count_max=9),
        ):
            with pytest.raises(NoSuchLedger):
                await asked
        assert isinstance(await answer(rig.bookie, 1, 0, recovery=True), NoSuchLedger)
        assert await rig.bookie.list_ledgers() == [2, 9]
        assert await read_all(rig.bookie, 2) == [0, 1, 2]


async def test_add_completes_after_an_earlier_refusal(rig: Rig) -> None:
    await rig.bookie.ledger_end(2, fence=True)
    answers: list[tuple[int, type[BookieError] | None]] = []
    rig.bookie._journal.hold()
    for number, ledger_id in enumerate((1, 2, 1, 2, 2, 1)):

        def answered(error: BookieError | None, number: int = number) -> None:
            answers.append((number, None if error is None else type(error)))

        rig.bookie.add_entries(
            ledger_id,
            range(number, number + 1),
            [b"x"],
            last_add_confirmed=-1,
            on_added=answered,
        )
    await asyncio.sleep(0)
    assert answers == []
    rig.bookie._journal.release()
    await until(lambda: len(answers) == 6)
    refused = (1, 3, 4)
    assert answers == [(n, LedgerFenced if n in refused else None) for n in range(6)]
    assert rig.bookie._ledgers.get(1).pending == rig.bookie._ledgers.get(2).pending == 0


async def test_proofs_cover_the_stored_entries(rig: Rig) -> None:
    await add(rig.bookie, 1, [0, 1, 4, 5, 9])
    await rig.bookie.flush()
    for first, last, count_max, proven in (
        (0, 9, 100, [0, 1, 4, 5, 9]),
        (0, 9, 5, [0, 1, 4]),
        (1, 4, 100, [1, 4]),
        (2, 3, 100, []),
        (9, 50, 3, [9]),
    ):
        result = await rig.bookie.prove_entries(1, first, last, count_max=count_max)
        assert [proof.entry_id for proof in result.proofs] == proven
        assert result.next_entry == min(last, first + count_max - 1) + 1
        for proof in result.proofs:
            data = entry(1, proof.entry_id)
            assert proof.kind is ProofKind.PRESENT
            assert (proof.length_bytes, proof.crc) == (len(data), value(data))


async def test_an_add_to_an_unreadable_ledger_is_refused_behind_earlier_adds(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come in the order of the adds, also those that need no disk."""
    get = rig.bookie._ledgers.get

    def unreadable(ledger_id: int) -> LedgerState:
        if ledger_id == 2:
            raise OSError("the index cannot be read")
        return get(ledger_id)

    monkeypatch.setattr(rig.bookie._ledgers, "get", unreadable)
    answers: list[tuple[int, BookieError | None]] = []
    rig.bookie._journal.hold()
    for ledger_id in (1, 2):
        rig.bookie.add_entries(
            ledger_id,
            range(1),
            [b"x"],
            last_add_confirmed=-1,
            on_added=lambda error, ledger_id=ledger_id: answers.append((ledger_id, error)),  # type: ignore[misc]
        )
    for _ in range(3):
        await asyncio.sleep(0)
    assert answers == []
    rig.bookie._journal.release()
    await until(lambda: len(answers) == 2)
    assert answers[0] == (1, None)
    assert answers[1][0] == 2
    assert "the index cannot be read" in str(answers[1][1])


async def test_proof_reports_damaged_and_possibly_lost_entries(rig: Rig) -> None:
    """Neither counts as a copy, and for neither is the bookie sure that it never existed."""
    await add(rig.bookie, 1, [0, 1, 2, 5])
    await add(rig.bookie, 2, [0])
    rig.bookie._ledgers.add_damage(Damage(1, 3, 3, "/journal/x.damaged", 77))
    result = await rig.bookie.prove_entries(1, 0, 6, count_max=100)
    present = ProofKind.PRESENT
    assert [(proof.entry_id, proof.kind) for proof in result.proofs] == [
        *((entry_id, present) for entry_id in (0, 1, 2)),
        (3, ProofKind.CORRUPT),
        (5, present),
    ]
    rig.bookie._ledgers.set_limbo(1)
    result = await rig.bookie.prove_entries(1, 0, 6, count_max=100)
    assert [(proof.entry_id, proof.kind) for proof in result.proofs] == [
        *((entry_id, present) for entry_id in (0, 1, 2)),
        (3, ProofKind.CORRUPT),
        (4, ProofKind.UNKNOWN),
        (5, present),
        (6, ProofKind.UNKNOWN),
    ]
    assert {proof.length_bytes for proof in result.proofs if proof.kind is not present} == {0}
    assert result.next_entry == 7
    result = await rig.bookie.prove_entries(2, 0, 1, count_max=100)
    assert [(proof.entry_id, proof.kind) for proof in result.proofs] == [(0, present)]
    with pytest.raises(EntryUnknown):
        await rig.bookie.prove_entries(0, 0, 1, count_max=100)
    with pytest.raises(NoSuchLedger):
        await rig.bookie.prove_entries(9, 0, 1, count_max=100)


async def test_closed_bookie_refuses_everything(rig: Rig) -> None:
    await add(rig.bookie, 1, range(3))
    for end in (rig.bookie.close, rig.bookie.abort, rig.bookie.close):
        await end()
        assert not rig.bookie.writable
        for asked in (
            rig.bookie.ledger_end(2, fence=True),
            rig.bookie.delete_ledger(1),
            rig.bookie.note_confirmed([]),
        ):
            with pytest.raises(BookieReadOnly):
                await asked
    await rig.open()
    assert await read_all(rig.bookie, 1) == [0, 1, 2]

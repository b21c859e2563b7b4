"""Reads against a model: answers are independent of flushes, moves and rewrites.

A reader sees each entry once, in order, with the bytes that were written last, and no entry that
was never added. Everything runs on the loop, on a simulated disk: the same history each time.
"""

import errno
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieError, NoSuchEntry, NoSuchLedger, StoredEntry
from magnetar.bookie.local import LocalBookie

from .conftest import DATA, SMALL, collect_garbage, open_sim, until

SETTINGS = replace(
    SMALL,
    tick_s=1000.0,
    block_bytes=300,
    block_bytes_max=500,
    entry_log_bytes=4_000,
    read_cache_bytes=4_000,
    entry_logs_open_max=2,
)
CHANGES = ("add", "add", "add", "rewrite", "flush", "broken flush", "collect", "delete")
LEDGERS = (1, 2, 3)
IDS = 40
BROKEN = OSError(errno.EIO, "Input/output error")
STEPS = 45


class Model:
    """The acknowledged entries."""

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.deleted: set[int] = set()

    def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[StoredEntry]:
        """Raises the class of error that a reader must get."""
        entries = self.ledgers.get(ledger_id)
        if entries is None or ledger_id in self.deleted:
            raise NoSuchLedger("")
        if first not in entries:
            raise NoSuchEntry("")
        result: list[StoredEntry] = []
        room = bytes_max
        for entry_id in range(first, last + 1):
            if entry_id not in entries:
                continue
            room -= len(entries[entry_id])
            if room < 0 and result:
                break
            result.append(StoredEntry(entry_id, entries[entry_id]))
        return result


async def added(bookie: LocalBookie, ledger_id: int, entries: dict[int, bytes]) -> None:
    """Adds a group, which must succeed."""
    answers: list[BookieError | None] = []
    ids = tuple(entries)
    bookie.add_entries(
        ledger_id, ids, list(entries.values()), last_add_confirmed=-1, on_added=answers.append
    )
    await until(lambda: bool(answers))
    assert answers == [None]


async def change(bookie: LocalBookie, disk: SimDisk, model: Model, rng: Random) -> None:
    """Applies one random operation to a bookie."""
    kind = rng.choice(
        ("add", "add", "add", "rewrite", "flush", "broken flush", "collect", "delete")
    )
    ledger_id = rng.choice(LEDGERS)
    if kind in ("add", "rewrite"):
        if ledger_id in model.deleted:
            return
        entries_of = model.ledgers.setdefault(ledger_id, {})
        first = rng.randrange(IDS)
        ids = list(range(first, first + rng.randrange(1, 8)))
        if rng.random() < 0.5:  # with holes, as the bookie of a striped ledger has them
            ids = sorted({first, *rng.sample(ids, rng.randrange(len(ids)))})
        if kind == "add":
            ids = [entry_id for entry_id in ids if entry_id not in entries_of] or [
                max(entries_of) + 1
            ]
        group = {entry_id: rng.randbytes(rng.randrange(1, 120)) for entry_id in ids}
        await added(bookie, ledger_id, group)
        entries_of |= group
    elif kind == "flush":
        await bookie.flush()
    elif kind == "broken flush":
        disk.fault = lambda _, path: BROKEN if path.suffix == ".log" else None
        with suppress(OSError):
            await bookie.flush()
        disk.fault = None
        for element, entries_of in model.ledgers.items():
            if element not in model.deleted and entries_of:
                # Written again while the half that has it is still to be flushed.
                again = {rng.choice(sorted(entries_of)): rng.randbytes(rng.randrange(1, 120))}
                await added(bookie, element, again)
                entries_of |= again
    elif kind == "collect":
        await bookie.flush()
        await collect_garbage(bookie)
    elif rng.random() < 0.1:
        await bookie.delete_ledger(ledger_id)
        model.deleted.add(ledger_id)
        model.ledgers.setdefault(ledger_id, {})


async def check(bookie: LocalBookie, model: Model, rng: Random) -> None:
    """Reads of every kind, against the model."""
    for _ in range(6):
        ledger_id = rng.choice((*LEDGERS, 4))
        first = rng.randrange(IDS)
        last = first + rng.choice((0, 1, 5, IDS))
        bytes_max = rng.choice((0, 1, 119, 200, 1000, 1 << 20))
        before = bookie.stats()
        try:
            expected = model.read(ledger_id, first, last, bytes_max)
        except BookieError as error:
            with pytest.raises(type(error)):
                await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max)
            continue
        assert await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max) == expected
        after = bookie.stats()
        assert after.entries_read - before.entries_read == len(expected)
        assert after.bytes_read - before.bytes_read == sum(len(item.data) for item in expected)
        assert after.read_cache_bytes <= SETTINGS.read_cache_bytes
    live = {
        id_: entries_of for id_, entries_of in model.ledgers.items() if id_ not in model.deleted
    }
    assert await bookie.list_ledgers() == sorted(live)
    for ledger_id, entries_of in live.items():
        end = await bookie.ledger_end(ledger_id)
        assert end.last_entry == max(entries_of)
        whole = await bookie.read_entries(ledger_id, min(entries_of), IDS * 3, bytes_max=1 << 20)
        assert whole == [
            StoredEntry(entry_id, entries_of[entry_id]) for entry_id in sorted(entries_of)
        ]


@pytest.mark.parametrize("seed", range(3))
async def test_readers_see_the_latest_bytes_in_any_storage_tier(seed: int) -> None:
    rng = Random(seed)
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, SETTINGS)
    model = Model()
    for step in range(STEPS):
        await change(bookie, disk, model, rng)
        await check(bookie, model, rng)
        if step % 15 == 14:
            await (bookie.close() if rng.random() < 0.5 else bookie.abort())
            index = SimIndexStore(disk, DATA / "index", index.synced)
            bookie = await open_sim(disk, index, SETTINGS)
            await check(bookie, model, rng)
    await bookie.close()

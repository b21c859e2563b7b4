"""Planted bugs of the bookie: durability, and lost knowledge of damage."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import faults, ledgers, quorum, together

from magnetar.bookie.entry_log.flush import Flusher, FlushJob
from magnetar.bookie.index.ledgers import Ledgers, LedgerState
from magnetar.bookie.journal.files import JournalWriter
from magnetar.bookie.ledger_changes import LedgerChanges
from magnetar.bookie.upkeep.ledger_garbage import LedgerGarbage


def receipts_before_the_sync() -> None:
    write = JournalWriter.write

    def unsynced(self: JournalWriter, buffers: Sequence[bytes], seq: int, *, durable: bool) -> None:
        write(self, buffers, seq, durable=False)

    plant(JournalWriter, "write", unsynced)


def trims_before_the_checkpoint() -> None:
    def run(self: Flusher, job: FlushJob) -> FlushJob:
        self._trim(job.mark)
        if not job.indexed:
            self._write(job)
            job.indexed = True
        self._checkpoint.advance(job.mark)
        return job

    plant(Flusher, "run", run)


def checkpoint_before_the_index() -> None:
    def write(self: Flusher, job: FlushJob) -> None:
        plain, overlapping = self._write_blocks(job)
        self._writer.sync()
        with self._index.change(sync=False):
            self._put(job, plain, overlapping)
        self._writer.committed()

    plant(Flusher, "_write", write)


def fences_are_not_written() -> None:
    async def fence(_: LedgerChanges, state: LedgerState) -> None:
        await asyncio.sleep(0)
        state.fenced = state.exists = True

    plant(LedgerChanges, "fence", fence)


def what_is_not_here_is_not_fenced() -> None:
    fence = LedgerChanges.fence

    async def fence_what_is_here(self: LedgerChanges, state: LedgerState) -> None:
        if state.exists or state.pending:
            await fence(self, state)

    plant(LedgerChanges, "fence", fence_what_is_here)


def damage_is_forgotten() -> None:
    def nothing(self: Ledgers, *_: Any) -> None:
        """The journal's damage is logged, and that is all."""

    plant(Ledgers, "set_limbo", nothing)
    plant(Ledgers, "is_limbo", lambda *_: False)
    plant(Ledgers, "damage", lambda *_: None)


def garbage_is_what_is_not_listed() -> None:
    async def compare(self: LedgerGarbage) -> list[int]:
        known = set(await self._bookie.list_ledgers())
        known -= {int(name) for name in list(await self._store.children("/ledgers/"))[:-1]}
        for ledger_id in known:
            await self._bookie.delete_ledger(ledger_id)
        return sorted(known)

    plant(LedgerGarbage, "compare", compare)


POWER: Final = faults("power off bookie", "kill broker", "kill bookie", count=10)

BUGS: Final = (
    Bug(
        "receipt before fsync",
        "Adds are answered when they are written, not when they are on disk: a power cut takes "
        "what was receipted.",
        receipts_before_the_sync,
        1,
        together(quorum(2, 2, 2), POWER),
    ),
    Bug(
        "journal trimmed before the checkpoint",
        "Journal files go while what they hold is not in the entry logs yet.",
        trims_before_the_checkpoint,
        467,
        together(quorum(2, 2, 2), faults("power off bookie", "kill broker", count=14)),
    ),
    Bug(
        "checkpoint before the index is on disk",
        "The checkpoint says that entries are in the index, which a crash takes.",
        checkpoint_before_the_index,
        0,
        together(quorum(2, 2, 2), POWER),
    ),
    Bug(
        "fence not written",
        "A bookie forgets its fences when it is restarted, and takes adds of the old writer again.",
        fences_are_not_written,
        0,
        together(
            ledgers(), quorum(2, 2, 2), faults("kill bookie", "pause broker", count=14, for_s=0.3)
        ),
    ),
    Bug(
        "a fence without entries is forgotten",
        "A bookie is fenced before the first entry of the ledger reaches it, and then takes it.",
        what_is_not_here_is_not_fenced,
        1,
        together(ledgers(), quorum(3, 3, 2), faults("late copy", "stalls", count=10)),
    ),
    Bug(
        "damage forgotten",
        "A bookie that found its journal damaged answers for what it lost as if it had never been "
        "there.",
        damage_is_forgotten,
        779,
        together(ledgers(), quorum(2, 2, 2), faults("flip journal", "kill broker", count=9)),
    ),
    Bug(
        "new ledgers taken for garbage",
        "A bookie deletes what is in no record as it read them, new ledgers included.",
        garbage_is_what_is_not_listed,
        1,
    ),
)

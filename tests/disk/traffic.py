"""Clients of the bookie: adds, fences, deletes and reads by seed, and the check of all of it."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from tests.disk.acknowledged import Key, Told, Violation
from tests.disk.bookie import BookieProcess

from magnetar.bookie.api import (
    BookieError,
    BookieUnavailable,
    EntryUnknown,
    LedgerFenced,
    NoSuchLedger,
)
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.settings import RemoteSettings

OUTSTANDING_MAX: Final = 12
"""Groups of entries that wait for their receipt."""
OPEN_LEDGERS: Final = 4
REQUEST_TIMEOUT_S: Final = 20.0
READ_BYTES: Final = 1 << 20


def remote(process: BookieProcess, timeout_s: float = REQUEST_TIMEOUT_S) -> RemoteBookie:
    """A client of the process that lives now."""
    settings = RemoteSettings(timeout_s=timeout_s, retry_s_max=0.2)
    return RemoteBookie(process.identity, "127.0.0.1", process.port, settings=settings)


class Traffic:
    """One life's requests."""

    def __init__(
        self, told: Told, rng: Random, bookie: RemoteBookie, alive: Callable[[], bool]
    ) -> None:
        self._told = told
        self._rng = rng
        self.bookie = bookie
        self._alive = alive
        self._outstanding = 0
        self._room = asyncio.Event()
        self._broken: Violation | None = None
        self.receipts = 0
        self.refusals: list[BookieError] = []
        self._requests: set[asyncio.Task[None]] = set()

    async def run(self, steps: int) -> None:
        """Sends `steps` requests, or fewer where the bookie dies."""
        for _ in range(steps):
            if self._broken is not None:
                raise self._broken
            if not self._alive():
                return
            await self._step()

    async def settle(self) -> None:
        """Waits for the answers."""
        while self._outstanding:
            self._room.clear()
            await self._room.wait()
        await asyncio.gather(*self._requests)
        if self._broken is not None:
            raise self._broken

    async def _step(self) -> None:
        rng, told = self._rng, self._told
        choice = rng.random()
        if choice < 0.80:
            await self.add_some()
        elif choice < 0.92 and told.acked:
            await self.read(*rng.choice(sorted(told.acked)), rng.randint(0, 20))
        elif choice < 0.95 and told.fenced - told.deleting:
            await self._add_to_fenced(rng.choice(sorted(told.fenced - told.deleting)))
        elif choice < 0.98:
            self._later(self._fence(rng.choice(self._ledgers())))
        elif told.fencing - told.deleting:
            self._later(self._delete(rng.choice(sorted(told.fencing - told.deleting))))

    def _later(self, request: "asyncio.Future[None] | object") -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(request)  # type: ignore[arg-type]
        self._requests.add(task)

    def _ledgers(self) -> list[int]:
        """The ledgers that are written, new ones where some were fenced."""
        told = self._told
        open_ones = [id_ for id_ in told.next_entry if id_ not in told.fencing]
        while len(open_ones) < OPEN_LEDGERS:
            fresh = max(told.next_entry, default=0) + 1
            told.next_entry[fresh] = 0
            open_ones.append(fresh)
        return open_ones

    async def add_some(self) -> None:
        """Adds a group to one of the ledgers; now and then one that was refused before."""
        rng, told = self._rng, self._told
        if told.refused and rng.random() < 0.3:
            ledger_id, ids = told.refused.pop()
            if ledger_id not in told.fencing:
                await self._add(ledger_id, ids)
            return
        ledger_id = rng.choice(self._ledgers())
        first = told.next_entry[ledger_id]
        ids = tuple(range(first, first + rng.choice((1, 1, 2, 5, 10))))
        told.next_entry[ledger_id] = ids[-1] + 1
        await self._add(ledger_id, ids)

    async def _add_to_fenced(self, ledger_id: int) -> None:
        """As its writer, which must be refused, or as its recovery."""
        told = self._told
        first = told.next_entry[ledger_id]
        told.next_entry[ledger_id] += 1
        await self._add(ledger_id, (first,), recovery=self._rng.random() < 0.5)

    async def _add(self, ledger_id: int, ids: tuple[int, ...], *, recovery: bool = False) -> None:
        while self._outstanding >= OUTSTANDING_MAX:
            self._room.clear()
            await self._room.wait()
        told = self._told
        told.tried.update((ledger_id, entry_id) for entry_id in ids)
        refused = ledger_id in told.deleted or (ledger_id in told.fenced and not recovery)
        self._outstanding += 1

        def answered(error: BookieError | None) -> None:
            self._outstanding -= 1
            self._room.set()
            if error is None:
                self.receipts += 1
                if refused and not told.lossy:
                    self._broken = Violation(f"ledger {ledger_id}, fenced or deleted, took {ids}")
                told.added(ledger_id, ids)
            else:
                self.refusals.append(error)
                told.refused.append((ledger_id, ids))

        entries = [told.entry(ledger_id, entry_id) for entry_id in ids]
        self.bookie.add_entries(
            ledger_id, ids, entries, last_add_confirmed=-1, on_added=answered, recovery=recovery
        )
        # The connection's side of the loop has its turn too.
        await asyncio.sleep(0)

    async def add_one(self) -> BookieError | None:
        """Adds a group and waits for its answer."""
        before = len(self.refusals)
        await self.add_some()
        await self.settle()
        return self.refusals[-1] if len(self.refusals) > before else None

    async def read(self, ledger_id: int, entry_id: int, more: int = 0) -> None:
        """Reads entries; what comes must be right."""
        told = self._told.as_of_now()
        try:
            found = await self.bookie.read_entries(
                ledger_id, entry_id, entry_id + more, bytes_max=READ_BYTES
            )
        except BookieUnavailable:
            return
        except BookieError as error:
            told.check_read_error((ledger_id, entry_id), error)
        else:
            told.check_entries(ledger_id, entry_id, found)

    async def _fence(self, ledger_id: int) -> None:
        self._told.fencing.add(ledger_id)
        try:
            await self.bookie.ledger_end(ledger_id, fence=True)
        except BookieError as error:
            self.refusals.append(error)
        else:
            self._told.fenced.add(ledger_id)

    async def _delete(self, ledger_id: int) -> None:
        self._told.deleting.add(ledger_id)
        try:
            await self.bookie.delete_ledger(ledger_id)
        except BookieError as error:
            self.refusals.append(error)
        else:
            self._told.deleted.add(ledger_id)


async def check(told: Told, bookie: RemoteBookie) -> None:
    """Everything that was ever tried, held against what the bookie says now."""
    for ledger_id in sorted(told.next_entry):
        await _check_entries(told, bookie, ledger_id)
        await _check_proofs(told, bookie, ledger_id)
    for ledger_id in sorted(told.deleted):
        try:
            await bookie.ledger_end(ledger_id)
        except (NoSuchLedger, EntryUnknown):
            continue
        if not told.lossy:
            raise Violation(f"deleted ledger {ledger_id} is there again")
    for ledger_id in sorted(told.fenced - told.deleting):
        await _check_fence(told, bookie, ledger_id)


async def _check_entries(told: Told, bookie: RemoteBookie, ledger_id: int) -> None:
    """Reads a ledger as a recovery does, and goes on behind whatever it cannot read."""
    entry_id, end = 0, told.next_entry[ledger_id]
    while entry_id < end:
        key: Key = (ledger_id, entry_id)
        try:
            found = await bookie.read_entries(ledger_id, entry_id, end - 1, bytes_max=READ_BYTES)
        except BookieUnavailable as error:
            raise Violation(f"no answer to a read of {key}: {error}") from error
        except BookieError as error:
            told.check_read_error(key, error)
            entry_id += 1
        else:
            told.check_entries(ledger_id, entry_id, found)
            entry_id = found[-1].entry_id + 1


async def _check_proofs(told: Told, bookie: RemoteBookie, ledger_id: int) -> None:
    entry_id, end = 0, told.next_entry[ledger_id]
    while entry_id < end:
        try:
            proofs = await bookie.prove_entries(ledger_id, entry_id, end - 1, count_max=1000)
        except BookieError as error:
            told.check_read_error(
                max(
                    told.acked & {(ledger_id, n) for n in range(entry_id, end)},
                    default=(ledger_id, entry_id),
                ),
                error,
            )
            return
        proven = {proof.entry_id for proof in proofs.proofs}
        for proof in proofs.proofs:
            told.check_proof(ledger_id, proof)
        for absent in set(range(entry_id, min(proofs.next_entry, end))) - proven:
            if not told.absent_is_right((ledger_id, absent)):
                raise Violation(f"acknowledged, and a proof leaves out {ledger_id}:{absent}")
        entry_id = proofs.next_entry


async def _check_fence(told: Told, bookie: RemoteBookie, ledger_id: int) -> None:
    """The ledger's writer is refused."""
    first = told.next_entry[ledger_id]
    told.next_entry[ledger_id] += 1
    told.tried.add((ledger_id, first))
    answer: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        ledger_id,
        (first,),
        [told.entry(ledger_id, first)],
        last_add_confirmed=-1,
        on_added=answer.set_result,
    )
    error = await answer
    if error is None:
        raise Violation(f"the fence of ledger {ledger_id} is lost")
    if not isinstance(error, LedgerFenced) and not told.lossy:
        raise Violation(f"ledger {ledger_id} was fenced, and its writer is told: {error!r}")

"""Creates, opens and deletes ledgers.

`create` gives out the next id and writes the ledger's record in one transaction, in which the
caller's own record that names the new ledger can take part: then a crash leaves either both or
none, and no ledger that nobody knows. `open(recover=True)` ends the ledger first. `delete` frees
the bookie before it forgets the record, so that a deletion that was cut short can be repeated.

For now every ledger is on exactly one bookie: the first writable one of the registry.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from magnetar.bookie.api import Bookie, BookieError, BookieReadOnly, NoSuchLedger
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.ledger.metadata import (
    LEDGER_ID_KEY,
    Ensemble,
    LedgerMetadata,
    LedgerState,
    decode,
    encode,
    ledger_key,
)
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.recovery import recover_ledger
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore, Operation, Put

CREATE_ATTEMPTS_MAX: Final = 64

WithLedger = Callable[[int], Sequence[Operation]]


def _nothing(_ledger_id: int) -> Sequence[Operation]:
    return ()


class LedgerClient:
    """See the module's text. `bookies` maps a bookie's id to it, and may change over time."""

    def __init__(self, store: MetadataStore, bookies: Mapping[str, Bookie], clock: Clock) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        # One creation at a time in this process: they would only contend for the counter.
        self._creating = asyncio.Lock()

    async def create(
        self, properties: Mapping[str, str], *, with_ledger: WithLedger = _nothing
    ) -> LedgerWriter:
        """A new, open ledger with an id above all before.

        `with_ledger` is asked, once the id is known, for operations of the same transaction. It
        may raise, and may be asked again for another id; BadRevision of its keys is passed on.
        """
        bookie = self._writable_bookie()
        async with self._creating:
            for _ in range(CREATE_ATTEMPTS_MAX):
                counter = await self._store.get(LEDGER_ID_KEY)
                ledger_id = 1 if counter is None else _parse_id(counter.value) + 1
                metadata = LedgerMetadata(
                    ledger_id=ledger_id,
                    ensembles=(Ensemble(0, (bookie.identity,)),),
                    created_ms=self._clock.now_ms(),
                    properties=dict(properties),
                )
                operations: list[Operation] = [
                    Put(
                        LEDGER_ID_KEY,
                        str(ledger_id).encode(),
                        ABSENT if counter is None else counter.revision,
                    ),
                    Put(ledger_key(ledger_id), encode(metadata), ABSENT),
                    *with_ledger(ledger_id),
                ]
                try:
                    revision = await self._store.transact(operations)
                except BadRevision as error:
                    if error.key == LEDGER_ID_KEY:
                        continue
                    if error.key == ledger_key(ledger_id):
                        raise MetadataError(
                            f"{LEDGER_ID_KEY} went back: ledger {ledger_id} exists"
                        ) from error
                    raise
                return LedgerWriter(metadata, revision, self._store, bookie, self._clock)
        raise MetadataError(f"{LEDGER_ID_KEY} changed {CREATE_ATTEMPTS_MAX} times in a row")

    async def open(self, ledger_id: int, *, recover: bool) -> LedgerReader:
        """A reader. With `recover` the ledger is ended first, and its writer fenced.

        Without it an open ledger can be read up to what its bookie knows to be confirmed now.
        Raises NoSuchLedger.
        """
        key = ledger_key(ledger_id)
        record = await self._store.get(key)
        if record is None:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        metadata = decode(key, record.value)
        bookie = self._bookie_of(metadata)
        if metadata.state is not LedgerState.CLOSED:
            if not recover:
                end = await bookie.ledger_end(ledger_id)
                return LedgerReader(metadata, bookie, end.last_add_confirmed)
            metadata = await recover_ledger(self._store, bookie, record, self._clock)
        return LedgerReader(metadata, bookie, metadata.last_entry)

    async def delete(self, ledger_id: int) -> None:
        """Frees the ledger's space and forgets it. Idempotent."""
        key = ledger_key(ledger_id)
        record = await self._store.get(key)
        if record is None:
            return
        metadata = decode(key, record.value)
        await self._bookie_of(metadata).delete_ledger(ledger_id)
        await self._store.delete(key)

    def _writable_bookie(self) -> Bookie:
        for bookie in self._bookies.values():
            if bookie.writable:
                return bookie
        raise BookieReadOnly(f"none of {len(self._bookies)} bookies takes writes")

    def _bookie_of(self, metadata: LedgerMetadata) -> Bookie:
        """The bookie that holds the ledger; another life of it is a stranger."""
        wanted = metadata.ensembles[-1].bookies[0]
        bookie = self._bookies.get(wanted.bookie_id)
        if bookie is None:
            raise BookieError(
                f"ledger {metadata.ledger_id} is on bookie {wanted.bookie_id}, which is not here"
            )
        if bookie.identity != wanted:
            raise BookieError(
                f"ledger {metadata.ledger_id} is on bookie {wanted.bookie_id} incarnation "
                f"{wanted.incarnation}, but that bookie's disks are incarnation "
                f"{bookie.identity.incarnation}"
            )
        return bookie


def _parse_id(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise MetadataError(f"{LEDGER_ID_KEY} holds no number: {value[:32]!r}") from None

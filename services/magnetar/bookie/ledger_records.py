"""Fences and deletes of ledgers: the journal record of each, and its effect once it is durable.

A fence refuses the ledger's writer from the request on; it is answered once its record is durable.
A delete refuses adds and fences from the request on, but readers only once its record is durable:
before that, nobody may answer that the ledger is gone. If the record fails, the ledger stays.
"""

import asyncio
from collections.abc import Callable

from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.api import BookieReadOnly, NoSuchLedger
from magnetar.bookie.journal import Append, Journal
from magnetar.bookie.ledgers import Ledgers, LedgerState
from magnetar.bookie.read_cache import ReadCache
from magnetar.bookie.reads import Halves


class LedgerRecords:
    """Writes them. For the event loop's thread."""

    def __init__(
        self,
        journal: Journal,
        ledgers: Ledgers,
        halves: Halves,
        cache: ReadCache,
        now_ms: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._ledgers = ledgers
        self._halves = halves
        self._cache = cache
        self._now_ms = now_ms
        self.closed = False
        """Set by the bookie: nothing is written any more."""

    async def fence(self, state: LedgerState) -> None:
        """Returns when the ledger is durably fenced."""
        if state.deleted or state.deleting is not None:
            raise NoSuchLedger(f"ledger {state.ledger_id} was deleted")
        # Refused from this moment on; what was queued before is completed before the fence.
        state.fenced = True
        if not state.fence_durable:
            await self._journalled(codec.KIND_FENCE, state)

    async def delete(self, state: LedgerState) -> None:
        """Returns when the ledger is durably deleted, or was never here."""
        if state.dropping:
            raise BookieReadOnly(f"the copy of ledger {state.ledger_id} is being dropped")
        if state.deleting is None:
            if state.deleted or not (state.exists or state.pending or state.emptied):
                return
            state.deleting = self._journalled(codec.KIND_DELETE, state)
        # Shared: a repeated delete waits until the first one is durable.
        await asyncio.shield(state.deleting)

    def _journalled(self, kind: int, state: LedgerState) -> "asyncio.Future[None]":
        """Queues a record of a ledger; the future is done when the record is durable."""
        if self.closed:
            raise BookieReadOnly("the bookie is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(item: Append) -> None:
            state.pending -= 1
            # Now and not when the waiting task comes to run: a flush may begin before that, with a
            # checkpoint beyond this record, and the waiting task may be gone.
            if kind == codec.KIND_DELETE:
                state.deleting = None
                if item.error is None:
                    self.deleted(state)
            elif item.error is None:
                self._fenced(state)
            if future.done():
                return
            if item.error is not None:
                future.set_exception(item.error)
                future.exception()  # retrieved, also if every waiting task is gone
            else:
                future.set_result(None)

        state.pending += 1
        self._journal.append(kind, state.ledger_id, done)
        return future

    def _fenced(self, state: LedgerState) -> None:
        """A fence is durable in the journal; the next flush puts it into the index."""
        if state.fence_durable:
            return  # repeated meanwhile; the index may have the ledger as emptied by now
        state.exists = state.fence_durable = True
        self._ledgers.dirty[state.ledger_id] = state

    def deleted(self, state: LedgerState) -> None:
        """A delete is durable: memory goes now, the disk with the next flush and collection."""
        state.exists = True
        state.deleted_ms = self._now_ms()
        self._halves.active.drop(state.ledger_id)
        self._cache.drop_ledger(state.ledger_id)
        self._ledgers.dirty[state.ledger_id] = state

"""Fences and deletes of ledgers: their journal records, and their effects once these are durable.

A fence refuses the ledger's writer from the request on, and is confirmed once its record is
durable. A delete refuses adds and fences from the request on, but reads only once its record is
durable: until then the ledger may survive a crash. If the record fails, the ledger stays.
"""

import asyncio
from collections.abc import Callable

from magnetar.bookie.api import BookieReadOnly, NoSuchLedger
from magnetar.bookie.cache.read_cache import ReadCache
from magnetar.bookie.cache.write_cache import Halves
from magnetar.bookie.index.ledgers import Ledgers, LedgerState
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.journal import Journal, QueuedRecord
from magnetar.bookie.stats import Counters


class LedgerChanges:
    """Fences and deletes ledgers durably. For the event loop's thread."""

    def __init__(
        self,
        *,
        journal: Journal,
        ledgers: Ledgers,
        halves: Halves,
        cache: ReadCache,
        now_ms: Callable[[], int],
        counters: Counters,
    ) -> None:
        self._journal = journal
        self._ledgers = ledgers
        self._halves = halves
        self._cache = cache
        self._now_ms = now_ms
        self._counters = counters
        self.closed = False
        """Set by the bookie when it closes; later fences and deletes are refused."""

    async def fence(self, state: LedgerState) -> None:
        """Returns when the ledger is durably fenced."""
        if state.deleted or state.deleting is not None:
            raise NoSuchLedger(f"ledger {state.ledger_id} was deleted")
        # Adds are refused from now on; adds queued before complete before the fence.
        state.fenced = True
        if not state.fence_durable:
            await self._append(codec.KIND_FENCE, state)

    async def delete(self, state: LedgerState) -> None:
        """Returns when the ledger is durably deleted, or at once if it does not exist."""
        if state.dropping:
            raise BookieReadOnly(f"the copy of ledger {state.ledger_id} is being dropped")
        if state.deleting is None:
            if state.deleted or not (state.exists or state.pending or state.emptied):
                return
            state.deleting = self._append(codec.KIND_DELETE, state)
        # Shared: a repeated delete waits until the first one is durable.
        await asyncio.shield(state.deleting)

    def _append(self, kind: int, state: LedgerState) -> "asyncio.Future[None]":
        """Queues a record of a ledger; the future completes when the record is durable."""
        if self.closed:
            raise BookieReadOnly("the bookie is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(item: QueuedRecord) -> None:
            state.pending -= 1
            # Applied here and not by the waiting task: a flush with a checkpoint beyond this record
            # may begin before the task runs, and the task may be cancelled.
            if kind == codec.KIND_DELETE:
                state.deleting = None
                if item.error is None:
                    self._deleted(state)
            elif item.error is None:
                self._fenced(state)
            if future.done():
                return
            if item.error is not None:
                future.set_exception(item.error)
                future.exception()  # marks it as retrieved if all waiting tasks are gone
            else:
                future.set_result(None)

        state.pending += 1
        self._journal.append(kind, state.ledger_id, done)
        return future

    def _fenced(self, state: LedgerState) -> None:
        """Applies a durable fence; the next flush writes it to the index."""
        if state.fence_durable:
            return  # a repeated fence; the ledger may be emptied by now
        state.exists = state.fence_durable = True
        self._ledgers.dirty[state.ledger_id] = state

    def _deleted(self, state: LedgerState) -> None:
        """Applies a durable delete: frees memory now; a flush and a collection free the disk."""
        self._counters.ledgers_deleted += 1
        state.exists = True
        state.deleted_ms = self._now_ms()
        self._halves.active.drop(state.ledger_id)
        self._cache.drop_ledger(state.ledger_id)
        self._ledgers.dirty[state.ledger_id] = state

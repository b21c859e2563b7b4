"""Drops the entries of ledgers that other bookies hold, and keeps the ledgers fenced.

`delete_ledger` leaves a tombstone for a while: no add is taken, not even a copy of autorecovery,
and then the fence is forgotten with it. A former copy needs the opposite: the ledger lives, so it
may be copied back here at any moment, and its fenced writer must be refused for ever.

From the first moment no add is taken, so nothing that is added later is dropped. What was added
before is flushed, so a replay of the journal does not bring it back; then one synced write of the
index removes the entries and marks the ledger as emptied. A crash leaves the copy as it was, or
gone; so does a caller that is cancelled, and the next comparison finds the copy again.
"""

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from magnetar.bookie.index_store import IndexDamaged
from magnetar.bookie.ledgers import Ledgers, LedgerState
from magnetar.bookie.pools import run_on
from magnetar.bookie.reads import Reader
from magnetar.bookie.write_stage import WriteStage


class DroppedCopies:
    """The emptied ledgers of one bookie. For the event loop's thread."""

    def __init__(
        self, ledgers: Ledgers, stage: WriteStage, reader: Reader, pool: ThreadPoolExecutor | None
    ) -> None:
        self._ledgers = ledgers
        self._stage = stage
        self._reader = reader
        self._pool = pool

    async def drop(
        self, ledger_ids: Sequence[int], fence: Callable[[int], Awaitable[object]]
    ) -> list[int]:
        """See `KeptBookie.drop_copies`. `fence` fences a ledger durably."""
        states: list[LedgerState] = []
        try:
            for ledger_id in ledger_ids:
                state = self._droppable(ledger_id)
                if state is not None:
                    # Before the next state is loaded: that may drop idle states from memory.
                    state.dropping = state.fenced = True
                    state.pending += 1
                    states.append(state)
            if not states:
                return []
            for state in states:
                await fence(state.ledger_id)
            await self._stage.flush()
            await self._empty(states)
            for state in states:
                state.emptied_now()
                self._ledgers.forget_damage(state.ledger_id)
                self._reader.rewritten(state.ledger_id)
        finally:
            for state in states:
                state.dropping = False
                state.pending -= 1
        return [state.ledger_id for state in states]

    async def _empty(self, states: Sequence[LedgerState]) -> None:
        try:
            await self._stage.empty([state.ledger_id for state in states])
        except BaseException:
            # A write that is not synced, or that goes on after a cancellation, shows already.
            for state in states:
                state.half_dropped = True
            raise

    def _droppable(self, ledger_id: int) -> LedgerState | None:
        """The ledger's state; None where nothing is to be dropped, or adds are under way."""
        try:
            state = self._ledgers.get(ledger_id)
        except IndexDamaged:
            return None
        busy = state.pending or state.dropping
        return None if busy or state.deleted or not state.exists else state

    async def list_emptied(self) -> list[int]:
        """See `KeptBookie.list_emptied`."""
        return self._ledgers.still_emptied(await run_on(self._pool, self._ledgers.emptied_ids))

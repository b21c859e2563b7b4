"""Drops copies of ledgers that other bookies hold, and keeps the ledgers fenced.

`delete_ledger` leaves a tombstone for a while: the bookie refuses all adds, even autorecovery's,
and forgets the fence with the tombstone. A former copy needs the opposite: the ledger lives, so
autorecovery may copy it back at any time, and its fenced writer must be refused forever.

A drop refuses adds from its start, so it never drops a later add. It flushes the earlier adds, so
that a replay of the journal does not restore them. One synced write of the index then removes the
entries and marks the ledger as emptied. After a crash or a cancellation the copy is either
unchanged or gone; the next comparison finds a remaining copy again.
"""

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from magnetar.bookie.cache.reader import Reader
from magnetar.bookie.cache.write_stage import WriteStage
from magnetar.bookie.index.ledgers import Ledgers, LedgerState
from magnetar.bookie.index.store import IndexDamaged
from magnetar.bookie.threads import run_on


class DroppedCopies:
    """Drops copies and lists emptied ledgers. For the event loop's thread."""

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
                    # Before the next state is loaded, which may evict idle states from memory.
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
                state.mark_emptied()
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
            # The write may be visible unsynced, or continue after a cancellation.
            for state in states:
                state.half_dropped = True
            raise

    def _droppable(self, ledger_id: int) -> LedgerState | None:
        """Returns the ledger's state; None if it has nothing to drop or adds are under way."""
        try:
            state = self._ledgers.get(ledger_id)
        except IndexDamaged:
            return None
        busy = state.pending or state.dropping
        return None if busy or state.deleted or not state.exists else state

    async def list_emptied(self) -> list[int]:
        """See `KeptBookie.list_emptied`."""
        return self._ledgers.still_emptied(await run_on(self._pool, self._ledgers.emptied_ids))

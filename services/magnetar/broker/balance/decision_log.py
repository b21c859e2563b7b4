"""The log of why: the last LOG_ROUNDS rounds in which something was decided, in metadata.

A ring: round N is written to slot N modulo LOG_ROUNDS, over the one that was there, so its size is
bounded by construction. A round in which nothing is done is written only where the reason is not
that of the round before. A new leader reads its predecessors' moves from here, and so keeps to the
same grace times and budgets.
"""

import asyncio
from typing import Final

import msgspec

from magnetar.broker.balance.model import LOG_PREFIX, Move, Nothing, Round, decoded, encoded
from magnetar.broker.balance.planner import PastMove
from magnetar.core.log import get_logger
from magnetar.metadata.store import Check, MetadataStore, Put

LOG_ROUNDS: Final = 256
CALL_TIMEOUT_S: Final = 10.0

log = get_logger("magnetar.balance")


class DecisionLog:
    """Reads and, on the leader, writes the ring."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self._next = 0
        self._last: Round | None = None

    async def rounds(self) -> list[Round]:
        """All that are kept, the oldest first."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            records = await self.store.list(LOG_PREFIX)
        found = []
        for record in records:
            try:
                found.append(decoded(record.value, Round))
            except msgspec.MsgspecError as error:
                log.warning("round not understood", key=record.key, error=str(error))
        return sorted(found, key=lambda each: each.sequence)

    async def begin(self) -> list[PastMove]:
        """For a new leader: the moves of its predecessors; what it writes follows theirs."""
        rounds = await self.rounds()
        self._last = rounds[-1] if rounds else None
        self._next = rounds[-1].sequence + 1 if rounds else 1
        return [
            PastMove(each.at_ms, decision.bundle, decision.source, decision.target)
            for each in rounds
            for decision in each.decisions
            if isinstance(decision, Move)
        ]

    async def append(self, made: Round, check: Check) -> bool:
        """Writes the round under the next number, where it says something new."""
        if self._says_the_same(made):
            return False
        made = msgspec.structs.replace(made, sequence=self._next)
        key = f"{LOG_PREFIX}{made.sequence % LOG_ROUNDS:04d}"
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self.store.transact([check, Put(key, encoded(made))])
        self._next += 1
        self._last = made
        return True

    def _says_the_same(self, made: Round) -> bool:
        if made.results or self._last is None:
            return False
        reasons = []
        for each in (self._last, made):
            if not all(isinstance(decision, Nothing) for decision in each.decisions):
                return False
            reasons.append([decision.why for decision in each.decisions])
        return reasons[0] == reasons[1] and self._last.leader == made.leader

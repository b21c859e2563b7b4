"""The log of decisions: the last LOG_ROUNDS rounds that decided something, in metadata.

The log is a ring: round N overwrites slot N modulo LOG_ROUNDS, so its size is bounded. A round
without a move or split is written only if its reason differs from that of the round before. A new
leader reads its predecessors' moves here, so it respects the same grace times and budgets.
"""

import asyncio
from typing import Final

import msgspec

from magnetar.broker.balance.model import LOG_PREFIX, Move, Nothing, Round, decode_round
from magnetar.broker.balance.planner import PastMove
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.records import encode
from magnetar.metadata.store import Check, MetadataStore, Put

LOG_ROUNDS: Final = 256
CALL_TIMEOUT_S: Final = 10.0

log = get_logger("magnetar.balance")


class DecisionLog:
    """Reads the ring; the leader also writes it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self._next = 0
        self._last: Round | None = None

    async def rounds(self) -> list[Round]:
        """Returns all logged rounds, the oldest first."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            records = await self.store.list(LOG_PREFIX)
        rounds = []
        for record in records:
            try:
                rounds.append(decode_round(record.key, record.value))
            except MetadataError as error:
                log.warning("unreadable round ignored", error=str(error))
        return sorted(rounds, key=lambda logged: logged.sequence)

    async def begin(self) -> list[PastMove]:
        """Continues the log as a new leader; returns the moves of its predecessors."""
        rounds = await self.rounds()
        self._last = rounds[-1] if rounds else None
        self._next = rounds[-1].sequence + 1 if rounds else 1
        return [
            PastMove(logged.at_ms, decision.bundle, decision.source, decision.target)
            for logged in rounds
            for decision in logged.decisions
            if isinstance(decision, Move)
        ]

    async def append(self, this_round: Round, check: Check) -> bool:
        """Writes the round under the next number, unless it repeats the last one."""
        if self._repeats(this_round):
            return False
        numbered = msgspec.structs.replace(this_round, sequence=self._next)
        key = f"{LOG_PREFIX}{numbered.sequence % LOG_ROUNDS:04d}"
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self.store.transact([check, Put(key, encode(numbered))])
        self._next += 1
        self._last = numbered
        return True

    def _repeats(self, this_round: Round) -> bool:
        if this_round.results or self._last is None:
            return False
        reasons = []
        for compared in (self._last, this_round):
            if not all(isinstance(decision, Nothing) for decision in compared.decisions):
                return False
            reasons.append([decision.why for decision in compared.decisions])
        return reasons[0] == reasons[1] and self._last.leader == this_round.leader

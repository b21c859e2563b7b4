"""Looks up transactions that stay open, and above all those past their deadline.

Normally the coordinator notifies the participants of every end. EXPIRY_GRACE_S after the deadline,
a topic or subscription reads the record itself, and repeats that until the transaction has ended.

It also reads the record of an open transaction before: a former owner that has not noticed its loss
yet may have been notified instead, and has confirmed an end for which it had nothing to write. This
becomes less likely with time. So the first such read is after LOOK_AGAIN_S, and the interval grows
with the age of this instance: a transaction costs few reads, however long it is open.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from magnetar.broker.topic.transactions.attempts import Attempts
from magnetar.core.backoff import Backoff
from magnetar.core.clock import Clock
from magnetar.core.tasks import TaskSet
from magnetar.transactions.model import TxnId

EXPIRY_GRACE_S: Final = 5.0
LOOK_AGAIN_S: Final = 30.0
"""The shortest interval between two reads of the record of a transaction before its deadline."""
LOOKED_UP_AT_ONCE_MAX: Final = 1_000
RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 30.0

NOT_LOOKED_UP: Final = 0
"""The deadline of a recovered transaction, whose record was not read yet: it is due at once."""


class Expiry:
    """One timer for all open transactions of a topic or subscription."""

    __slots__ = ("_apply", "_began_s", "_clock", "_closed", "_look_ups", "_name", "_running",
                 "_tasks", "_timer", "attempts")  # fmt: skip

    def __init__(
        self,
        name: str,
        clock: Clock,
        tasks: TaskSet,
        look_ups: Callable[[], Mapping[TxnId, int]],
        apply: Callable[[TxnId], Awaitable[bool]],
    ) -> None:
        self._name = name
        self._clock = clock
        self._tasks = tasks
        self._look_ups = look_ups
        """Returns the open transactions with the results of `look_up_ms`, or NOT_LOOKED_UP."""
        self._began_s = clock.monotonic()
        self._apply = apply
        """Reads the record and applies its outcome; returns False if that must be retried."""
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._closed = False
        self.attempts: Attempts | None = None
        """The look-ups that are under way; None while no transaction is due."""

    def look_up_ms(self, deadline_ms: int) -> int:
        """Returns when the record of an open transaction is due to be read, before the grace."""
        # On the wall clock, as the deadline. A leap only makes a read early or late, and forgets
        # nothing: a read applies no outcome but the recorded one.
        age_s = self._clock.monotonic() - self._began_s
        return min(deadline_ms, self._clock.now_ms() + int(max(age_s, LOOK_AGAIN_S) * 1000))

    def schedule(self) -> None:
        """Sets the timer for the next look-up."""
        if look_ups := self._look_ups():
            self.due(min(look_ups.values()))

    def due(self, due_ms: int) -> None:
        """Sets the timer for a look-up, unless it is set for an earlier one."""
        if self._running or self._closed:
            return
        delay_s = 0.0
        if due_ms != NOT_LOOKED_UP:
            delay_s = max(0.0, (due_ms - self._clock.now_ms()) / 1000 + EXPIRY_GRACE_S)
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self._expired)

    def stop(self) -> None:
        """Cancels the timer; it is not set again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        self._running = True
        if self._tasks.start(self._look_up(), f"open transactions of {self._name}") is None:
            self._closed = True

    async def _look_up(self) -> None:
        """Looks up each transaction that is due, until none is left."""
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S, random)
        self.attempts = Attempts(self._clock.now_ms())
        try:
            while not self._closed and (due := self._due()):
                done = await asyncio.gather(*map(self._apply, due[:LOOKED_UP_AT_ONCE_MAX]))
                if all(done):
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.failed_s())
        finally:
            self._running = False
            self.attempts = None
        self.schedule()

    def failed(self, error: Exception) -> str:
        """Records that a look-up has failed; returns the error's text."""
        assert self.attempts is not None  # noqa: S101 - only look-ups fail
        return self.attempts.failed(error, self._clock.now_ms())

    def _due(self) -> list[TxnId]:
        at_ms = self._clock.now_ms() - int(EXPIRY_GRACE_S * 1000)
        return [txn for txn, due_ms in self._look_ups().items() if due_ms <= at_ms]

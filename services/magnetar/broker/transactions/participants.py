"""Notifies the participants of a transaction of its outcome, until each has made it durable.

All participants are notified in parallel, within a bound for the whole broker. A failed
notification is retried with back-off, without end: the outcome is decided, and the topics and
subscriptions wait for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from magnetar.core.backoff import Backoff, Random
from magnetar.core.causes import Causes
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskScope
from magnetar.transactions.model import Outcome, TransactionRecord, TxnId

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 10.0

Call = tuple[str, Callable[[], Awaitable[None]]]
"""The notification of a participant, with its name."""

log = get_logger("magnetar.transactions")


class Participants(Protocol):
    """The topics and subscriptions of the cluster, on all brokers.

    Each call returns when the outcome is durable there, or the topic or subscription does not exist
    (any more). Each call raises MagnetarError if it must be repeated.
    """

    def end_on_topic_at_once(self, topic: str, txn: TxnId, outcome: Outcome) -> bool:
        """Applies the outcome to the messages of the transaction if that needs no wait.

        Returns False if `end_on_topic` must be called.
        """

    async def end_on_topic(self, topic: str, txn: TxnId, outcome: Outcome) -> None:
        """Applies the outcome to the messages of the transaction."""

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, outcome: Outcome
    ) -> None:
        """Applies the outcome to the acks of the transaction."""


class Notifier:
    """Notifies participants, at most `at_once` at the same time."""

    def __init__(
        self, participants: Participants, *, at_once: int, timeout_s: float, random: Random
    ) -> None:
        self._participants = participants
        self._slots = asyncio.Semaphore(at_once)
        self.timeout_s = timeout_s
        """The bound of each attempt."""
        self._random = random
        self._causes = Causes()
        self.retries = 0
        """The number of attempts that were repeated."""

    def begin(self, txn: TxnId, record: TransactionRecord) -> list[Call]:
        """Notifies the participants that need no wait; returns the calls for the others."""
        outcome = record.state.outcome
        assert outcome is not None  # noqa: S101 - the caller has decided
        participants = self._participants
        calls: list[Call] = [
            (topic, partial(participants.end_on_topic, topic, txn, outcome))
            for topic in record.topics
            if not self._ended_at_once(topic, txn, outcome)
        ]
        for topic, name in record.subscriptions:
            end = partial(participants.end_on_subscription, topic, name, txn, outcome)
            calls.append((f"{topic} {name}", end))
        return calls

    def _ended_at_once(self, topic: str, txn: TxnId, outcome: Outcome) -> bool:
        try:
            return self._participants.end_on_topic_at_once(topic, txn, outcome)
        except MagnetarError:
            return False  # the call meets it again, and logs it
        except Exception:
            # A bug. Without another attempt, the transaction would hold its topics back.
            log.exception("participant not notified", txn=str(txn), participant=topic)
            return False

    async def notify(self, txn: TxnId, calls: list[Call]) -> None:
        """Returns once every participant of these calls has answered."""
        if len(calls) == 1:
            await self._until_answered(txn, *calls[0])
            return
        async with TaskScope(f"end of transaction {txn}") as scope:
            for task in [scope.start(self._until_answered(txn, *call), call[0]) for call in calls]:
                await task

    async def _until_answered(
        self, txn: TxnId, name: str, call: Callable[[], Awaitable[None]]
    ) -> None:
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, self._random)
        while True:
            try:
                async with self._slots, asyncio.timeout(self.timeout_s):
                    await call()
                    return
            except (MagnetarError, OSError) as error:
                reason = str(error) or f"no answer in {self.timeout_s:g} s"
                if self._causes.is_new(name, reason):
                    log.info(
                        "participant not notified yet",
                        txn=str(txn),
                        participant=name,
                        reason=reason,
                    )
            except Exception:
                # A bug. Without another attempt, the transaction would hold its topics back.
                log.exception("participant not notified", txn=str(txn), participant=name)
            self.retries += 1
            await asyncio.sleep(backoff.failed_s())

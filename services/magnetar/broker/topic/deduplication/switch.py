"""Turns a topic's deduplication on and off, as its policies and the broker's settings say.

When a topic is loaded, its ids are recovered before any producer attaches. If they cannot be read,
the topic is not served: it could not tell duplicates. A change of the policy applies at once, in a
task of the topic. Messages that were handed to the log before the change are recorded once they are
stored; if their producer reconnects and sends them again before that, they may be stored twice.

Switching off deletes the stored ids, so it is done only with policies that are known and confirmed.
"""

import asyncio
import random
from enum import StrEnum
from typing import Final, Protocol

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.policies.applied_policies import AppliedPolicies
from magnetar.broker.topic.deduplication.deduplication import (
    DeduplicatedTopic,
    Deduplication,
)
from magnetar.broker.topic.deduplication.limits import DeduplicationLimits
from magnetar.broker.topic.deduplication.snapshots import CURSOR, delete_stored
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import LATEST
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.policies.admission import DEDUPLICATION

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 60.0

log = get_logger("magnetar.topic.deduplication")


class Status(StrEnum):
    """The `deduplicationStatus` of a topic's stats, in Pulsar's words."""

    DISABLED = "Disabled"
    RECOVERING = "Recovering"
    ENABLED = "Enabled"
    REMOVING = "Removing"
    FAILED = "Failed"


class SwitchedTopic(DeduplicatedTopic, Protocol):
    """A topic, seen from its switch."""

    name: TopicName
    deduplication: Deduplication | None
    """None while deduplication is off."""

    @property
    def policies(self) -> AppliedPolicies:
        """The policies in force for the topic."""


class DeduplicationSwitch:
    """The switch of one topic."""

    __slots__ = ("_clock", "_ended", "_limits", "_settling", "_tasks", "_topic", "status")

    def __init__(
        self,
        topic: SwitchedTopic,
        limits: DeduplicationLimits,
        clock: SteadyClock,
        tasks: TaskSet,
    ) -> None:
        self.status = Status.DISABLED
        self._topic = topic
        self._limits = limits
        self._clock = clock
        self._tasks = tasks
        self._settling = self._ended = False

    def _wanted(self) -> bool:
        """Whether the policies switch deduplication on; uncertain ones leave it as it is."""
        topic = self._topic
        if is_system_topic(topic.name):
            return False
        if not topic.policies.known and CURSOR in topic.managed_ledger.cursors:
            return True
        return bool(topic.policies.value(DEDUPLICATION))

    def _settled(self) -> bool:
        """Whether the topic is as the policies want it."""
        topic = self._topic
        if self._wanted():
            return topic.deduplication is not None
        if not topic.policies.known:
            return True
        ledger = topic.managed_ledger
        stored = CURSOR in ledger.cursors or CURSOR in ledger.broken_cursors
        return topic.deduplication is None and not stored

    async def load(self) -> None:
        """Recovers the ids when the topic is loaded. Raises MagnetarError."""
        if self._wanted():
            await self._enable()

    def policies_changed(self) -> None:
        """Starts to switch deduplication on or off if the policies say so."""
        if not (self._settling or self._ended or self._settled()):
            self._settling = True
            task = self._tasks.start(self._settle(), f"deduplication {self._topic.full_name}")
            self._settling = task is not None

    def end(self) -> None:
        """Switches no more: the topic closes. A snapshot is stored with its cursor."""
        self._ended = True
        if self._topic.deduplication is not None:
            self._topic.deduplication.store()

    async def _settle(self) -> None:
        backoff = Backoff(RETRY_S, RETRY_S_MAX, random)
        try:
            while not (self._ended or self._settled()):
                try:
                    await (self._enable() if self._wanted() else self._disable())
                except MagnetarError as error:
                    self.status = Status.FAILED
                    log.warning(
                        "deduplication not switched, will retry",
                        topic=self._topic.full_name,
                        error=str(error),
                    )
                    await asyncio.sleep(backoff.failed_s())
        finally:
            self._settling = False

    async def _enable(self) -> None:
        topic = self._topic
        ledger = topic.managed_ledger
        self.status = Status.RECOVERING
        while True:
            published = len(topic.producers) or topic.producers.waiting_count
            if published or ledger.cursor_in_doubt(CURSOR):
                await ledger.open_cursor(CURSOR, initial=LATEST)
            deduplication = Deduplication(topic, self._limits, self._clock)
            await deduplication.recover()
            # A producer that attached meanwhile has created no cursor.
            if deduplication.snapshots.cursor is not None or not len(topic.producers):
                break
            deduplication.end()
        if self._ended:
            deduplication.end()
            return
        topic.deduplication = deduplication
        self.status = Status.ENABLED

    async def _disable(self) -> None:
        topic = self._topic
        await topic.policies.confirm()
        if self._wanted() or self._ended:
            return
        self.status = Status.REMOVING
        deduplication, topic.deduplication = topic.deduplication, None
        if deduplication is not None:
            deduplication.end()
        await delete_stored(topic.managed_ledger)
        self.status = Status.DISABLED

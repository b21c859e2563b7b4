"""The topics of a broker: found by name, opened once, created and deleted.

Opening is single-flight: a thousand sessions that request one topic at once cause one open.
Metadata (a managed ledger's record, or a partitioned topic's) decides whether a topic exists, never
what happens to be loaded. As in Pulsar, a partition below its topic's partition count may be
created at any time, regardless of auto-creation; beyond the count, never.

The broker opens only topics of bundles that it owns. If another owner has taken over a topic's log,
the topic is closed, and reopened for the next request if this broker owns it. Closing and deleting
run to their end even if the caller is cancelled.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from magnetar.broker.catalog.resources import Resources
from magnetar.broker.catalog.topic_names import ledger_name, may_be_asked_for
from magnetar.broker.ownership.api import Ownership
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.creation import TopicCreation
from magnetar.broker.topic.ledgers import TopicLedgers
from magnetar.broker.topic.news import OnTopic, TopicNews
from magnetar.broker.topic.open_topics import Opening, OpenTopics
from magnetar.broker.topic.own_properties import check_keys
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import (
    Conflict,
    MagnetarError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ServiceNotReady,
    TopicNotFound,
)
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import Check

OPEN_TIMEOUT_S: Final = 60.0
OPENINGS_AT_ONCE_MAX: Final = 64
"""Further openings wait, so that other requests to the store do not queue behind thousands."""

log = get_logger("magnetar.topics")


class TopicRegistry:
    """Finds, opens, creates and deletes the topics of a broker."""

    def __init__(
        self,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
        context: TopicContext,
        open_topics: OpenTopics,
        ownership: Ownership,
        news: TopicNews,
        *,
        default_partitions: int,
    ) -> None:
        self._resources = resources
        self._ledgers = ledgers
        self._context = context
        self._open = open_topics
        self._gate = asyncio.Semaphore(OPENINGS_AT_ONCE_MAX)
        self.ownership = ownership
        self.creation = TopicCreation(context.policies, default_partitions, self.names)
        self._topic_ledgers = TopicLedgers(ledgers, resources, self.creation, context.policies)
        self.news = news
        self._closed = False

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def loaded(self, name: TopicName) -> Topic | None:
        """Returns the topic if it is open."""
        return self._open.loaded(name)

    def add_listener(self, namespace: NamespaceName, listener: OnTopic) -> None:
        """Calls `listener(topic, exists)` when a persistent topic is created or deleted."""
        self.news.add(namespace, listener)

    def remove_listener(self, namespace: NamespaceName, listener: OnTopic) -> None:
        """Undoes `add_listener`."""
        self.news.remove(namespace, listener)

    async def exists(self, name: TopicName, *, half_deleted: bool = False) -> bool:
        """Whether exactly this topic exists; its partitioned parent does not count.

        With `half_deleted`, also true if a deletion was interrupted: `delete` finishes it.
        """
        if str(name) in self._open or not name.persistent:
            return str(name) in self._open
        return await self._ledgers.exists(ledger_name(name), half_deleted=half_deleted)

    async def names(
        self, namespace: NamespaceName, domain: str, *, half_deleted: bool = False
    ) -> list[TopicName]:
        """Returns the namespace's topics and partitions, sorted; `half_deleted` as for `exists`."""
        if domain == "persistent":
            prefix = f"{namespace}/persistent/"
            names = await self._ledgers.names(prefix, half_deleted=half_deleted)
            return [
                TopicName.from_encoded(domain, namespace, name.removeprefix(prefix))
                for name in names
            ]
        return sorted(
            topic.name
            for topic in self._open
            if topic.name.domain == domain and topic.name.namespace == namespace
        )

    async def partitions_or_create(self, name: TopicName, *, auto_create: bool) -> int:
        """Returns a topic's partition count, 0 if it is not partitioned or is itself a partition.

        Creates partitioned metadata if policies say so. Raises TopicNotFound if the topic does not
        exist and may not be created.
        """
        partitions = await self._resources.partitions(name)
        if partitions:
            return partitions
        if name.partition_index >= 0:
            by_use = auto_create and self.creation.by_use(name)
            allowed = await may_be_asked_for(self._resources, name, by_use=by_use)
            if not allowed and not await self.exists(name):
                raise TopicNotFound(f"Topic {name} not found")
            return 0
        may_create = auto_create and self.creation.by_use(name)
        new_partitions = self.creation.partitions_by_use(name)
        if may_create and not new_partitions:
            return 0
        if await self.exists(name):
            return 0
        if not may_create:
            raise TopicNotFound(f"Topic {name} not found")
        self.creation.check_count(new_partitions)
        # If another client creates it at the same moment, its partition count is the answer.
        with contextlib.suppress(Conflict):
            await self.create_partitioned(name, new_partitions, {})
        return await self._resources.partitions(name)

    async def get_or_open(self, name: TopicName, *, create: bool) -> Topic:
        """Returns the open topic; raises TopicNotFound, NotAllowed or ServiceNotReady."""
        full = str(name)
        while True:
            if not self.ownership.owns(name):
                await self.ownership.require(name)
            topic = self._open.get(full)
            if topic is not None:
                if not topic.fenced:
                    return topic
                await self.unload(name)
                continue
            if self._closed or self._open.is_leaving(full):
                raise ServiceNotReady(f"Topic {full} is being moved or deleted, please retry")
            opening = self._open.opening.get(full)
            # One that has just failed is removed by a callback, which has not run yet: to wait for
            # it would not yield, so the callback would never run.
            if opening is None or opening.topic.done():
                task = asyncio.create_task(self._open_in_turn(name, create), name=f"open {full}")
                opening = Opening(task, create)
                self._open.opening[full] = opening
                opening.topic.add_done_callback(lambda done: self._opened(full, done))
            try:
                # Shielded: a session that ends must not cancel the opening for all who wait.
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    return await asyncio.shield(opening.topic)
            except TopicNotFound:
                # The request that started this opening may not have allowed creation.
                if opening.creates or not create:
                    raise

    def _opened(self, full: str, opening: "asyncio.Future[Topic]") -> None:
        current = self._open.opening.get(full)
        if current is not None and current.topic is opening:
            del self._open.opening[full]
        if not opening.cancelled():
            opening.exception()  # marks it as retrieved: all waiters may have left

    async def _open_in_turn(self, name: TopicName, create: bool) -> Topic:
        async with self._gate:
            await self.ownership.require(name)  # the wait may have been long
            return await self._open_topic(name, create)

    async def _open_topic(self, name: TopicName, create: bool) -> Topic:
        abandonments = self._open.abandonments
        await self._topic_ledgers.check_namespace(name)
        topic: Topic
        if name.persistent:
            ledger, is_new = await self._open_ledger(name, create)
            topic = PersistentTopic(name, ledger, self._context)
            try:
                await topic.recover()
            except BaseException:
                # Left open, the log would serve the next opener after another owner has written.
                topic.abandon()
                raise
        else:
            await self._topic_ledgers.check_may_be_new(name, create=create)
            # The namespace may have been marked for deletion meanwhile, without listing this topic.
            await self._topic_ledgers.check_namespace(name)
            is_new = True
            # Imported here: most brokers have no such topic.
            from magnetar.broker.topic.nonpersistent import NonPersistentTopic

            topic = NonPersistentTopic(name, self._context)
        if self._closed:
            await topic.close()
            raise ServiceNotReady("The broker is shutting down, please retry")
        # Owned again is not still owned: another broker may have written since the log was read.
        if abandonments != self._open.abandonments or not self.ownership.owns(name):
            topic.abandon()
            await self.ownership.require(name)
            raise ServiceNotReady(f"Topic {name} is being moved, please retry")
        self._open.add(topic)
        topic.policies_changed()  # later changes are notified
        topic.when_fenced(lambda: self._fenced(name))
        if is_new:
            self.news.announce(name, exists=True)
        return topic

    async def _open_ledger(self, name: TopicName, create: bool) -> tuple[ManagedLedger, bool]:
        """Returns the topic's log, and whether it was created."""
        try:
            return await self._topic_ledgers.open(name, create=create)
        except ManagedLedgerFenced as error:
            await self.ownership.doubt(name)
            await self.ownership.require(name)
            raise ServiceNotReady(f"Topic {name} is being moved, please retry") from error

    async def create(self, name: TopicName, properties: dict[str, str]) -> Topic:
        """Creates a topic without partitions and returns it; raises as `get_or_open` does."""
        check_keys(properties)
        topic = await self.get_or_open(name, create=True)
        if properties:
            await topic.set_properties(properties)
        return topic

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        """Creates a partitioned topic and its partitions, even if the caller is cancelled."""
        await self._topic_ledgers.check_namespace(name)
        await self.creation.check_partitions(name, partitions)
        await self._context.tasks.finish(
            self._create_partitioned(name, partitions, properties), f"create {name}"
        )

    async def _create_partitioned(
        self, name: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        await self._context.policies.begin(name)
        await self._resources.create_partitioned(name, partitions, dict(properties))
        await self.create_partitions(name, 0, partitions)

    async def create_partitions(self, name: TopicName, first: int, end: int) -> None:
        """Creates the partitions from `first` to before `end`; the metadata has them already."""
        if not name.persistent:
            return
        for index in range(first, end):
            partition = name.partition(index)
            if self.ownership.owns(partition):
                await self.get_or_open(partition, create=True)
            else:
                await self._topic_ledgers.declare(partition)

    async def unload(self, name: TopicName) -> None:
        """Closes the topic and disconnects its clients; the next request opens it again."""
        topic = self._open.loaded(name)
        if topic is not None:
            await self._context.tasks.finish(self._open.close(topic), f"unload {name}")

    def _fenced(self, name: TopicName) -> None:
        """Unloads a topic whose log has another owner; its clients find that one by look-up."""
        self._context.tasks.start(self._unload_fenced(name), f"unload {name}")

    async def _unload_fenced(self, name: TopicName) -> None:
        try:
            await self.ownership.doubt(name)
        except MagnetarError as error:
            log.info("owner not known", topic=str(name), error=str(error))
        await self.unload(name)

    async def delete(self, name: TopicName, *, force: bool, under: Check | None = None) -> None:
        """Deletes the topic with its data and cursors.

        Raises NotFound, PreconditionFailed while it is in use, and BadRevision if `under`, the mark
        of a deletion that this one is part of, no longer holds. With `force`, a persistent topic is
        not opened first, because its log may be unreadable.
        """
        full = str(name)
        if not (force and name.persistent):
            try:
                await self.get_or_open(name, create=False)
            except (TopicNotFound, NotAllowed) as error:
                raise NotFound(f"Topic not found: {full}") from error
        elif opening := self._open.opening.get(full):
            await asyncio.wait([opening.topic], timeout=OPEN_TIMEOUT_S)
        if full in self._open:
            await self.ownership.require(name)
        await self._context.tasks.finish(self._delete(name, force, under), f"delete {name}")

    async def delete_if(self, topic: Topic, holds: Callable[[Topic], bool]) -> None:
        """Deletes an open topic with its subscriptions; raises PreconditionFailed unless `holds`.

        No client can attach between that check and the deletion.
        """
        await self._context.tasks.finish(
            self._delete(topic.name, force=True, only=(topic, holds)), f"delete {topic.name}"
        )

    async def _delete(
        self,
        name: TopicName,
        force: bool,
        under: Check | None = None,
        only: tuple[Topic, Callable[[Topic], bool]] | None = None,
    ) -> None:
        full = str(name)
        topic = self._open.get(full)
        if self._open.is_leaving(full) or full in self._open.opening:
            raise ServiceNotReady(f"Topic {full} is being moved or deleted, please retry")
        if only is not None and (topic is not only[0] or not only[1](only[0])):
            raise PreconditionFailed(f"Topic {full} is in use again")
        if topic is not None:
            topic.check_deletable(force=force)
        with self._open.leaving(full):
            if topic is not None:
                with contextlib.suppress(MagnetarError):  # unwritten state is deleted anyway
                    await topic.close()
            if name.persistent:
                try:
                    await self._ledgers.delete(ledger_name(name), (under,) if under else ())
                except NotFound as error:
                    raise NotFound(f"Topic not found: {full}") from error
            elif not await self._resources.partitions(name.base):
                await self._context.schemas.forget(name)
                await self._context.policies.forget(name)
        self.news.announce(name, exists=False)

    def drop_idle(self, name: TopicName) -> None:
        """Drops a non-persistent topic without clients."""
        topic = self._open.loaded(name)
        if topic is not None and not name.persistent and topic.is_idle:
            self._open.remove(topic)
            self.news.announce(name, exists=False)

    async def close(self) -> None:
        """Closes every topic; none can be opened afterwards."""
        self._closed = True
        await self._open.close_all()

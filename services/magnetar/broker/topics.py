"""The topics this broker serves now: opened once, found by name, closed and deleted in order.

Opening is single-flight: a thousand sessions that ask for one topic at once cause one open. What
exists is decided by metadata (a managed ledger, or a partitioned topic's record), never by what
happens to be loaded. Existence checks follow Pulsar: a partition may be created at any time below
its topic's partition count, whatever auto-creation says; beyond it never.

A topic that is closed or deleted keeps its name until that is done: a request for it meanwhile gets
an error to retry on, so that nobody gets a topic whose log is just ending. Closing and deleting run
to their end. A topic whose log another owner has taken over is closed, and opened anew for the next
request if this broker owns it. The broker opens only topics of bundles that it owns.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.broker.ownership.always import AlwaysOwned, Ownership
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import Inside
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.ownership.splitting import TopicLoad
from magnetar.broker.partition_names import may_be_asked_for
from magnetar.broker.resources import Resources
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.nonpersistent import NonPersistentTopic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic_creation import TopicCreation
from magnetar.broker.topic_ledgers import TopicLedgers, ledger_name
from magnetar.broker.topic_news import OnTopic, TopicNews
from magnetar.core.collecting import collecting
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
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import Check

Topic = PersistentTopic | NonPersistentTopic

OPEN_TIMEOUT_S: Final = 60.0
OPENINGS_AT_ONCE_MAX: Final = 64
"""Others wait: what the rest of the process asks of the store is not behind thousands."""
CLOSED_AT_ONCE_MAX: Final = 64

log = get_logger("magnetar.topics")


@dataclass(frozen=True, slots=True)
class _Opening:
    """A topic that is being opened, and whether it is created where it does not exist."""

    topic: "asyncio.Future[Topic]"
    creates: bool


class TopicRegistry:
    """See the module's text."""

    def __init__(
        self,
        settings: BrokerSettings,
        resources: Resources,
        ledgers: ManagedLedgerFactory,
        context: TopicContext,
    ) -> None:
        self._resources = resources
        self._ledgers = ledgers
        self._context = context
        self._open: dict[str, Topic] = {}
        self._opening: dict[str, _Opening] = {}
        self._gate = asyncio.Semaphore(OPENINGS_AT_ONCE_MAX)
        self._leaving: set[str] = set()  # names, while their topics are closed or deleted
        self._drained: dict[str, Topic] = {}  # closed, and their clients are not told yet
        self.ownership: Ownership = AlwaysOwned(resources, self)
        self.creation = TopicCreation(context.policies, settings.default_partitions, self.names)
        self._topic_ledgers = TopicLedgers(ledgers, resources, self.creation, context.policies)
        self.news, self._closed, self._given_up = TopicNews(), False, 0

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def loaded(self, name: TopicName) -> Topic | None:
        return self._open.get(str(name))

    def add_listener(self, namespace: NamespaceName, listener: OnTopic) -> None:
        """`listener(topic, exists)` is called when a topic of the namespace came to be or went."""
        self.news.add(namespace, listener)

    def remove_listener(self, namespace: NamespaceName, listener: OnTopic) -> None:
        self.news.remove(namespace, listener)

    # -- finding ---------------------------------------------------------------------------

    async def exists(self, name: TopicName, *, half_deleted: bool = False) -> bool:
        """Whether the very topic (not its partitioned parent) exists.

        With `half_deleted`, also one whose deletion was cut short: `delete` finishes it.
        """
        if str(name) in self._open or not name.persistent:
            return str(name) in self._open
        return await self._ledgers.exists(ledger_name(name), half_deleted=half_deleted)

    async def names(
        self, namespace: NamespaceName, domain: str, *, half_deleted: bool = False
    ) -> list[TopicName]:
        """All topics and partitions of the namespace, in order; `half_deleted` as for `exists`."""
        if domain == "persistent":
            prefix = f"{namespace}/persistent/"
            names = await self._ledgers.names(prefix, half_deleted=half_deleted)
            return [
                TopicName.from_encoded(domain, namespace, name.removeprefix(prefix))
                for name in names
            ]
        return sorted(
            topic.name
            for topic in self._open.values()
            if topic.name.domain == domain and topic.name.namespace == namespace
        )

    async def partitions_or_create(self, name: TopicName, *, auto_create: bool) -> int:
        """Partitions of a topic, 0 where it has none; creates partitioned metadata if configured.

        A partition has none. Raises TopicNotFound where nothing exists and nothing may be created.
        """
        partitions = await self._resources.partitions(name)
        if partitions:
            return partitions
        if name.partition_index >= 0:
            by_use = auto_create and self.creation.by_use(name)
            known = await may_be_asked_for(self._resources, name, by_use=by_use)
            if not known and not await self.exists(name):
                raise TopicNotFound(f"Topic {name} not found")
            return 0
        may_create = auto_create and self.creation.by_use(name)
        wanted = self.creation.partitions_by_use(name)
        if may_create and not wanted:
            return 0
        if await self.exists(name):
            return 0
        if not may_create:
            raise TopicNotFound(f"Topic {name} not found")
        # Somebody else may create it at this moment: what they made is what counts then.
        with contextlib.suppress(Conflict):
            await self.create_partitioned(name, wanted, {})
        return await self._resources.partitions(name)

    # -- opening ---------------------------------------------------------------------------

    async def get_or_open(self, name: TopicName, *, create: bool) -> Topic:
        """The topic, loaded; raises TopicNotFound, NotAllowed or ServiceNotReady."""
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
            if self._closed or full in self._leaving:
                raise ServiceNotReady(f"Topic {full} is being moved or deleted, please retry")
            opening = self._opening.get(full)
            if opening is None:
                opening = _Opening(asyncio.ensure_future(self._open_in_turn(name, create)), create)
                self._opening[full] = opening
                opening.topic.add_done_callback(lambda done: self._opened(full, done))
            try:
                # Shielded: a session that goes away must not cancel what others wait for.
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    return await asyncio.shield(opening.topic)
            except TopicNotFound:
                # Whoever asked first may not have wanted it to be created.
                if opening.creates or not create:
                    raise

    def _opened(self, full: str, opening: "asyncio.Future[Topic]") -> None:
        self._opening.pop(full, None)
        if not opening.cancelled():
            opening.exception()  # retrieved, also where every waiter has gone

    async def _open_in_turn(self, name: TopicName, create: bool) -> Topic:
        async with self._gate:
            await self.ownership.require(name)  # it may have been a long wait
            return await self._open_topic(name, create)

    async def _open_topic(self, name: TopicName, create: bool) -> Topic:
        given_up = self._given_up
        await self._topic_ledgers.check_namespace(name)
        topic: Topic
        if name.persistent:
            ledger, is_new = await self._open_ledger(name, create)
            topic = PersistentTopic(name, ledger, self._context)
            try:
                await topic.recover_index()
            except BaseException:
                # Left open it would serve the next opener, after another owner wrote to the log.
                topic.abandon()
                raise
        else:
            await self._topic_ledgers.check_may_be_new(name, create=create)
            await self._topic_ledgers.check_namespace(name)  # marked during the wait: not listed
            is_new = True
            topic = NonPersistentTopic(name, self._context)
        if self._closed:
            await topic.close()
            raise ServiceNotReady("The broker is shutting down, please retry")
        # Owned again is not still owned: others may have written since it was read.
        if given_up != self._given_up or not self.ownership.owns(name):
            topic.abandon()
            await self.ownership.require(name)
            raise ServiceNotReady(f"Topic {name} is being moved, please retry")
        self._open[str(name)] = topic
        topic.policies_changed()  # it is told of changes from now on
        if isinstance(topic, PersistentTopic):
            topic.managed_ledger.when_fenced(lambda: self._fenced(name))
        if is_new:
            self.news.tell(name, exists=True)
        return topic

    async def _open_ledger(self, name: TopicName, create: bool) -> tuple[ManagedLedger, bool]:
        """The topic's log, and whether it was created."""
        try:
            return await self._topic_ledgers.open(name, create=create)
        except ManagedLedgerFenced as error:
            await self.ownership.doubt(name)
            await self.ownership.require(name)
            raise ServiceNotReady(f"Topic {name} is being moved, please retry") from error

    # -- creating and deleting -------------------------------------------------------------

    async def create(self, name: TopicName, properties: dict[str, str]) -> Topic:
        """A new topic without partitions; raises Conflict through the ledger's creation."""
        topic = await self.get_or_open(name, create=True)
        if properties and isinstance(topic, PersistentTopic):
            await topic.managed_ledger.set_properties(properties)
        return topic

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        """The partitioned topic and each of its partitions; also if the caller is cancelled."""
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
        """Partitions `first` to `end` (exclusive) of a topic whose metadata has them already."""
        if not name.persistent:
            return
        for index in range(first, end):
            partition = name.partition(index)
            if self.ownership.owns(partition):
                await self.get_or_open(partition, create=True)
            else:
                await self._topic_ledgers.declare(partition)

    async def unload(self, name: TopicName) -> None:
        """Sends its clients away; the topic opens again at the next request."""
        topic = self._open.get(str(name))
        if topic is not None:
            await self._context.tasks.finish(self._close(str(name), topic), f"unload {name}")

    def _fenced(self, name: TopicName) -> None:
        """Another owner has its log: who is attached is sent away, and finds where to go."""
        self._context.tasks.start(self._taken_over(name), f"unload {name}")

    async def _taken_over(self, name: TopicName) -> None:
        try:
            await self.ownership.doubt(name)
        except MagnetarError as error:
            log.info("owner not known", topic=str(name), error=str(error))
        await self.unload(name)

    async def _close(self, full: str, topic: Topic) -> None:
        if self._open.get(full) is not topic:
            return  # somebody else closes it
        del self._open[full]
        self._leaving.add(full)
        try:
            await topic.close()
        except MagnetarError as error:
            log.warning("topic not closed in order", topic=full, error=str(error))
        except Exception:
            log.exception("topic not closed in order", topic=full)
        finally:
            self._leaving.discard(full)
            collecting.closed(topic)

    async def delete(self, name: TopicName, *, force: bool, under: Check | None = None) -> None:
        """Deletes the topic with its data and cursors; raises PreconditionFailed while in use, and
        BadRevision once `under`, the mark of what is being deleted with it, does not hold any more.
        With `force` a persistent one is not opened first: it may be past opening.
        """
        full = str(name)
        if not (force and name.persistent):
            try:
                await self.get_or_open(name, create=False)
            except (TopicNotFound, NotAllowed) as error:
                raise NotFound(f"Topic not found: {full}") from error
        elif opening := self._opening.get(full):
            await asyncio.wait([opening.topic], timeout=OPEN_TIMEOUT_S)
        if full in self._open:
            await self.ownership.require(name)
        await self._context.tasks.finish(self._delete(name, force, under), f"delete {name}")

    async def delete_if(self, topic: Topic, holds: Callable[[Topic], bool]) -> None:
        """Deletes a loaded topic, with its subscriptions, if `holds` still holds of it then.

        Nobody can attach between that look and the deletion. Raises PreconditionFailed.
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
        if full in self._leaving or full in self._opening:
            raise ServiceNotReady(f"Topic {full} is being moved or deleted, please retry")
        if only is not None and (topic is not only[0] or not only[1](only[0])):
            raise PreconditionFailed(f"Topic {full} is in use again")
        if topic is not None:
            topic.check_deletable(force=force)
            del self._open[full]
        self._leaving.add(full)
        try:
            if topic is not None:
                with contextlib.suppress(MagnetarError):  # what it could not write goes now
                    await topic.close()
            if name.persistent:
                try:
                    await self._ledgers.delete(ledger_name(name), (under,) if under else ())
                except NotFound as error:
                    raise NotFound(f"Topic not found: {full}") from error
            if not await self._resources.partitions(name.base):
                await self._context.schemas.forget(name)
                await self._context.policies.forget(name)
        finally:
            self._leaving.discard(full)
        self.news.tell(name, exists=False)

    def drop_idle(self, name: TopicName) -> None:
        """Forgets a non-persistent topic that nobody is attached to."""
        topic = self._open.get(str(name))
        if isinstance(topic, NonPersistentTopic) and topic.is_idle:
            del self._open[str(name)]
            self.news.tell(name, exists=False)

    async def close(self) -> None:
        """Closes every topic, CLOSED_AT_ONCE_MAX at a time; none opens after this."""
        self._closed = True
        while self._open:
            some = list(self._open.items())[:CLOSED_AT_ONCE_MAX]
            await asyncio.gather(*(self._close(full, topic) for full, topic in some))

    # -- what the ownership does (`ServedTopics`) ------------------------------------------

    def suspend(self) -> None:
        """All rest: nothing is taken and nothing is sent, and nobody is told."""
        for topic in self._open.values():
            topic.suspend()

    def resume(self) -> None:
        """All go on."""
        for topic in list(self._open.values()):
            topic.resume()

    def abandon(self, inside: Inside) -> None:
        """Those inside are given up at once: nothing is written, clients look them up again."""
        self._given_up += 1
        for full, topic in [*self._open.items(), *self._drained.items()]:
            if inside(topic):
                self._open.pop(full, None)
                self._drained.pop(full, None)
                topic.abandon()
                collecting.closed(topic)

    async def drain(self, bundle: Bundle) -> None:
        """Those of the bundle are closed, all known is durable; clients are not told yet."""
        while opening := [
            opening.topic for full, opening in self._opening.items() if parse_topic(full) in bundle
        ]:
            await asyncio.wait(opening)
        topics = [(full, topic) for full, topic in self._open.items() if bundle.holds(topic)]
        for start in range(0, len(topics), CLOSED_AT_ONCE_MAX):
            await asyncio.gather(
                *(
                    self._context.tasks.finish(self._drain(full, topic), f"drain {full}")
                    for full, topic in topics[start : start + CLOSED_AT_ONCE_MAX]
                )
            )

    async def _drain(self, full: str, topic: Topic) -> None:
        if self._open.get(full) is not topic:
            return  # somebody else closes it
        del self._open[full]
        self._drained[full] = topic
        self._leaving.add(full)
        try:
            await topic.drain()
        except MagnetarError as error:
            log.warning("topic not closed in order", topic=full, error=str(error))
        except Exception:
            log.exception("topic not closed in order", topic=full)
        finally:
            self._leaving.discard(full)

    def dismiss(self, inside: Inside, destination: BrokerRecord | None) -> None:
        """Clients of those that were drained are told, with the new owner where it is known."""
        gone = [full for full, topic in self._drained.items() if inside(topic)]
        for full in gone:
            topic = self._drained.pop(full)
            topic.dismiss(destination)
            collecting.closed(topic)

    def loads(self, inside: Inside) -> list[TopicLoad]:
        """The topics inside, with what they move."""
        return [topic.load() for topic in self._open.values() if inside(topic)]

"""Topics by a pattern: discovered at the start, then followed by a watch, or by polling.

A broker with topic watchers sends changes at once. The list is also requested every
`update_partitions_s`, which covers brokers without watchers, refused patterns and lost updates.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterable
from typing import Any, Final

from magnetar.client.consumer.topics import Topics
from magnetar.client.context import Context
from magnetar.client.errors import ClientError, InvalidConfiguration, NotAllowed
from magnetar.client.network.connection import Connection
from magnetar.client.network.retry import FIRST_BACKOFF_S
from magnetar.client.options import ConsumerOptions
from magnetar.core.backoff import Backoff
from magnetar.core.errors import InvalidTopicName
from magnetar.core.log import get_logger
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

log = get_logger("magnetar.client.pattern")

_MODES: Final = {"persistent": 0, "non-persistent": 1, "all": 2}
_SYSTEM: Final = re.compile(r"/__|__transaction_|-__")


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] if "://" in text else text


class TopicPattern:
    """A regular expression over the topics of one namespace."""

    def __init__(self, pattern: str) -> None:
        """`[persistent://]TENANT/NAMESPACE/REGEX`; raises InvalidConfiguration."""
        parts = _without_scheme(pattern).split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", parts[0]]
        if len(parts) != 3 or not all(re.fullmatch(r"[-=:.\w]+", part) for part in parts[:2]):
            raise InvalidConfiguration(
                f"{pattern!r} is not a topic pattern: use TENANT/NAMESPACE/REGEX"
            )
        self.namespace = "/".join(parts[:2])
        self.text = f"persistent://{'/'.join(parts)}"
        try:
            self._regex = re.compile("/".join([*map(re.escape, parts[:2]), parts[2]]))
        except re.error as error:
            raise InvalidConfiguration(
                f"{pattern!r} is not a regular expression: {error}"
            ) from None

    def select(self, topics: Iterable[str]) -> set[str]:
        """Returns the topics that match, partitioned ones by their common name."""
        bases = set()
        for topic in topics:
            with contextlib.suppress(InvalidTopicName):  # none that a consumer can have
                bases.add(str(parse_topic(topic).base))
        return {
            base
            for base in bases
            if self._regex.fullmatch(_without_scheme(base)) and not _SYSTEM.search(base)
        }


class PatternWatch:
    """Adds and removes the topics of a consumer as they are created and deleted."""

    def __init__(self, context: Context, pattern: TopicPattern, options: ConsumerOptions) -> None:
        self._context = context
        self._pattern = pattern
        self._mode = _MODES[options.pattern_mode]
        self._poll_s = options.update_partitions_s
        self._watcher_id = context.next_consumer_id()
        self._topics: Topics  # set by `start`
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        self._added: set[str] = set()
        self._removed: set[str] = set()
        self._lost: set[str] = set()
        """Topics of which the broker says that they do not exist any more."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopped = False

    async def start(self, topics: Topics) -> None:
        """Adds the topics that exist, and follows changes from then on."""
        self._topics = topics
        listed = await self._listed()
        await topics.add(sorted(listed))
        start = self._context.tasks.start
        name = f"topics of {self._pattern.text}"
        for coroutine in (self._apply(), self._poll(), self._watch()):
            task = start(coroutine, name)
            if task is not None:
                self._tasks.append(task)

    async def _listed(self) -> set[str]:
        topics, namespace = self._context.lookup.topics, self._pattern.namespace
        try:
            listed = await topics(namespace, self._mode, self._pattern.text)
        except NotAllowed:  # the broker bounds the length of patterns: it is applied here alone
            listed = await topics(namespace, self._mode)
        return self._pattern.select(listed.topics)

    async def _reconcile(self) -> None:
        wanted, known = await self._listed(), set(self._topics.partitions)
        await self._topics.remove(known - wanted)
        await self._add(wanted - known)

    async def _add(self, names: set[str]) -> None:
        """Adds topics; one that cannot be attached to keeps none of the others out."""
        topics = self._topics
        new = sorted(names - set(topics.partitions))
        try:
            await topics.add(new)
        except ClientError as error:
            log.info("topics not added together", topic=error.topic, error=str(error))
            for name in new:
                try:
                    await topics.add([name])
                except ClientError as refusal:
                    log.warning("topic not added", topic=name, error=str(refusal))

    async def _poll(self) -> None:
        while self._poll_s and not self._stopped:
            await asyncio.sleep(self._poll_s)
            try:
                await self._reconcile()
            except ClientError as error:
                log.info("topics not listed", pattern=self._pattern.text, error=str(error))

    # -- watch ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        if self._mode != _MODES["persistent"]:
            return  # brokers watch persistent topics only
        backoff = Backoff(
            FIRST_BACKOFF_S, self._context.options.backoff_max_s, self._context.random
        )
        while not self._stopped:
            try:
                connection = await self._context.lookup.any_connection()
                if not connection.features.supports_topic_watchers:
                    return
                await self._subscribe(connection)
                backoff.reset()
                await asyncio.shield(connection.ended)
            except ClientError as error:
                if not error.retryable:
                    log.info("broker has no watch", pattern=self._pattern.text, error=str(error))
                    return
            await asyncio.sleep(backoff.failed_s())

    async def _subscribe(self, connection: Connection) -> None:
        command = pb.CommandWatchTopicList(
            request_id=0,
            watcher_id=self._watcher_id,
            namespace=self._pattern.namespace,
            topics_pattern=self._pattern.text,
        )
        connection.attach_watcher(self._watcher_id, self)
        try:
            answer: pb.CommandWatchTopicListSuccess = await connection.request(
                CommandType.WATCH_TOPIC_LIST, command, self._context.options.operation_timeout_s
            )
        except BaseException:
            connection.detach_watcher(self._watcher_id)
            raise
        self._connection = connection
        self._added |= self._pattern.select(answer.topic)
        self._changed.set()

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        added = self._pattern.select(update.new_topics)
        removed = self._pattern.select(update.deleted_topics)
        self._added = (self._added - removed) | added
        self._removed = (self._removed - added) | removed
        self._changed.set()

    def lost(self, topic: str) -> None:
        """Removes a topic that does not exist any more."""
        self._lost |= self._pattern.select([topic])
        self._changed.set()

    def on_disconnected(self) -> None:
        self._connection = None

    async def _apply(self) -> None:
        topics = self._topics
        while not self._stopped:
            await self._changed.wait()
            self._changed.clear()
            added, self._added = self._added, set()
            removed, self._removed = self._removed, set()
            lost, self._lost = self._lost, set()
            try:
                await topics.remove(removed | lost)
                await self._add(added)
                if lost:  # one may have been created again before it was removed here
                    await self._reconcile()
            except ClientError as error:
                log.info("topics not listed", pattern=self._pattern.text, error=str(error))

    async def stop(self) -> None:
        """Ends the watch."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        connection = self._connection
        if connection is None or connection.closed:
            return
        connection.detach_watcher(self._watcher_id)
        closing = pb.CommandWatchTopicListClose(request_id=0, watcher_id=self._watcher_id)
        try:
            await connection.request(
                CommandType.WATCH_TOPIC_LIST_CLOSE,
                closing,
                self._context.options.operation_timeout_s,
            )
        except ClientError as error:
            log.info("watch not closed", pattern=self._pattern.text, error=str(error))

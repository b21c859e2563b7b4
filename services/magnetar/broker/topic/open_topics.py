"""The topics that are open on this broker, and how they are suspended, moved and closed.

A topic that is being closed or deleted keeps its name until that is done: requests for it get an
error to retry on, so that no client attaches to a topic whose log is ending. Closing runs to its
end even if the caller is cancelled.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from magnetar.broker.ownership.api import Inside
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.ownership.split_algorithms import TopicLoad
from magnetar.broker.topic.api import Topic
from magnetar.core.errors import MagnetarError
from magnetar.core.garbage import garbage_policy
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar.core.tasks import TaskSet

CLOSED_AT_ONCE_MAX: Final = 64

log = get_logger("magnetar.topics")


@dataclass(frozen=True, slots=True)
class Opening:
    """A topic that is being opened."""

    topic: "asyncio.Future[Topic]"
    creates: bool
    """Whether the topic is created if it does not exist."""


class OpenTopics:
    """Holds the open topics by name; the ownership controls them (`ServedTopics`)."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._open: dict[str, Topic] = {}
        self.opening: dict[str, Opening] = {}
        self._leaving: dict[str, asyncio.Event] = {}
        """Names of topics that are being closed or deleted; each event is set at the end."""
        self._drained: dict[str, Topic] = {}
        """Closed topics whose clients have not been notified yet."""
        self.abandonments = 0
        """How often topics were abandoned; an opening that spans one may have read stale state."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, full_name: str) -> bool:
        return full_name in self._open

    def get(self, full_name: str) -> Topic | None:
        """Returns the open topic of that name."""
        return self._open.get(full_name)

    def loaded(self, name: TopicName) -> Topic | None:
        """Returns the topic if it is open."""
        return self._open.get(str(name))

    def add(self, topic: Topic) -> None:
        """Adds an opened topic."""
        self._open[topic.full_name] = topic

    def remove(self, topic: Topic) -> None:
        """Removes a topic without closing it."""
        del self._open[topic.full_name]

    def is_leaving(self, full_name: str) -> bool:
        """Whether a topic of that name is being closed or deleted."""
        return full_name in self._leaving

    @contextmanager
    def leaving(self, full_name: str) -> Iterator[None]:
        """Keeps the name taken while its topic, if open, is closed or deleted."""
        self._open.pop(full_name, None)
        self._leaving[full_name] = left = asyncio.Event()
        try:
            yield
        finally:
            del self._leaving[full_name]
            left.set()

    async def close(self, topic: Topic) -> None:
        """Closes the topic, unless it is being closed already; failures are logged."""
        full = topic.full_name
        if self._open.get(full) is not topic:
            return
        with self.leaving(full):
            try:
                await topic.close()
            except MagnetarError as error:
                log.warning("topic not closed in order", topic=full, error=str(error))
            except Exception:
                log.exception("topic not closed in order", topic=full)
            finally:
                garbage_policy.closed(topic)

    async def close_all(self) -> None:
        """Closes every topic, CLOSED_AT_ONCE_MAX at a time."""
        while self._open:
            batch = list(self._open.values())[:CLOSED_AT_ONCE_MAX]
            await asyncio.gather(*map(self.close, batch))

    def suspend(self) -> None:
        """See `ServedTopics.suspend`."""
        for topic in self._open.values():
            topic.suspend()

    def resume(self) -> None:
        """See `ServedTopics.resume`."""
        for topic in list(self._open.values()):
            topic.resume()

    def abandon(self, inside: Inside) -> None:
        """See `ServedTopics.abandon`."""
        self.abandonments += 1
        for full, topic in [*self._open.items(), *self._drained.items()]:
            if inside(topic):
                self._open.pop(full, None)
                self._drained.pop(full, None)
                topic.abandon()
                garbage_policy.closed(topic)

    async def drain(self, bundle: Bundle) -> None:
        """See `ServedTopics.drain`.

        Waits for topics of the bundle that are being opened, and for those that are being closed or
        deleted already: the next owner would cut that short.
        """
        while opening := [
            opening.topic for full, opening in self.opening.items() if parse_topic(full) in bundle
        ]:
            await asyncio.wait(opening)
        topics = [topic for topic in self._open.values() if bundle.holds(topic)]
        for start in range(0, len(topics), CLOSED_AT_ONCE_MAX):
            await asyncio.gather(
                *(
                    self._tasks.finish(self._drain(topic), f"drain {topic.full_name}")
                    for topic in topics[start : start + CLOSED_AT_ONCE_MAX]
                )
            )
        while leaving := [
            left for full, left in self._leaving.items() if parse_topic(full) in bundle
        ]:
            await leaving[0].wait()

    async def _drain(self, topic: Topic) -> None:
        full = topic.full_name
        if self._open.get(full) is not topic:
            return  # it is being closed already
        if (former := self._drained.get(full)) is not None:
            # A single broker opens a topic again while the rest of its bundle is closed.
            former.dismiss(None)
            garbage_policy.closed(former)
        self._drained[full] = topic
        with self.leaving(full):
            try:
                await topic.drain()
            except MagnetarError as error:
                log.warning("topic not closed in order", topic=full, error=str(error))
            except Exception:
                log.exception("topic not closed in order", topic=full)

    def dismiss(self, inside: Inside, destination: BrokerRecord | None) -> None:
        """See `ServedTopics.dismiss`."""
        drained = [full for full, topic in self._drained.items() if inside(topic)]
        for full in drained:
            topic = self._drained.pop(full)
            topic.dismiss(destination)
            garbage_policy.closed(topic)

    def loads(self, inside: Inside) -> list[TopicLoad]:
        """See `ServedTopics.loads`."""
        return [topic.load() for topic in self._open.values() if inside(topic)]

"""The schemas of writers, for schemas that need them to decode.

Messages whose schema version is new wait until it is fetched, and so do all after them, so that
their order stays.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from magnetar.client.consumer.entry import ReceivedEntry
from magnetar.client.context import Context
from magnetar.client.errors import ClientError
from magnetar.client.message import Message
from magnetar.client.network.retry import FIRST_BACKOFF_S
from magnetar.client.schema.api import Schema
from magnetar.core.backoff import Backoff
from magnetar.core.log import get_logger
from magnetar.schemas.model import SchemaInfo

log = get_logger("magnetar.client.consumer")

FETCH_BACKOFF_MAX_S: Final = 10.0

Deliver = Callable[[ReceivedEntry, list[Message[Any]]], None]


class WriterSchemas:
    """Delivers entries of one topic or partition once their writer's schema is known."""

    def __init__(self, context: Context, topic: str, schema: Schema[Any], deliver: Deliver) -> None:
        self._context = context
        self._topic = topic
        self._schema = schema
        self._needed = schema.needs_writer
        self._deliver = deliver
        self._known: set[bytes] = set()
        self._held: deque[tuple[ReceivedEntry, list[Message[Any]]]] = deque()
        self._fetch: asyncio.Task[Any] | None = None

    def deliver(self, entry: ReceivedEntry, messages: list[Message[Any]]) -> None:
        """Delivers messages, now or when their schema is fetched."""
        if not self._needed:
            self._deliver(entry, messages)
            return
        metadata = entry.metadata
        version = metadata.schema_version if metadata.HasField("schema_version") else b""
        if not self._held and (not version or version in self._known):
            self._deliver(entry, messages)
            return
        self._held.append((entry, messages))
        if self._fetch is None or self._fetch.done():
            self._fetch = self._context.tasks.start(self._fetch_held(), f"schemas of {self._topic}")

    async def _fetch_held(self) -> None:
        backoff = Backoff(FIRST_BACKOFF_S, FETCH_BACKOFF_MAX_S, self._context.random)
        while self._held:
            entry, messages = self._held[0]
            version = entry.metadata.schema_version
            if version and version not in self._known:
                try:
                    info = await self._context.lookup.schema(self._topic, version)
                except ClientError as error:
                    log.warning("schema not fetched", topic=self._topic, error=str(error))
                    if error.retryable:
                        await asyncio.sleep(backoff.failed_s())
                        continue
                    self._schema.learn_failure(version, str(error))
                else:
                    self._learn(version, info)
                self._known.add(version)
            if self._held and self._held[0][0] is entry:
                self._held.popleft()
                self._deliver(entry, messages)

    def _learn(self, version: bytes, info: SchemaInfo) -> None:
        try:
            self._schema.learn(version, info)
        except Exception as error:  # noqa: BLE001  # the schema may be users' code
            self._schema.learn_failure(version, repr(error))

    def clear(self) -> int:
        """Drops what waits: the broker delivers it again. Returns the number of messages."""
        count = sum(len(messages) for _, messages in self._held)
        self._held.clear()
        return count

"""The producer of the official client, on the blocking client."""

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from magnetar.client import sync
from magnetar.client.message_id import MessageId as OwnMessageId
from magnetar.pulsar.checks import check_type, check_types
from magnetar.pulsar.enums import Result
from magnetar.pulsar.facts import ProducerFacts
from magnetar.pulsar.message_id import MessageId
from magnetar.pulsar.outcomes import refuse_closed, result_of, translated

if TYPE_CHECKING:
    from magnetar.pulsar.client import Client
    from magnetar.pulsar.schema.schema import Schema

Callback = Callable[[Result, MessageId], object]
NOT_REPLICATED: Final = ("__local__",)
"""The name in place of clusters that keeps a message from being replicated."""

_TYPES: Final = {
    "properties": [dict], "partition_key": [str], "ordering_key": [str], "sequence_id": [int],
    "replication_clusters": [list], "disable_replication": bool, "event_timestamp": [int],
    "deliver_at": [int], "deliver_after": [timedelta],
}  # fmt: skip


class Fields(TypedDict, total=False):
    """The fields of a message as `magnetar.client` takes them."""

    key: str | None
    ordering_key: bytes | None
    properties: Mapping[str, str] | None
    event_time_ms: int
    sequence_id: int
    deliver_at_ms: int
    deliver_after_s: float
    replicate_to: tuple[str, ...]


def encoded(schema: "Schema", content: Any) -> bytes | None:
    """Returns the bytes of a message; None for a null value."""
    if content is None:
        return None
    data = schema.encode(content)
    check_type(bytes, data, "data")
    return data


def fields_of(values: Mapping[str, Any]) -> Fields:
    """Returns the fields of a message, checked; raises ValueError, and TypeError for properties."""
    check_types(_TYPES, values)
    clusters = values["replication_clusters"]
    if values["disable_replication"] and clusters:
        raise ValueError("disable_replication and replication_clusters exclude each other")
    ordering_key, after = values["ordering_key"], values["deliver_after"]
    sequence_id = values["sequence_id"]
    for name in ("sequence_id", "event_timestamp", "deliver_at"):
        if (values[name] or 0) < 0:
            raise ValueError(f"Argument {name} must be at least 0, not {values[name]}")
    for text in itertools.chain.from_iterable((values["properties"] or {}).items()):
        if not isinstance(text, str):
            raise TypeError(f"Argument properties must have text only, not {type(text).__name__}")
    return {
        "key": values["partition_key"] or None,
        "ordering_key": ordering_key.encode() if ordering_key else None,
        "properties": values["properties"],
        "event_time_ms": values["event_timestamp"] or 0,
        "sequence_id": -1 if sequence_id is None else sequence_id,
        "deliver_at_ms": values["deliver_at"] or 0,
        "deliver_after_s": after.total_seconds() if after else 0.0,
        "replicate_to": NOT_REPLICATED if values["disable_replication"] else tuple(clusters or ()),
    }


class Producer(ProducerFacts):
    """Sends messages to a topic."""

    def __init__(
        self, client: "Client", producer: "sync.Producer[bytes]", schema: "Schema"
    ) -> None:
        self._client = client
        self._producer = producer
        self._schema = schema
        options = producer.options
        # `send_async` waits for room in the caller's thread, not in the client's.
        waits = options.block_if_queue_full and options.max_pending_messages
        self._room = threading.Semaphore(options.max_pending_messages) if waits else None

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Sends a message and returns its id once it is stored."""
        fields = fields_of(locals())
        data = encoded(self._schema, content)
        if self._room is not None:
            self._room.acquire()
        try:
            with translated():
                return MessageId.wrap(self._producer.send(data, **fields))
        finally:
            if self._room is not None:
                self._room.release()

    def send_async(
        self,
        content: Any,
        callback: Callback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Queues a message; `callback` gets the result and the id, in a thread of the client."""
        if callback is not None and not callable(callback):
            raise TypeError(f"Argument callback must be callable, not {type(callback).__name__}")
        fields = fields_of(locals())
        data = encoded(self._schema, content)
        if self._room is not None:
            self._room.acquire()
        try:
            with translated():
                future = self._queue(data, fields)
        except BaseException:
            if self._room is not None:
                self._room.release()
            raise
        future.add_done_callback(lambda done: self._sent(done, callback))

    def _queue(self, data: bytes | None, fields: Fields) -> "Future[OwnMessageId]":
        if not self._producer.options.lazy:
            return self._producer.send_nowait(data, **fields)
        # The partition may have to be attached first.
        inner = self._producer._inner
        return self._producer._portal.submit(lambda: inner.send(data, **fields))

    def _sent(self, done: "Future[OwnMessageId]", callback: Callback | None) -> None:
        if self._room is not None:
            self._room.release()
        if callback is None:
            return
        error = None if done.cancelled() else done.exception()
        if done.cancelled():
            result, message_id = Result.AlreadyClosed, MessageId()
        elif error is not None:
            result, message_id = result_of(error), MessageId()
        else:
            result, message_id = Result.Ok, MessageId.wrap(done.result())
        self._client._callbacks.post(lambda: callback(result, message_id))

    def flush(self) -> None:
        """Sends everything queued and waits for its receipts."""
        with translated():
            self._producer.flush()

    def close(self) -> None:
        """Sends what is queued, waits for its receipts, and closes the producer.

        Raises AlreadyClosed if it is closed.
        """
        refuse_closed(self._producer.refusal)
        with translated():
            self._producer.close()

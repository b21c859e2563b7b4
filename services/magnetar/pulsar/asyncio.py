"""The asyncio interface of the official client, on `magnetar.client`.

    import magnetar.pulsar as pulsar
    from magnetar.pulsar.asyncio import Client

    client = Client("pulsar://localhost:6650")
    producer = await client.create_producer("orders")
    await producer.send(b"hello")
    await client.close()

The connections are in a thread of the client, as in the official one: a client may be created
outside of event loops and used by several, and a program that blocks its loop stays connected.
Unlike there, a `receive` that waits may be cancelled, and loses no message.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from magnetar.client import sync
from magnetar.client.errors import ClientError
from magnetar.client.sync.portal import Portal
from magnetar.client.sync.results import closed, untaken
from magnetar.pulsar import logs
from magnetar.pulsar.checks import check_type, warn_of_options
from magnetar.pulsar.consumer import (
    MessageOrId,
    acknowledged,
    last_id,
    refuse_cumulative,
    target_of,
)
from magnetar.pulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    Result,
)
from magnetar.pulsar.exceptions import PulsarException as _SyncException
from magnetar.pulsar.facts import ConsumerFacts, ProducerFacts, ReaderFacts
from magnetar.pulsar.message import Message
from magnetar.pulsar.message_id import AnyMessageId, MessageId
from magnetar.pulsar.options import (
    client_options,
    consumer_options,
    producer_options,
)
from magnetar.pulsar.outcomes import refuse_closed, result_of, translated_values
from magnetar.pulsar.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
)
from magnetar.pulsar.producer import encoded, fields_of
from magnetar.pulsar.reading import full_name, opened_reader
from magnetar.pulsar.schema.schema import BytesSchema, Declared, Schema

T = TypeVar("T")
_BYTES = BytesSchema()


class PulsarException(Exception):
    """The error of all operations of this module, with its result."""

    def __init__(self, result: Result, msg: str | None = None) -> None:
        super().__init__(result, msg)
        self._result = result
        self._msg = msg

    def error(self) -> Result:
        """The result."""
        return self._result

    def __str__(self) -> str:
        text = f"{self._result.value} {self._result.name}"
        return f"{text}: {self._msg}" if self._msg else text


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ClientError, _SyncException) as error:
        raise PulsarException(result_of(error), str(error)) from error


async def _call(
    portal: Portal,
    function: Callable[[], Awaitable[T]],
    discard: Callable[[T], object] | None = None,
) -> T:
    """Returns the result of a coroutine function, which runs in the client's thread.

    If the caller is cancelled and there is a result nevertheless, `discard` gets it.
    """
    with _translated():
        future: Future[T] = portal.submit(function, discard)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and discard is not None and future.exception() is None:
                with contextlib.suppress(ClientError):  # the cancellation must come through
                    portal.submit(lambda: discard(future.result()))
            raise


class Producer(ProducerFacts):
    """Sends messages to a topic."""

    def __init__(self, producer: "sync.Producer[bytes]", schema: Schema) -> None:
        self._producer = producer
        self._schema = schema

    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Sends a message and returns its id once it is stored."""
        values = {**locals(), "disable_replication": bool(disable_replication)}
        fields = fields_of(values)
        data = encoded(self._schema, content)
        portal, inner = self._producer._portal, self._producer._inner
        if self._producer.options.block_if_queue_full or self._producer.options.lazy:
            return MessageId.wrap(await _call(portal, lambda: inner.send(data, **fields)))
        return MessageId.wrap(await _call(portal, lambda: inner.send_nowait(data, **fields)))

    async def flush(self) -> None:
        """Sends everything queued and waits for its receipts."""
        await _call(self._producer._portal, lambda: self._producer._inner.flush())

    async def close(self) -> None:
        """Sends what is queued, waits for its receipts, and closes the producer."""
        with _translated():
            refuse_closed(self._producer.refusal)
        await _call(self._producer._portal, lambda: self._producer._inner.close())


class Consumer(ConsumerFacts):
    """Receives the messages of a subscription."""

    def __init__(
        self, consumer: "sync.Consumer[bytes]", topic: str, schema: Schema, *, inclusive: bool
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._schema = schema
        self._inclusive = inclusive
        self._unsubscribed = False

    async def receive(self) -> Message:
        """Returns the next message."""
        inner = self._consumer._inner
        return Message(await _call(self._consumer._portal, inner.receive, untaken), self._schema)

    async def acknowledge(self, message: MessageOrId) -> None:
        """Acknowledges a message."""
        await _call(
            self._consumer._portal, lambda: self._consumer._inner.ack(acknowledged(message))
        )

    async def acknowledge_cumulative(self, message: MessageOrId) -> None:
        """Acknowledges a message and all before it."""
        with _translated():
            refuse_cumulative(self._consumer.options.type)
        consumer = self._consumer
        await _call(consumer._portal, lambda: consumer._inner.ack_cumulative(acknowledged(message)))

    async def negative_acknowledge(self, message: MessageOrId) -> None:
        """Asks for a message again, after `negative_ack_redelivery_delay_ms`."""
        await _call(
            self._consumer._portal, lambda: self._consumer._inner.nack(acknowledged(message))
        )

    async def unsubscribe(self) -> None:
        """Deletes the subscription and closes the consumer."""
        await _call(self._consumer._portal, lambda: self._consumer._inner.unsubscribe())
        self._unsubscribed = True

    async def seek(self, messageid: AnyMessageId | int) -> None:
        """Moves the subscription to a message, or to a publish time in ms since 1970."""
        to = target_of(messageid)
        await _call(
            self._consumer._portal,
            lambda: self._consumer._inner.seek(to, inclusive=self._inclusive),
        )

    async def close(self) -> None:
        """Closes the consumer."""
        if self._unsubscribed:
            return  # programs do both
        with _translated():
            refuse_closed(self._consumer.refusal)
        await _call(self._consumer._portal, lambda: self._consumer._inner.close())

    async def get_last_message_id(self) -> MessageId:
        """Returns the id of the last message of the topic."""
        ids = await _call(self._consumer._portal, self._consumer._inner.last_message_ids)
        with _translated():
            return last_id(ids)

    def redeliver_unacknowledged_messages(self) -> None:
        """Asks for everything that is not acknowledged."""
        with _translated():
            self._consumer.redeliver_unacknowledged()


class Reader(ReaderFacts):
    """Reads a topic from a position of its choice."""

    def __init__(self, reader: "sync.Reader[bytes]", topic: str, schema: Schema) -> None:
        self._reader = reader
        self._topic = topic
        self._schema = schema

    async def read_next(self) -> Message:
        """Returns the next message."""
        inner = self._reader._inner
        return Message(await _call(self._reader._portal, inner.read, untaken), self._schema)

    async def has_message_available(self) -> bool:
        """Whether a message follows those that were read."""
        return await _call(self._reader._portal, self._reader._inner.has_message_available)

    async def seek(self, messageid: AnyMessageId | int) -> None:
        """Moves the reader to a message, or to a publish time in ms since 1970."""
        to = target_of(messageid)
        await _call(
            self._reader._portal,
            lambda: self._reader._inner.seek(to, inclusive=self._reader.options.inclusive),
        )

    async def close(self) -> None:
        """Closes the reader."""
        await _call(self._reader._portal, lambda: self._reader._inner.close())


_CLIENT_DEFAULTS: dict[str, Any] = {
    "authentication": None, "operation_timeout_seconds": 30, "io_threads": 1,
    "message_listener_threads": 1, "concurrent_lookup_requests": 50_000,
    "log_conf_file_path": None, "stats_interval_in_seconds": 600, "use_tls": False,
    "tls_trust_certs_file_path": None, "tls_allow_insecure_connection": False,
    "tls_validate_hostname": False, "logger": None, "connection_timeout_ms": 10_000,
    "listener_name": None, "tls_private_key_file_path": None, "tls_certificate_file_path": None,
}  # fmt: skip


_NO_LISTENERS = {
    "message_listener_threads": (1, "consumers of magnetar.pulsar.asyncio have no listeners")
}


class Client:
    """A connection to a cluster, shared by its producers and consumers."""

    def __init__(self, service_url: Any, **kwargs: Any) -> None:
        """`kwargs` are those of `magnetar.pulsar.Client`."""
        unknown = kwargs.keys() - _CLIENT_DEFAULTS.keys()
        if unknown:
            raise TypeError(f"Client has no argument {', '.join(sorted(unknown))}")
        values = {**_CLIENT_DEFAULTS, **kwargs}
        warn_of_options(values, _NO_LISTENERS, frames=3)
        url, options = client_options(service_url, values)
        self._log_handler = logs.handler_of(values["logger"])
        with translated_values():
            self._client = sync.Client(url, **options)
        logs.attach(self._log_handler)
        weakref.finalize(self, logs.detach, self._log_handler).atexit = False

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Any, int], int] | None = None,
    ) -> Producer:
        """Creates a producer."""
        schema = schema or _BYTES
        options = producer_options(locals())
        schema.attach_client(self)
        with _translated():
            opening = self._client._inner.producer(topic, schema=Declared(schema), **options)
        opened = await _call(self._client._portal, opening.opened, closed)
        return Producer(sync.Producer(self._client, opened), schema)

    async def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
    ) -> Consumer:
        """Subscribes to a topic, to several topics, or with `is_pattern_topic` to a pattern."""
        schema = schema or _BYTES
        options = consumer_options(locals())
        declared = Declared(schema)
        if not isinstance(topic, str | list):
            raise ValueError("Argument topic must be of type str or list")
        if is_pattern_topic and not isinstance(topic, str):
            raise ValueError("With is_pattern_topic, argument topic must be of type str")
        client = self._client._inner
        with _translated():
            if is_pattern_topic and isinstance(topic, str):
                opening = client.pattern_consumer(
                    topic, subscription_name, schema=declared, **options
                )
            else:
                opening = client.consumer(topic, subscription_name, schema=declared, **options)
        opened = await _call(self._client._portal, opening.opened, closed)
        schema.attach_client(self)
        if isinstance(topic, str):
            name = topic if is_pattern_topic else full_name(topic)
        else:
            name = ",".join(topic)
        consumer = sync.Consumer(self._client, opened)
        return Consumer(consumer, name, schema, inclusive=start_message_id_inclusive)

    async def create_reader(
        self,
        topic: str,
        start_message_id: AnyMessageId,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """Reads a topic from a message on."""
        used = schema or _BYTES
        values = {**locals(), "schema": used}
        inner = self._client._inner
        opened = await _call(
            self._client._portal, lambda: opened_reader(inner, used, values), closed
        )
        used.attach_client(self)
        return Reader(sync.Reader(self._client, opened), full_name(topic), used)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Returns the topics of the partitions; only its own name if it has none."""
        check_type(str, topic, "topic")
        try:
            return await _call(self._client._portal, lambda: self._client._inner.partitions(topic))
        except PulsarException as error:
            if error.error() != Result.TopicNotFound:
                raise
            return [full_name(topic)]

    async def close(self) -> None:
        """Closes all producers and consumers, then the connections."""
        # The thread of the client ends here, which may take a while.
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    def shutdown(self) -> None:
        """Closes the client, and waits for its end in this thread."""
        try:
            with _translated():
                self._client.close()
        finally:
            logs.detach(self._log_handler)
            self._log_handler = None

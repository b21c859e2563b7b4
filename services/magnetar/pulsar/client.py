"""The client of the official Python package, on the blocking client of `magnetar.client`."""

import itertools
import logging
import re
import weakref
from collections.abc import Callable
from typing import Any

from magnetar.client import sync
from magnetar.client.errors import TopicNotFound
from magnetar.client.sync.results import closed
from magnetar.pulsar import logs
from magnetar.pulsar.authentication import Authentication
from magnetar.pulsar.callbacks import CallbackThread
from magnetar.pulsar.checks import check_type, check_type_or_none
from magnetar.pulsar.consumer import Consumer, Listener, Reader
from magnetar.pulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from magnetar.pulsar.exceptions import AlreadyClosed
from magnetar.pulsar.message_id import AnyMessageId
from magnetar.pulsar.options import (
    client_options,
    consumer_options,
    producer_options,
)
from magnetar.pulsar.outcomes import translated, translated_values
from magnetar.pulsar.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
)
from magnetar.pulsar.producer import Producer
from magnetar.pulsar.reading import full_name, opened_reader
from magnetar.pulsar.schema.schema import BytesSchema, Declared, Schema
from magnetar.pulsar.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from magnetar.pulsar.tableview import TableView

_BYTES = BytesSchema()


class Client:
    """A connection to a cluster, shared by its producers and consumers."""

    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
        authentication: Authentication | None = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: Any = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None:
        url, options = client_options(service_url, locals())
        self._log_handler = logs.handler_of(logger)
        with translated_values():
            self._client = sync.Client(url, **options)
        self._authentication = authentication
        self._trusted = tls_trust_certs_file_path
        self._consumers: list[Consumer | Reader] = []
        self._closed = False
        self._callbacks = CallbackThread("magnetar-callbacks")
        self._listeners = [
            CallbackThread(f"magnetar-listener-{index}")
            for index in range(max(message_listener_threads, 1))
        ]
        self._next_listener = itertools.cycle(self._listeners)
        logs.attach(self._log_handler)
        threads = (self._callbacks, *self._listeners)
        weakref.finalize(self, _end_all, threads, self._log_handler).atexit = False

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema = _BYTES,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
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
        options = producer_options(locals())
        schema.attach_client(self)
        with translated():
            producer = self._client.producer(topic, schema=Declared(schema), **options)
        return Producer(self, producer, schema)

    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema = _BYTES,
        message_listener: Listener | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
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
    ) -> Consumer:
        """Subscribes to a topic, several topics, or all that match a pattern."""
        options = consumer_options(locals())
        declared = Declared(schema)
        if isinstance(topic, re.Pattern):
            with translated():
                consumer = self._client.pattern_consumer(
                    topic.pattern, subscription_name, schema=declared, **options
                )
            name = topic.pattern
        elif isinstance(topic, str | list):
            with translated():
                consumer = self._client.consumer(
                    topic, subscription_name, schema=declared, **options
                )
            name = full_name(topic) if isinstance(topic, str) else ",".join(topic)
        else:
            raise ValueError("Argument topic must be of type str, list or re.Pattern")
        subscribed = Consumer(self, consumer, name, schema, inclusive=start_message_id_inclusive)
        schema.attach_client(self)
        self._consumers.append(subscribed)
        if message_listener is not None:
            subscribed._listen(message_listener)
        return subscribed

    def create_reader(
        self,
        topic: str,
        start_message_id: AnyMessageId,
        schema: Schema = _BYTES,
        reader_listener: Listener | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """Reads a topic from a message on."""
        values = locals()
        inner, portal = self._client._inner, self._client._portal
        with translated():
            reader_inner = portal.call_or(closed, lambda: opened_reader(inner, schema, values))
        opened = sync.Reader(self._client, reader_inner)
        reader = Reader(self, opened, full_name(topic), schema)
        schema.attach_client(self)
        self._consumers.append(reader)
        if reader_listener is not None:
            reader._listen(reader_listener)
        return reader

    def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema = _BYTES
    ) -> TableView:
        """Keeps the latest value of each key of a topic."""
        check_type(str, topic, "topic")
        check_type_or_none(str, subscription_name, "subscription_name")
        check_type(Schema, schema, "schema")
        with translated():
            view = self._client.table_view(
                topic, schema=Declared(schema), subscription=subscription_name or ""
            )
        return TableView(self, view, topic, subscription_name, schema)

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Returns the topics of the partitions; only its own name if it has none."""
        check_type(str, topic, "topic")
        with translated():
            try:
                return self._client.partitions(topic)
            except TopicNotFound:
                return [full_name(topic)]

    def get_service_info(self) -> ServiceInfo:
        """Returns the service URL of the client, that of the primary cluster in a failover."""
        return ServiceInfo(self._client.service_url, self._authentication, self._trusted)

    def close(self) -> None:
        """Closes all producers and consumers, then the connections.

        Raises AlreadyClosed if the client is closed.
        """
        if self._closed:
            raise AlreadyClosed("Pulsar error: AlreadyClosed")
        self.shutdown()

    def shutdown(self) -> None:
        """Closes the client; may be called again."""
        self._closed = True
        for consumer in list(self._consumers):
            consumer._stop_listening()
        try:
            with translated():
                self._client.close()
        finally:
            threads = (self._callbacks, *self._listeners)
            called_back = any(thread.inside for thread in threads)
            for thread in threads:
                if called_back:
                    thread.end()  # two callbacks that close would wait for each other
                else:
                    thread.close()
            logs.detach(self._log_handler)
            self._log_handler = None

    def _listener_thread(self) -> CallbackThread:
        """The thread of the next listener: they share `message_listener_threads`."""
        return next(self._next_listener)

    def _forget(self, closed: Consumer | Reader) -> None:
        if closed in self._consumers:
            self._consumers.remove(closed)


def _end_all(threads: tuple[CallbackThread, ...], handler: logging.Handler | None) -> None:
    """Releases what a client that was never closed holds."""
    for thread in threads:
        thread.end()
    logs.detach(handler)

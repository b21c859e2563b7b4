"""The official client's arguments, checked, as options of `magnetar.client`."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from magnetar.client.auth import NoAuthentication
from magnetar.client.crypto.api import CryptoFailure, Decryption, Encryption, KeyFiles
from magnetar.client.failover import AutoFailover, Cluster
from magnetar.client.network.tls import Tls
from magnetar.client.options import (
    AccessMode,
    Batching,
    ClientKeywords,
    Compression,
    ConsumerKeywords,
    CustomRouting,
    Hashing,
    InitialPosition,
    ProducerKeywords,
    ReaderKeywords,
    RoundRobin,
    Routing,
    SinglePartition,
    SubscriptionType,
)
from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.pulsar import enums
from magnetar.pulsar.authentication import Authentication
from magnetar.pulsar.checks import check_types, warn_of_options
from magnetar.pulsar.exceptions import OperationNotSupported
from magnetar.pulsar.message import RoutedMessage
from magnetar.pulsar.message_id import MessageId
from magnetar.pulsar.outcomes import translated_values
from magnetar.pulsar.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
)
from magnetar.pulsar.schema.schema import Schema
from magnetar.pulsar.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider

MILLISECONDS: Final = 1000
ACK_TIMEOUT_MS_MIN: Final = 10_000
"""The least `unacked_messages_timeout_ms` of the official client."""
NAME_BYTES: Final = 5
"""Of random names of consumers and subscriptions."""

_CLIENT: Final = {
    "operation_timeout_seconds": int, "io_threads": int, "message_listener_threads": int,
    "concurrent_lookup_requests": int, "log_conf_file_path": [str],
    "stats_interval_in_seconds": int, "use_tls": bool, "tls_trust_certs_file_path": [str],
    "tls_allow_insecure_connection": bool, "tls_validate_hostname": bool,
    "connection_timeout_ms": int, "listener_name": [str], "tls_private_key_file_path": [str],
    "tls_certificate_file_path": [str],
}  # fmt: skip
_CLIENT_UNUSED: Final = {
    "io_threads": (1, "a client has one thread for its connections"),
    "concurrent_lookup_requests": (50_000, "the broker bounds concurrent lookups"),
    "stats_interval_in_seconds": (600, "statistics are not logged"),
}
_PRODUCER: Final = {
    "topic": str, "producer_name": [str], "schema": Schema, "initial_sequence_id": [int],
    "send_timeout_millis": int, "compression_type": enums.CompressionType,
    "max_pending_messages": int, "max_pending_messages_across_partitions": int,
    "block_if_queue_full": bool, "batching_enabled": bool, "batching_max_messages": int,
    "batching_max_allowed_size_in_bytes": int, "batching_max_publish_delay_ms": int,
    "chunking_enabled": bool, "message_routing_mode": enums.PartitionsRoutingMode,
    "lazy_start_partitioned_producers": bool, "properties": [dict],
    "batching_type": enums.BatchingType, "encryption_key": [str],
    "crypto_key_reader": [CryptoKeyReader], "access_mode": enums.ProducerAccessMode,
}  # fmt: skip
_CONSUMER: Final = {
    "subscription_name": str, "consumer_type": enums.ConsumerType, "schema": Schema,
    "receiver_queue_size": int, "max_total_receiver_queue_size_across_partitions": int,
    "consumer_name": [str], "unacked_messages_timeout_ms": [int],
    "broker_consumer_stats_cache_time_ms": int, "negative_ack_redelivery_delay_ms": int,
    "is_read_compacted": bool, "properties": [dict], "initial_position": enums.InitialPosition,
    "crypto_key_reader": [CryptoKeyReader], "replicate_subscription_state_enabled": bool,
    "max_pending_chunked_message": int, "auto_ack_oldest_chunked_message_on_queue_full": bool,
    "start_message_id_inclusive": bool, "batch_receive_policy": [ConsumerBatchReceivePolicy],
    "key_shared_policy": [ConsumerKeySharedPolicy], "batch_index_ack_enabled": bool,
    "regex_subscription_mode": enums.RegexSubscriptionMode,
    "dead_letter_policy": [ConsumerDeadLetterPolicy],
    "crypto_failure_action": enums.ConsumerCryptoFailureAction,
}  # fmt: skip
_CONSUMER_UNUSED: Final = {
    "broker_consumer_stats_cache_time_ms": (30_000, "statistics of the broker are not cached"),
}
_READER: Final = {
    "topic": str, "start_message_id": MessageId, "schema": Schema, "receiver_queue_size": int,
    "reader_name": [str], "subscription_role_prefix": [str], "is_read_compacted": bool,
    "crypto_key_reader": [CryptoKeyReader], "start_message_id_inclusive": bool,
    "crypto_failure_action": enums.ConsumerCryptoFailureAction,
}  # fmt: skip
_CRYPTO_FAILURES: Final = {
    enums.ConsumerCryptoFailureAction.FAIL: CryptoFailure.FAIL,
    enums.ConsumerCryptoFailureAction.DISCARD: CryptoFailure.DISCARD,
    enums.ConsumerCryptoFailureAction.CONSUME: CryptoFailure.CONSUME,
}
_PATTERN_MODES: Final = {
    enums.RegexSubscriptionMode.PersistentOnly: "persistent",
    enums.RegexSubscriptionMode.NonPersistentOnly: "non-persistent",
    enums.RegexSubscriptionMode.AllTopics: "all",
}


def random_name() -> str:
    """Returns a name for a consumer or subscription that has none."""
    return secrets.token_hex(NAME_BYTES)


@translated_values()
def client_options(service_url: Any, values: Mapping[str, Any]) -> tuple[str, ClientKeywords]:
    """Returns the service URL and the options of a client; raises ValueError."""
    if isinstance(service_url, ServiceInfoProvider):
        raise OperationNotSupported(
            "magnetar.pulsar follows no ServiceInfoProvider: use AutoClusterFailover, or "
            "ControlledFailover of magnetar.client"
        )
    if not isinstance(service_url, str | AutoClusterFailover):
        raise ValueError("Argument service_url must be of type str or AutoClusterFailover")
    authentication = values["authentication"]
    check_types({"authentication": [Authentication]}, values)
    check_types(_CLIENT, values)
    if values["message_listener_threads"] < 1:
        raise ValueError("Argument message_listener_threads must be at least 1")
    warn_of_options(values, _CLIENT_UNUSED)
    if values["log_conf_file_path"] is not None:
        raise ValueError(
            "log_conf_file_path is a file of log4cxx, which magnetar.pulsar does not read: "
            "use logger=, or configure the logger `magnetar` of Python's logging"
        )
    options: ClientKeywords = {
        "operation_timeout_s": values["operation_timeout_seconds"],
        "connect_timeout_s": values["connection_timeout_ms"] / MILLISECONDS,
        "listener": values["listener_name"] or "",
        "memory_limit_bytes": 0,
        "tls": Tls(
            trust_certificates_file=values["tls_trust_certs_file_path"] or "",
            verify_hostname=values["tls_validate_hostname"],
            allow_insecure=values["tls_allow_insecure_connection"],
            certificate_file=values["tls_certificate_file_path"] or "",
            key_file=values["tls_private_key_file_path"] or "",
        ),
    }
    if isinstance(service_url, AutoClusterFailover):
        if authentication is not None or values["tls_trust_certs_file_path"] is not None:
            raise ValueError(
                "With AutoClusterFailover, authentication and tls_trust_certs_file_path are those "
                "of its ServiceInfo"
            )
        if values["use_tls"]:
            for info in (service_url.primary, *service_url.secondary):
                _check_tls(info.service_url)
        return _with_failover(service_url, options)
    if "://" not in service_url:
        raise ValueError(f"The scheme part is missing: {service_url}")
    if values["use_tls"]:
        _check_tls(service_url)
    if authentication is not None:
        options["auth"] = authentication.auth
    return service_url, options


def _check_tls(service_url: str) -> None:
    if service_url.startswith(("pulsar://", "http://")):
        raise ValueError("use_tls needs a service URL of pulsar+ssl:// or https://")


def _with_failover(
    failover: AutoClusterFailover, options: ClientKeywords
) -> tuple[str, ClientKeywords]:
    check_s = failover.check_interval_ms / MILLISECONDS
    options["failover"] = AutoFailover(
        [_cluster(info, options["tls"]) for info in failover.secondary],
        failover_delay_s=check_s * (failover.failover_threshold - 1),
        switch_back_delay_s=check_s * (failover.switch_back_threshold - 1),
        check_s=check_s,
    )
    primary = _cluster(failover.primary, options["tls"])
    options["auth"], options["tls"] = primary.auth, primary.tls
    return primary.url, options


def _cluster(info: ServiceInfo, tls: Tls) -> Cluster:
    """Returns a cluster with its own credentials, and the other settings of TLS of the client."""
    auth = NoAuthentication() if info._authentication is None else info._authentication.auth
    trusted = info.tls_trust_certs_file_path or ""
    return Cluster(info.service_url, auth, replace(tls, trust_certificates_file=trusted))


@translated_values()
def producer_options(values: Mapping[str, Any]) -> ProducerKeywords:
    """Returns the options of a producer; raises ValueError."""
    check_types(_PRODUCER, values)
    if values["batching_enabled"] and values["chunking_enabled"]:
        raise ValueError("Batching and chunking of messages can't be enabled together.")
    pending = values["max_pending_messages"]
    options: ProducerKeywords = {
        "name": values["producer_name"] or "",
        "send_timeout_s": values["send_timeout_millis"] / MILLISECONDS,
        "compression": Compression(int(values["compression_type"])),
        "max_pending_messages": pending,
        "max_pending_messages_total": values["max_pending_messages_across_partitions"],
        "block_if_queue_full": values["block_if_queue_full"],
        "chunking": values["chunking_enabled"],
        "hashing": Hashing.BOOST,
        "routing": _routing(values["message_routing_mode"], values["message_router"]),
        "properties": values["properties"] or {},
        "access_mode": AccessMode(int(values["access_mode"])),
        "lazy": values["lazy_start_partitioned_producers"],
        "batching": None,
    }
    if values["initial_sequence_id"] is not None:
        options["initial_sequence_id"] = values["initial_sequence_id"]
    if values["batching_enabled"]:
        # A batch never has more messages than may be pending.
        largest = values["batching_max_messages"]
        options["batching"] = Batching(
            messages_max=min(largest, pending) if pending else largest,
            bytes_max=values["batching_max_allowed_size_in_bytes"],
            delay_s=values["batching_max_publish_delay_ms"] / MILLISECONDS,
            by_key=values["batching_type"] == enums.BatchingType.KeyBased,
        )
    key, reader = values["encryption_key"], values["crypto_key_reader"]
    if bool(key) != (reader is not None):
        raise ValueError("encryption_key and crypto_key_reader go together")
    if reader is not None:
        options["encryption"] = Encryption([key], reader.cryptoKeyReader)
    return options


def _routing(
    mode: enums.PartitionsRoutingMode, router: Callable[[Any, int], int] | None
) -> Routing:
    if router is not None:

        def choose(message: OutgoingMessage, partitions: int) -> int:
            return int(router(RoutedMessage(message), partitions))

        return CustomRouting(choose)
    if mode == enums.PartitionsRoutingMode.CustomPartition:
        raise ValueError("PartitionsRoutingMode.CustomPartition needs message_router")
    if mode == enums.PartitionsRoutingMode.UseSinglePartition:
        return SinglePartition()
    return RoundRobin()


@translated_values()
def consumer_options(values: Mapping[str, Any]) -> ConsumerKeywords:
    """Returns the options of a consumer; raises ValueError."""
    check_types(_CONSUMER, values)
    warn_of_options(values, _CONSUMER_UNUSED)
    ack_timeout_ms = values["unacked_messages_timeout_ms"] or 0
    if 0 < ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
        raise ValueError("unacked_messages_timeout_ms must be at least 10 seconds")
    batch, key_shared = values["batch_receive_policy"], values["key_shared_policy"]
    dead_letter = values["dead_letter_policy"]
    options: ConsumerKeywords = {
        "type": SubscriptionType(int(values["consumer_type"])),
        "name": values["consumer_name"] or random_name(),
        "initial_position": InitialPosition(int(values["initial_position"])),
        "receiver_queue_size": values["receiver_queue_size"],
        "receiver_queue_total": values["max_total_receiver_queue_size_across_partitions"],
        "ack_timeout_s": ack_timeout_ms / MILLISECONDS,
        "negative_ack_delay_s": values["negative_ack_redelivery_delay_ms"] / MILLISECONDS,
        "read_compacted": values["is_read_compacted"],
        "properties": values["properties"] or {},
        "replicate_subscription": values["replicate_subscription_state_enabled"],
        "chunks_pending_max": values["max_pending_chunked_message"],
        "chunk_ack_oldest": values["auto_ack_oldest_chunked_message_on_queue_full"],
        "batch_index_ack": values["batch_index_ack_enabled"],
        "key_shared": None if key_shared is None else key_shared.policy(),
        "dead_letter": None if dead_letter is None else dead_letter.policy(),
        "pattern_mode": _PATTERN_MODES[values["regex_subscription_mode"]],  # type: ignore[typeddict-item]
        "decryption": _decryption(values),
    }
    if batch is not None:
        options["batch_receive"] = batch.policy()
    if "pattern_auto_discovery_period" in values:
        check_types({"pattern_auto_discovery_period": int}, values)
        options["update_partitions_s"] = values["pattern_auto_discovery_period"]
    return options


@translated_values()
def reader_options(values: Mapping[str, Any]) -> ReaderKeywords:
    """Returns the options of a reader; raises ValueError."""
    check_types(_READER, values)
    prefix = values["subscription_role_prefix"]
    name = random_name()
    return {
        "name": values["reader_name"] or "",
        "subscription": f"{prefix}-{name}" if prefix else f"reader-{name}",
        "receiver_queue_size": values["receiver_queue_size"],
        "read_compacted": values["is_read_compacted"],
        "inclusive": values["start_message_id_inclusive"],
        "decryption": _decryption(values),
    }


def _decryption(values: Mapping[str, Any]) -> Decryption | None:
    reader: CryptoKeyReader | None = values["crypto_key_reader"]
    action = _CRYPTO_FAILURES[values["crypto_failure_action"]]
    if reader is not None:
        return Decryption(reader.cryptoKeyReader, action)
    # Without keys, the action decides alone.
    return None if action is CryptoFailure.FAIL else Decryption(KeyFiles(), action)

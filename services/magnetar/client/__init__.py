"""An asyncio client for Magnetar and Apache Pulsar, in pure Python, typed.

    from magnetar.client import Client

    async with Client("pulsar://localhost:6650") as client:
        async with client.producer("orders") as producer:
            message_id = await producer.send(b"hello", key="1", properties={"a": "b"})
        async with client.consumer("orders", "billing") as consumer:
            async for message in consumer:
                await consumer.ack(message)

Public names are those of `__all__`, the submodules `auth`, `errors` and `schema`, and the methods
without an underscore of their classes. Names are imported when they are first used, so that
importing this package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.client import auth, errors, schema
    from magnetar.client.client import Client
    from magnetar.client.consumer.consumer import Consumer
    from magnetar.client.consumer.reader import Reader
    from magnetar.client.consumer.table_view import TableView
    from magnetar.client.crypto.api import (
        CryptoFailure,
        CryptoKeyReader,
        Decryption,
        Encryption,
        KeyFiles,
    )
    from magnetar.client.errors import ClientError
    from magnetar.client.failover import AutoFailover, Cluster, ControlledFailover
    from magnetar.client.interceptors import ConsumerInterceptor, ProducerInterceptor
    from magnetar.client.message import Message
    from magnetar.client.message_id import EARLIEST, LATEST, MessageId
    from magnetar.client.network.tls import Tls
    from magnetar.client.options import (
        AccessMode,
        Batching,
        BatchReceive,
        ClientOptions,
        Compression,
        ConsumerOptions,
        CustomRouting,
        DeadLetterPolicy,
        Hashing,
        InitialPosition,
        KeySharedPolicy,
        ProducerOptions,
        ReaderOptions,
        RedeliveryBackoff,
        RoundRobin,
        SinglePartition,
        SubscriptionType,
    )
    from magnetar.client.producer.advice import Advice
    from magnetar.client.producer.outgoing import OutgoingMessage
    from magnetar.client.producer.producer import Producer
    from magnetar.client.schema import (
        AutoConsumeSchema,
        AvroSchema,
        BytesSchema,
        JsonSchema,
        KeyValue,
        KeyValueSchema,
        ProtobufNativeSchema,
        Schema,
        SchemaInfo,
        SchemaType,
        StringSchema,
    )
    from magnetar.client.transaction.transaction import Transaction, TransactionState

_MODULES: Final = {
    "client": ("Client",),
    "consumer.consumer": ("Consumer",),
    "consumer.reader": ("Reader",),
    "consumer.table_view": ("TableView",),
    "crypto.api": ("CryptoFailure", "CryptoKeyReader", "Decryption", "Encryption", "KeyFiles"),
    "errors": ("ClientError",),
    "failover": ("AutoFailover", "Cluster", "ControlledFailover"),
    "interceptors": ("ConsumerInterceptor", "ProducerInterceptor"),
    "message": ("Message",),
    "message_id": ("EARLIEST", "LATEST", "MessageId"),
    "network.tls": ("Tls",),
    "options": (
        "AccessMode", "BatchReceive", "Batching", "ClientOptions", "Compression",
        "ConsumerOptions", "CustomRouting", "DeadLetterPolicy", "Hashing", "InitialPosition",
        "KeySharedPolicy", "ProducerOptions", "ReaderOptions", "RedeliveryBackoff", "RoundRobin",
        "SinglePartition", "SubscriptionType",
    ),
    "producer.advice": ("Advice",),
    "producer.outgoing": ("OutgoingMessage",),
    "producer.producer": ("Producer",),
    "schema": (
        "AutoConsumeSchema", "AvroSchema", "BytesSchema", "JsonSchema", "KeyValue",
        "KeyValueSchema", "ProtobufNativeSchema", "Schema", "SchemaInfo", "SchemaType",
        "StringSchema",
    ),
    "transaction.transaction": ("Transaction", "TransactionState"),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES: Final = ("auth", "errors", "schema")

__all__ = [
    "EARLIEST",
    "LATEST",
    "AccessMode",
    "Advice",
    "AutoConsumeSchema",
    "AutoFailover",
    "AvroSchema",
    "BatchReceive",
    "Batching",
    "BytesSchema",
    "Client",
    "ClientError",
    "ClientOptions",
    "Cluster",
    "Compression",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerOptions",
    "ControlledFailover",
    "CryptoFailure",
    "CryptoKeyReader",
    "CustomRouting",
    "DeadLetterPolicy",
    "Decryption",
    "Encryption",
    "Hashing",
    "InitialPosition",
    "JsonSchema",
    "KeyFiles",
    "KeySharedPolicy",
    "KeyValue",
    "KeyValueSchema",
    "Message",
    "MessageId",
    "OutgoingMessage",
    "Producer",
    "ProducerInterceptor",
    "ProducerOptions",
    "ProtobufNativeSchema",
    "Reader",
    "ReaderOptions",
    "RedeliveryBackoff",
    "RoundRobin",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "SinglePartition",
    "StringSchema",
    "SubscriptionType",
    "TableView",
    "Tls",
    "Transaction",
    "TransactionState",
    "auth",
    "errors",
    "schema",
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value

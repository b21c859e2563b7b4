"""Lookups over the binary protocol: the broker and the partitions of a topic, and lists of topics.

A broker that does not serve a topic redirects the client. An answer may say that the broker is
reached through the service URL, which is then a proxy.
"""

from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from magnetar.client.errors import LookupFailed, server_error
from magnetar.client.network.connection import Connection
from magnetar.client.network.pool import ConnectionPool
from magnetar.client.network.retry import retrying
from magnetar.client.network.service_urls import ServiceUrls, broker_address
from magnetar.schemas.model import SchemaInfo, SchemaType
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

REDIRECTS_MAX: Final = 20

_Lookup = pb.CommandLookupTopicResponse
_Partitions = pb.CommandPartitionedTopicMetadataResponse


@dataclass(frozen=True, slots=True)
class TopicList:
    """The topics of a namespace, with the hash by which changes are detected."""

    topics: list[str]
    hash: str = ""
    filtered: bool = False
    changed: bool = True


class Lookup(Protocol):
    """Answers where topics are."""

    async def connection(self, topic: str) -> Connection:
        """Returns a connection to the broker that serves a topic or partition."""

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Returns the number of partitions; 0 for a topic without."""

    async def topics(self, namespace: str, mode: int, pattern: str = "") -> TopicList:
        """Returns the topics of a namespace; a broker may filter them by the pattern."""

    async def schema(self, topic: str, version: bytes | None) -> SchemaInfo:
        """Returns a schema of a topic: the latest, or that of a version."""

    async def any_connection(self) -> Connection:
        """Returns a connection to any broker."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """The settings of lookups."""

    timeout_s: float
    listener: str
    random: Random
    backoff_max_s: float


class BinaryLookup:
    """Lookups by the binary protocol."""

    def __init__(self, urls: ServiceUrls, pool: ConnectionPool, settings: LookupSettings) -> None:
        self._urls = urls
        self._pool = pool
        self._settings = settings

    async def any_connection(self) -> Connection:
        return await self._pool.get(self._urls.take())

    async def connection(self, topic: str) -> Connection:
        settings = self._settings

        async def once() -> Connection:
            return await self._located(topic)

        return await retrying(
            once, what="The lookup", timeout_s=settings.timeout_s, random=settings.random,
            topic=topic, backoff_max_s=settings.backoff_max_s,
        )  # fmt: skip

    async def _located(self, topic: str) -> Connection:
        service, cluster = self._urls.take(), self._urls.cluster()
        connection = await self._pool.get(service)
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            request = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            if self._settings.listener:
                request.advertised_listener_name = self._settings.listener
            answer: _Lookup = await connection.request(
                CommandType.LOOKUP, request, self._settings.timeout_s, topic
            )
            if answer.response == _Lookup.Failed:
                raise server_error(
                    answer.error, answer.message, topic=topic, broker=connection.address
                )
            url = answer.brokerServiceUrlTls if service.tls else answer.brokerServiceUrl
            if not url:
                raise LookupFailed(
                    f"The broker of the topic has no {'TLS' if service.tls else 'plain'} address",
                    topic=topic,
                    broker=connection.address,
                )
            broker = broker_address(url, topic, connection.address)
            through = service if answer.proxy_through_service_url else None
            self._urls.check_cluster(cluster)
            connection = await self._pool.get(broker, through)
            if answer.response == _Lookup.Connect:
                return connection
            authoritative = answer.authoritative
        raise LookupFailed(f"More than {REDIRECTS_MAX} redirects", topic=topic)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        settings = self._settings

        async def once() -> int:
            connection = await self.any_connection()
            request = pb.CommandPartitionedTopicMetadata(topic=topic)
            if not create:
                request.metadata_auto_creation_enabled = False
            answer: _Partitions = await connection.request(
                CommandType.PARTITIONED_METADATA, request, settings.timeout_s, topic
            )
            if answer.response == _Partitions.Failed:
                raise server_error(
                    answer.error, answer.message, topic=topic, broker=connection.address
                )
            return answer.partitions

        return await retrying(
            once, what="The request for partitions", timeout_s=settings.timeout_s,
            random=settings.random, topic=topic, backoff_max_s=settings.backoff_max_s,
        )  # fmt: skip

    async def topics(self, namespace: str, mode: int, pattern: str = "") -> TopicList:
        settings = self._settings

        async def once() -> TopicList:
            connection = await self.any_connection()
            request = pb.CommandGetTopicsOfNamespace(
                namespace=namespace,
                mode=pb.CommandGetTopicsOfNamespace.Mode.ValueType(mode),
            )
            if pattern:
                request.topics_pattern = pattern
            answer: pb.CommandGetTopicsOfNamespaceResponse = await connection.request(
                CommandType.GET_TOPICS_OF_NAMESPACE, request, settings.timeout_s
            )
            return TopicList(
                list(answer.topics), answer.topics_hash, answer.filtered, answer.changed
            )

        return await retrying(
            once, what=f"The list of topics of {namespace}", timeout_s=settings.timeout_s,
            random=settings.random, backoff_max_s=settings.backoff_max_s,
        )  # fmt: skip

    async def schema(self, topic: str, version: bytes | None) -> SchemaInfo:
        settings = self._settings

        async def once() -> SchemaInfo:
            connection = await self.any_connection()
            request = pb.CommandGetSchema(topic=topic, schema_version=version)
            answer: pb.CommandGetSchemaResponse = await connection.request(
                CommandType.GET_SCHEMA, request, settings.timeout_s, topic
            )
            if answer.HasField("error_code"):
                raise server_error(
                    answer.error_code, answer.error_message, topic=topic,
                    broker=connection.address,
                )  # fmt: skip
            return schema_info(answer.schema)

        return await retrying(
            once, what="The request for a schema", timeout_s=settings.timeout_s,
            random=settings.random, topic=topic, backoff_max_s=settings.backoff_max_s,
        )  # fmt: skip


def schema_info(schema: pb.Schema) -> SchemaInfo:
    """Returns the schema of a wire message."""
    properties = {pair.key: pair.value for pair in schema.properties}
    return SchemaInfo(SchemaType(schema.type), schema.schema_data, properties, schema.name)


def schema_to_wire(info: SchemaInfo) -> pb.Schema:
    """Returns the wire message of a schema."""
    return pb.Schema(
        name=info.name,
        schema_data=info.data,
        type=pb.Schema.Type.ValueType(int(info.type)),
        properties=[pb.KeyValue(key=k, value=v) for k, v in info.properties.items()],
    )

"""The versioned schemas of topics, in the metadata store.

A topic and all its partitions share one sequence of versions:

    /schemas/{tenant}/{namespace}/{topic}                 the head: the newest version number
    /schemas/{tenant}/{namespace}/{topic}/{version, hex}  a version, immutable

A transaction writes a new version and the head, on condition that the head is unchanged. So no
number is used twice, and no schema is checked against an outdated latest version. Registering a
schema again returns its existing version. A deletion appends a tombstone: earlier versions are
neither shown nor compared any more, but the numbers continue.

Every attach of a producer or consumer reads only the head. Versions are read only if the head has
changed since the last read (SCHEMAS_CACHED_MAX topics are cached). Behavior and texts are those of
Pulsar 4.2 (SchemaRegistryServiceImpl, AbstractTopic), PIP-43 and PIP-85.

`compatibility` and `validation` parse Avro; they are imported with the first schema.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.broker.schema.counts import DELETE, GET, PUT, SchemaCounts
from magnetar.core.clock import Clock
from magnetar.core.errors import IncompatibleSchema, MetadataError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.records import UNDECODABLE, RecordType, encode
from magnetar.metadata.store import (
    ABSENT,
    TRANSACTION_OPS_MAX,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    Operation,
    Put,
)
from magnetar.schemas.model import (
    AVRO_BASED,
    PROPERTIES_BYTES_MAX,
    SCHEMA_BYTES_MAX,
    CompatibilityStrategy,
    InvalidSchemaData,
    SchemaInfo,
    SchemaPolicy,
    SchemaType,
    VersionedSchema,
    version_from_bytes,
    version_to_bytes,
)

__all__ = [
    "AVRO_BASED",
    "CompatibilityStrategy",
    "InvalidSchemaData",
    "SchemaInfo",
    "SchemaPolicy",
    "SchemaRegistry",
    "SchemaType",
    "VersionedSchema",
    "version_from_bytes",
    "version_to_bytes",
]

SCHEMAS_CACHED_MAX: Final = 4096
CAS_ATTEMPTS_MAX: Final = 32

NO_SCHEMA_FOUND: Final = "Schema not found and schema auto updating is disabled."
# Pulsar's own text, including the missing space.
SCHEMA_REQUIRED: Final = (
    "Producers cannot connect or send message without a schema to topics with a schema"
    "when SchemaValidationEnforced is enabled"
)
ACTIVE_WITHOUT_SCHEMA: Final = (
    "Failed to add schema to an active topic with empty(BYTES) schema: new schema type "
)

SCHEMAS_PREFIX: Final = "/schemas/"


class _Head(msgspec.Struct, frozen=True):
    """The value of a topic's head."""

    latest: int


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a version."""

    type: int
    data: bytes
    timestamp_ms: int
    properties: dict[str, str] = {}
    user: str = ""
    deleted: bool = False
    name: str = ""


_decode_head = RecordType(_Head, "number of a schema's version").decode


@dataclass(frozen=True, slots=True)
class _Versions:
    """All versions of a topic as of a revision of its head."""

    head_revision: int
    all: tuple[VersionedSchema, ...]

    @property
    def live(self) -> Sequence[VersionedSchema]:
        """The versions after the last tombstone."""
        for index in range(len(self.all) - 1, -1, -1):
            if self.all[index].deleted:
                return self.all[index + 1 :]
        return self.all


class SchemaRegistry:
    """The schemas of all topics. Raises IncompatibleSchema, InvalidSchemaData, MetadataError."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cache: OrderedDict[str, _Versions] = OrderedDict()
        self.counts = SchemaCounts(clock)

    async def for_producer(
        self, topic: TopicName, schema: SchemaInfo | None, policy: SchemaPolicy
    ) -> int | None:
        """Returns the version of a producer's schema; registers a new schema if allowed.

        A producer without a schema has no version, and is refused if the policy requires a schema.
        The type NONE counts as a schema: it is registered, and is compatible with no other type.
        """
        if schema is None or schema.type is SchemaType.BYTES:
            if policy.validation_enforced and await self.latest(topic) is not None:
                raise IncompatibleSchema(SCHEMA_REQUIRED)
            return None
        if policy.auto_update:
            return await self.put(topic, schema, policy.strategy)
        version = await self.find(topic, schema)
        if version is None:
            raise IncompatibleSchema(NO_SCHEMA_FOUND)
        return version

    async def for_consumer(
        self,
        topic: TopicName,
        schema: SchemaInfo | None,
        policy: SchemaPolicy,
        *,
        topic_is_idle: bool,
    ) -> None:
        """Registers a consumer's schema on an idle topic without one; else checks compatibility.

        Idle means: no producer, no consumer with a schema, and no data.
        """
        if schema is None or schema.type in (SchemaType.BYTES, SchemaType.AUTO_CONSUME):
            return
        if topic_is_idle and await self.latest(topic) is None:
            await self.for_producer(topic, schema, policy)
        else:
            await self.check_consumer(topic, schema, policy.strategy)

    async def check_consumer(
        self, topic: TopicName, schema: SchemaInfo, strategy: CompatibilityStrategy
    ) -> None:
        """Raises IncompatibleSchema if a consumer with `schema` cannot read the topic."""
        if strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE:
            return
        live = (await self._versions(topic)).live
        if not live:
            raise IncompatibleSchema(ACTIVE_WITHOUT_SCHEMA + schema.type.name)
        from magnetar.broker.schema.compatibility import check_all, check_latest

        if strategy in (
            CompatibilityStrategy.BACKWARD,
            CompatibilityStrategy.FORWARD,
            CompatibilityStrategy.FORWARD_TRANSITIVE,
            CompatibilityStrategy.FULL,
        ):
            check_latest(live[-1].schema, schema, CompatibilityStrategy.BACKWARD)
        else:
            check_all([version.schema for version in live], schema, strategy)

    async def latest(self, topic: TopicName) -> VersionedSchema | None:
        """Returns the newest version, None if there is none or it is deleted."""
        live = (await self._versions(topic)).live
        return live[-1] if live else None

    async def newest(self, topic: TopicName) -> VersionedSchema | None:
        """Returns the newest version, even if it is a tombstone."""
        versions = (await self._versions(topic)).all
        return versions[-1] if versions else None

    async def get(
        self, topic: TopicName, version: bytes | int | None = None
    ) -> VersionedSchema | None:
        """Returns a version, or the latest; None if it does not exist or is deleted."""
        with self.counts.counted(topic, GET):
            live = (await self._versions(topic)).live
        if version is None:
            return live[-1] if live else None
        number = version_from_bytes(version) if isinstance(version, bytes) else version
        return next((registered for registered in live if registered.version == number), None)

    async def versions(
        self, topic: TopicName, *, with_deleted: bool = False
    ) -> Sequence[VersionedSchema]:
        """Returns the versions since the last deletion, or all with tombstones, oldest first."""
        versions = await self._versions(topic)
        return versions.all if with_deleted else versions.live

    async def find(self, topic: TopicName, schema: SchemaInfo) -> int | None:
        """Returns the version under which exactly this schema is registered, if any."""
        from magnetar.broker.schema.compatibility import same_schema

        for registered in (await self._versions(topic)).live:
            if same_schema(registered.schema, schema):
                return registered.version
        return None

    async def check(
        self, topic: TopicName, schema: SchemaInfo, strategy: CompatibilityStrategy
    ) -> None:
        """Raises IncompatibleSchema if `schema` could not be registered; writes nothing."""
        _check_valid(schema)
        self._check_against(topic, (await self._versions(topic)).live, schema, strategy)

    def _check_against(
        self,
        topic: TopicName,
        live: Sequence[VersionedSchema],
        schema: SchemaInfo,
        strategy: CompatibilityStrategy,
    ) -> None:
        """Raises IncompatibleSchema if the schema may not follow the live versions."""
        counts = self.counts.of(topic)
        try:
            _check_against(live, schema, strategy)
        except IncompatibleSchema:
            counts.incompatible += 1
            raise
        counts.compatible += 1

    async def put(
        self,
        topic: TopicName,
        schema: SchemaInfo,
        strategy: CompatibilityStrategy,
        *,
        user: str = "",
    ) -> int:
        """Returns the version of `schema`; registers it if it is new and compatible."""
        with self.counts.counted(topic, PUT):
            return await self._put(topic, schema, strategy, user)

    async def _put(
        self, topic: TopicName, schema: SchemaInfo, strategy: CompatibilityStrategy, user: str
    ) -> int:
        from magnetar.broker.schema.compatibility import same_schema

        _check_valid(schema)
        for _ in range(CAS_ATTEMPTS_MAX):
            versions = await self._versions(topic)
            for registered in versions.live:
                if same_schema(registered.schema, schema):
                    return registered.version
            self._check_against(topic, versions.live, schema, strategy)
            version = await self._append(topic, versions, schema, user=user, deleted=False)
            if version is not None:
                return version
        raise MetadataError(f"the schemas of {topic.base} kept changing; try again")

    async def delete(self, topic: TopicName, *, user: str = "") -> int:
        """Appends a tombstone and returns its version."""
        with self.counts.counted(topic, DELETE):
            return await self._delete(topic, user)

    async def _delete(self, topic: TopicName, user: str) -> int:
        for _ in range(CAS_ATTEMPTS_MAX):
            versions = await self._versions(topic)
            tombstone = SchemaInfo(SchemaType.NONE, b"")
            version = await self._append(topic, versions, tombstone, user=user, deleted=True)
            if version is not None:
                return version
        raise MetadataError(f"the schemas of {topic.base} kept changing; try again")

    async def forget(self, topic: TopicName, under: Sequence[Check] = ()) -> int | None:
        """Deletes all versions of a deleted topic; returns the newest, None if there was none.

        The oldest versions are deleted first and the head last. If the broker dies half-way, the
        remaining versions still end where the head says. They are not decoded: an unreadable one
        must not keep its topic. Raises BadRevision of a check in `under`.
        """
        key = _key(topic)
        for _ in range(CAS_ATTEMPTS_MAX):
            head = await self._store.get(key)
            if head is None:
                return None
            versions = [record.key for record in await self._store.list(key + "/")]
            step = TRANSACTION_OPS_MAX - 1 - len(under)
            ends: list[Operation] = [Check(key, head.revision), *under]
            try:
                while len(versions) > step:
                    await self._store.transact([*map(Delete, versions[:step]), *ends])
                    del versions[:step]
                ends[0] = Delete(key, head.revision)
                await self._store.transact([*map(Delete, versions), *ends])
            except BadRevision as error:
                if error.key != key:
                    raise
                continue
            finally:
                self._cache.pop(key, None)
            return int(versions[-1].rpartition("/")[2], 16) if versions else None
        raise MetadataError(f"the schemas of {topic.base} kept changing; try again")

    async def topics(self, namespace: NamespaceName) -> list[str]:
        """Returns the encoded names of the namespace's topics that have or had a schema."""
        return list(await self._store.children(f"{SCHEMAS_PREFIX}{namespace}/"))

    async def _versions(self, topic: TopicName) -> _Versions:
        key = _key(topic)
        head = await self._store.get(key)
        if head is None:
            self._cache.pop(key, None)
            return _Versions(ABSENT, ())
        cached = self._cache.get(key)
        if cached is not None and cached.head_revision == head.revision:
            self._cache.move_to_end(key)
            return cached
        # Versions written after the head was read are ignored: they belong to a later head.
        latest = _decode_head(key, head.value).latest
        records = await self._store.list(key + "/")
        stored = [_decode(record.key, record.value) for record in records]
        versions = _Versions(head.revision, tuple(v for v in stored if v.version <= latest))
        self._cache[key] = versions
        self._cache.move_to_end(key)
        while len(self._cache) > SCHEMAS_CACHED_MAX:
            self._cache.popitem(last=False)
        return versions

    async def _append(
        self,
        topic: TopicName,
        versions: _Versions,
        schema: SchemaInfo,
        *,
        user: str,
        deleted: bool,
    ) -> int | None:
        """Writes a version; returns its number, or None if another version was written first."""
        key = _key(topic)
        version = versions.all[-1].version + 1 if versions.all else 0
        stored = _Stored(
            type=int(schema.type),
            data=schema.data,
            timestamp_ms=self._clock.now_ms(),
            properties=dict(schema.properties),
            user=user,
            deleted=deleted,
            name=schema.name,
        )
        head = encode(_Head(version))
        try:
            await self._store.transact(
                [
                    Put(key, head, expected=versions.head_revision),
                    Put(_version_key(key, version), msgspec.msgpack.encode(stored), ABSENT),
                ]
            )
        except BadRevision:
            return None
        return version


def _key(topic: TopicName) -> str:
    base = topic.base
    return f"{SCHEMAS_PREFIX}{base.tenant}/{base.namespace_local}/{base.encoded_local}"


def _version_key(key: str, version: int) -> str:
    return f"{key}/{version:016x}"


def _decode(key: str, value: bytes) -> VersionedSchema:
    try:
        stored = msgspec.msgpack.decode(value, type=_Stored)
        schema = SchemaInfo(SchemaType(stored.type), stored.data, stored.properties, stored.name)
        version = int(key.rpartition("/")[2], 16)
    except (*UNDECODABLE, ValueError) as error:
        raise MetadataError(f"{key} holds no schema: {error}") from error
    return VersionedSchema(version, schema, stored.timestamp_ms, stored.user, stored.deleted)


def _check_valid(schema: SchemaInfo) -> None:
    """Raises InvalidSchemaData if the schema is too large or its definition is not valid."""
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise InvalidSchemaData(
            f"Schema definition of {len(schema.data)} bytes exceeds {SCHEMA_BYTES_MAX}"
        )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in schema.properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidSchemaData(f"Schema properties of {size} bytes exceed {PROPERTIES_BYTES_MAX}")
    from magnetar.broker.schema.validation import check_definition

    check_definition(schema)


def _check_against(
    live: Sequence[VersionedSchema], schema: SchemaInfo, strategy: CompatibilityStrategy
) -> None:
    if not live or strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE:
        return
    from magnetar.broker.schema.compatibility import check_all, check_latest

    if strategy.transitive:
        check_all([version.schema for version in live], schema, strategy)
    else:
        check_latest(live[-1].schema, schema, strategy)

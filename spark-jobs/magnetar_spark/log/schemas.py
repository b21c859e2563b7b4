"""Reads topics' schemas, as the brokers' registry stores them in the metadata store.

    /schemas/{tenant}/{namespace}/{topic}                 {"latest": newest version}
    /schemas/{tenant}/{namespace}/{topic}/{version, hex}  one version, in MessagePack

Versions from before a deletion are included: messages written with them still exist.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.core.names import TopicName
from magnetar.metadata.store import MetadataStore

SCHEMAS_PREFIX: Final = "/schemas/"
TOPICS_UNPACKED_MAX: Final = 64
"""Topics whose versions a worker caches between its tasks."""


class _Stored(msgspec.Struct, frozen=True):
    """The part of a version's record that is read."""

    type: int
    data: bytes
    properties: dict[str, str] = {}
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema definition. `kind` is the number of `Schema.Type` in PulsarApi.proto."""

    kind: int
    data: bytes
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """All versions of a topic; `latest` is -1 if there is none, or it was deleted."""

    latest: int
    versions: dict[int, Schema]


async def topic_schemas(store: MetadataStore, topic: TopicName) -> TopicSchemas:
    """The schemas of a topic, or of the partitioned topic that it belongs to."""
    base = topic.base
    prefix = f"{SCHEMAS_PREFIX}{base.namespace}/{base.encoded_local}/"
    versions: dict[int, Schema] = {}
    latest = -1
    for record in await store.list(prefix):
        try:
            stored = msgspec.msgpack.decode(record.value, type=_Stored)
        except msgspec.MsgspecError as error:
            raise MetadataError(f"{record.key} holds no schema: {error}") from error
        version = int(record.key.rpartition("/")[2], 16)
        if stored.deleted:
            latest = -1
        else:
            versions[version] = Schema(stored.type, stored.data, stored.properties)
            latest = version
    return TopicSchemas(latest, versions)


def packed(versions: Mapping[int, Schema]) -> bytes:
    """Packs versions for tasks; compression helps, since versions are much alike."""
    plain = {
        number: (schema.kind, schema.data, schema.properties) for number, schema in versions.items()
    }
    return zlib.compress(msgspec.msgpack.encode(plain))


@lru_cache(TOPICS_UNPACKED_MAX)
def unpacked(data: bytes) -> Mapping[int, Schema]:
    """The inverse of `packed`."""
    plain = msgspec.msgpack.decode(
        zlib.decompress(data), type=dict[int, tuple[int, bytes, dict[str, str]]]
    )
    return {number: Schema(*fields) for number, fields in plain.items()}

"""The schemas of topics, as the brokers' registry keeps them in the metadata store.

    /schemas/{tenant}/{namespace}/{topic}                 {"latest": newest version}
    /schemas/{tenant}/{namespace}/{topic}/{version, hex}  one version, in MessagePack

Versions before a deletion are still given: messages that were written under them are still there.
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
"""Topics whose versions a worker keeps between its tasks."""


class _Stored(msgspec.Struct, frozen=True):
    """What is read of one version."""

    type: int
    data: bytes
    properties: dict[str, str] = {}
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """A definition. `kind` is the number of `Schema.Type` in PulsarApi.proto."""

    kind: int
    data: bytes
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """All versions; `latest` is -1 where there is none, or it was deleted."""

    latest: int
    versions: dict[int, Schema]


async def topic_schemas(store: MetadataStore, topic: TopicName) -> TopicSchemas:
    """Of the topic, or of the partitioned topic it belongs to."""
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
    """Small enough for every task of a plan: the versions of a schema are much alike."""
    plain = {
        number: (schema.kind, schema.data, schema.properties) for number, schema in versions.items()
    }
    return zlib.compress(msgspec.msgpack.encode(plain))


@lru_cache(TOPICS_UNPACKED_MAX)
def unpacked(data: bytes) -> Mapping[int, Schema]:
    """What `packed` made."""
    plain = msgspec.msgpack.decode(
        zlib.decompress(data), type=dict[int, tuple[int, bytes, dict[str, str]]]
    )
    return {number: Schema(*each) for number, each in plain.items()}

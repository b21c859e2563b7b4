"""The words of the schema registry: types, schemas, their versions, strategies, policy.

Type numbers are those of `Schema.Type` in PulsarApi.proto; names are those of the Java client,
which stand in the properties of KEY_VALUE schemas and in the texts of errors. A version is a
64-bit number from 0, eight bytes big-endian on the wire; a topic without a schema has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from magnetar.core.errors import IncompatibleSchema

SCHEMA_BYTES_MAX: Final = 512 << 10
"""Of one schema's definition, so that a version fits one metadata record with its properties."""
PROPERTIES_BYTES_MAX: Final = 256 << 10
VERSION_BYTES: Final = 8
VERSION_MAX: Final = 2**63 - 1


class SchemaType(IntEnum):
    """What a schema's definition is written in. BYTES is never on the wire: it means no schema."""

    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


AVRO_BASED: Final = frozenset((SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF))
"""Types whose definition is an Avro schema, as Pulsar's clients make them."""


class CompatibilityStrategy(StrEnum):
    """How a new schema must fit those before it (Pulsar's SchemaCompatibilityStrategy)."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether every version counts, and not only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether consumers of the new schema must understand what older producers wrote."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether consumers of an older schema must understand what new producers write."""
        return self.value.startswith(("FORWARD", "FULL"))


DEFAULT_STRATEGY: Final = CompatibilityStrategy.FULL


class InvalidSchemaData(IncompatibleSchema):
    """The definition is no schema of its type. REST: 422."""

    http_status = 422


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as a client gives it. `name` goes along and takes no part in comparisons."""

    type: SchemaType
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class VersionedSchema:
    """One version of a topic's schema. A tombstone (`deleted`) ends those before it."""

    version: int
    schema: SchemaInfo
    timestamp_ms: int
    user: str = ""
    deleted: bool = False

    @property
    def version_bytes(self) -> bytes:
        return version_to_bytes(self.version)


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What topic, namespace and broker say about schemas, already merged."""

    strategy: CompatibilityStrategy = DEFAULT_STRATEGY
    auto_update: bool = True
    validation_enforced: bool = False


def version_to_bytes(version: int | None) -> bytes:
    """The wire form; nothing for no version."""
    return b"" if version is None else version.to_bytes(VERSION_BYTES, "big")


def version_from_bytes(data: bytes) -> int | None:
    """The version that the bytes name, or None where they can name none."""
    if len(data) < VERSION_BYTES:
        return None
    version = int.from_bytes(data[:VERSION_BYTES], "big")
    return version if version <= VERSION_MAX else None

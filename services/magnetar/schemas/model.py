"""The data types of schemas: types, definitions, versions, strategies, and the policy.

Type numbers are those of `Schema.Type` in PulsarApi.proto. Names are the Java client's, because
KEY_VALUE schemas' properties and error texts contain them. A version is a 64-bit number from 0 on,
eight big-endian bytes on the wire; a topic without a schema has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from magnetar.core.errors import IncompatibleSchema

SCHEMA_BYTES_MAX: Final = 512 << 10
"""Size of a schema's definition, so that a version and its properties fit into one record."""
PROPERTIES_BYTES_MAX: Final = 256 << 10
VERSION_BYTES: Final = 8
VERSION_MAX: Final = 2**63 - 1


class SchemaType(IntEnum):
    """The type of a schema. BYTES means no schema and never occurs on the wire."""

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
"""Types whose definition is an Avro schema in Pulsar's clients."""


class CompatibilityStrategy(StrEnum):
    """How a new schema must relate to earlier ones (Pulsar's SchemaCompatibilityStrategy)."""

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
        """Whether all versions count instead of only the latest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether consumers with the new schema must be able to read older data."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether consumers with an older schema must be able to read new data."""
        return self.value.startswith(("FORWARD", "FULL"))


DEFAULT_STRATEGY: Final = CompatibilityStrategy.FULL


class InvalidSchemaData(IncompatibleSchema):
    """The definition is not valid for its schema type. REST: 422."""

    http_status = 422


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as a client sends it. Comparisons ignore `name`."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class VersionedSchema:
    """A version of a topic's schema. A tombstone (`deleted`) ends the versions before it."""

    version: int
    schema: SchemaInfo
    timestamp_ms: int
    user: str = ""
    deleted: bool = False

    @property
    def version_bytes(self) -> bytes:
        """The version on the wire."""
        return version_to_bytes(self.version)


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """The schema policies of a topic, already resolved over topic, namespace and broker."""

    strategy: CompatibilityStrategy = DEFAULT_STRATEGY
    auto_update: bool = True
    validation_enforced: bool = False


def version_to_bytes(version: int | None) -> bytes:
    """Returns the version on the wire; empty for None."""
    return b"" if version is None else version.to_bytes(VERSION_BYTES, "big")


def version_from_bytes(data: bytes) -> int | None:
    """Returns the version that the bytes encode, None if they encode none."""
    if len(data) < VERSION_BYTES:
        return None
    version = int.from_bytes(data[:VERSION_BYTES], "big")
    return version if version <= VERSION_MAX else None

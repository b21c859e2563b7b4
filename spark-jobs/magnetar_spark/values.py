"""Maps a topic's schemas to columns, and decodes values into them.

The columns are those of the newest version: the fields of a record (Avro, JSON, PROTOBUF_NATIVE),
`value` of a primitive's type, `key` and `value` of a key-value schema, or `value` as bytes without
a schema, or with one that is not decoded here. Every message is read with the version that it was
written with. Topics in one table must have the same newest schema, unless
`allowDifferentTopicSchemas` is true, which leaves all values as bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import resolve
from magnetar_spark.decode.builders import Numbers
from magnetar_spark.decode.payloads import Payloads, Stored, payloads_of
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.schemas import Schema, topic_schemas
from magnetar_spark.options import ReadOptions
from magnetar_spark.table import METADATA_TYPES, VALUE


@dataclass(frozen=True)
class Values:
    """The newest schema, and all versions of each topic.

    `by_topic` is keyed by full names without partition; it is empty until a task sets it.
    """

    newest: Schema | None = None
    by_topic: Mapping[str, Mapping[int, Schema]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type["Values"], tuple[Any, ...]]:
        """Decoders are not pickled."""
        return Values, (self.newest, self.by_topic)

    @cached_property
    def _payloads(self) -> Payloads | None:
        return None if self.newest is None else payloads_of(self.newest)

    def spark_fields(self) -> list[StructField]:
        """The columns of the value, and of a key-value schema's key."""
        payloads = self._payloads
        if payloads is None:
            return [StructField(VALUE, BinaryType())]
        if isinstance(payloads.spark_type, StructType):
            return list(payloads.spark_type.fields)
        return [StructField(VALUE, payloads.spark_type)]

    def wanted_in(self, schema: pa.Schema) -> bool:
        """Whether a column is wanted as anything but bytes."""
        if self._payloads is None:
            return False
        names = [name for name in schema.names if name not in METADATA_TYPES]
        fields = {field.name for field in self.spark_fields()}
        raw = names == [VALUE] and pa.types.is_binary(schema.field(VALUE).type)
        return bool(names) and not (raw and (VALUE not in fields or not self._is_bytes()))

    def _is_bytes(self) -> bool:
        return any(
            field.name == VALUE and isinstance(field.dataType, BinaryType)
            for field in self.spark_fields()
        )

    def columns(
        self, topic: str, schema: pa.Schema, values: pa.Array, keys: pa.Array, versions: Numbers
    ) -> dict[str, pa.Array]:
        """The wanted columns of these messages, which were written with these versions."""
        payloads = self._payloads
        if payloads is None:
            return {}
        versions_of_topic = self.by_topic.get(str(parse_topic(topic).base), {})
        decoded = payloads.decode(Stored(values, keys, versions, versions_of_topic))
        if not isinstance(payloads.spark_type, StructType):
            return {VALUE: decoded.cast(schema.field(VALUE).type)}
        names = payloads.spark_type.fieldNames()
        return dict(zip(names, decoded.flatten(), strict=True))


async def described_values(options: ReadOptions) -> Values:
    """The values of the selected topics. Raises PreconditionFailed if their schemas differ."""
    if options.raw_values:
        return Values()
    newest: Schema | None = None
    first = ""
    async with opened_log(options.log) as log:
        topics = await resolve(log.store, options.topics, options.pattern)
        for topic in dict.fromkeys(topic.base for topic in topics):
            schemas = await topic_schemas(log.store, topic)
            latest = schemas.versions.get(schemas.latest)
            if first and latest != newest:
                raise PreconditionFailed(
                    f"{topic} has another schema than {first}: read them one by one, or set "
                    "allowDifferentTopicSchemas to true and decode the values yourself"
                )
            newest, first = latest, str(topic)
    try:
        values = Values(newest)
        values.spark_fields()
    except MagnetarError as error:
        raise PreconditionFailed(
            f"the schema of {first} has no columns in Spark: {error}; set "
            "allowDifferentTopicSchemas to true to have the values as they are"
        ) from error
    return values

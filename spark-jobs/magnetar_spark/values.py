"""What a topic's schemas make of its values: which columns, and how they are filled.

The columns are those of the newest version: the fields of a record (Avro, JSON, PROTOBUF_NATIVE),
`value` of a primitive's type, `key` and `value` of a key-value schema, or, where there is no schema
or none that is decoded here, `value` as it is. Every message is read by the version that it was
written under. Several topics in one table have one newest schema, or `allowDifferentTopicSchemas`
is true and values stay as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar_spark.decode.builders import Numbers
from magnetar_spark.decode.payloads import Payloads, Stored, payloads_of
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.schemas import Schema, topic_schemas
from magnetar_spark.log.topics import resolve
from magnetar_spark.options import ReadOptions
from magnetar_spark.table import METADATA_TYPES, VALUE


@dataclass(frozen=True)
class Values:
    """The newest schema, and all versions of each topic that is read.

    `by_topic` is by full names, partitioned topics' without the partition; a task fills it in.
    """

    newest: Schema | None = None
    by_topic: Mapping[str, Mapping[int, Schema]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type["Values"], tuple[Any, ...]]:
        """Decoders stay in their process."""
        return Values, (self.newest, self.by_topic)

    @cached_property
    def _payloads(self) -> Payloads | None:
        return None if self.newest is None else payloads_of(self.newest)

    def spark_fields(self) -> list[StructField]:
        """The columns that are made of the value (and of a key-value schema's key)."""
        payloads = self._payloads
        if payloads is None:
            return [StructField(VALUE, BinaryType())]
        if isinstance(payloads.spark_type, StructType):
            return list(payloads.spark_type.fields)
        return [StructField(VALUE, payloads.spark_type)]

    def wanted_in(self, schema: pa.Schema) -> bool:
        """Whether any of the columns is wanted other than as bytes."""
        if self._payloads is None:
            return False
        names = [name for name in schema.names if name not in METADATA_TYPES]
        fields = {each.name for each in self.spark_fields()}
        raw = names == [VALUE] and pa.types.is_binary(schema.field(VALUE).type)
        return bool(names) and not (raw and (VALUE not in fields or not self._is_bytes()))

    def _is_bytes(self) -> bool:
        return any(
            each.name == VALUE and isinstance(each.dataType, BinaryType)
            for each in self.spark_fields()
        )

    def columns(
        self, topic: str, schema: pa.Schema, values: pa.Array, keys: pa.Array, versions: Numbers
    ) -> dict[str, pa.Array]:
        """The wanted columns of these messages, which were written under these versions."""
        payloads = self._payloads
        if payloads is None:
            return {}
        known = self.by_topic.get(str(parse_topic(topic).base), {})
        decoded = payloads.decode(Stored(values, keys, versions, known))
        if not isinstance(payloads.spark_type, StructType):
            return {VALUE: decoded.cast(schema.field(VALUE).type)}
        names = payloads.spark_type.fieldNames()
        return dict(zip(names, decoded.flatten(), strict=True))


async def described_values(options: ReadOptions) -> Values:
    """Of the topics that are read; raises PreconditionFailed where their schemas differ."""
    if options.raw_values:
        return Values()
    newest: Schema | None = None
    first = ""
    async with opened_log(options.log) as log:
        topics = await resolve(log.store, options.topics, options.pattern)
        for topic in dict.fromkeys(topic.base for topic in topics):
            found = await topic_schemas(log.store, topic)
            latest = found.versions.get(found.latest)
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

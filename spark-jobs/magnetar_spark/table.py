"""The columns of the table that Spark sees for a topic.

`value`, or the fields of the topic's schema, and Pulsar's metadata in columns that begin with two
underscores: the first six as in StreamNative's connector, the rest ours. A task builds only the
columns that its reader's schema names: `.schema("value binary")` saves the cost of all others.
"""

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

VALUE: Final = "value"
KEY: Final = "__key"
TOPIC: Final = "__topic"
MESSAGE_ID: Final = "__messageId"
PUBLISH_TIME: Final = "__publishTime"
EVENT_TIME: Final = "__eventTime"
PROPERTIES: Final = "__messageProperties"
ORDERING_KEY: Final = "__orderingKey"
SEQUENCE_ID: Final = "__sequenceId"
PRODUCER: Final = "__producer"
PARTITION: Final = "__partition"
LEDGER_ID: Final = "__ledgerId"
ENTRY_ID: Final = "__entryId"
BATCH_INDEX: Final = "__batchIndex"
ENCRYPTED: Final = "__encrypted"

METADATA_TYPES: Final[dict[str, DataType]] = {
    KEY: BinaryType(),
    TOPIC: StringType(),
    MESSAGE_ID: BinaryType(),
    PUBLISH_TIME: TimestampType(),
    EVENT_TIME: TimestampType(),
    PROPERTIES: MapType(StringType(), StringType()),
    ORDERING_KEY: BinaryType(),
    SEQUENCE_ID: LongType(),
    PRODUCER: StringType(),
    PARTITION: IntegerType(),
    LEDGER_ID: LongType(),
    ENTRY_ID: LongType(),
    BATCH_INDEX: IntegerType(),
    ENCRYPTED: BooleanType(),
}


def schema_of(value_fields: list[StructField]) -> StructType:
    """The table of a topic whose values have these columns."""
    return StructType(
        [*value_fields, *(StructField(name, kind) for name, kind in METADATA_TYPES.items())]
    )

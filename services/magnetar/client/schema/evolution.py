"""Explains why a broker refused a schema: names the field, if the definitions are Avro's."""

from magnetar.client.errors import ClientError, IncompatibleSchema
from magnetar.client.network.lookup import Lookup
from magnetar.schemas.avro_difference import difference
from magnetar.schemas.key_value import split_key_value
from magnetar.schemas.model import AVRO_BASED, InvalidSchemaData, SchemaInfo, SchemaType


async def explained(
    lookup: Lookup, topic: str, own: SchemaInfo | None, refusal: IncompatibleSchema
) -> IncompatibleSchema:
    """Returns the refusal with its reason, as far as the topic's latest schema shows it."""
    if own is None:
        return refusal
    try:
        latest = await lookup.schema(topic, None)
    except ClientError:
        return refusal
    reason = reason_of(latest, own)
    if not reason:
        return refusal
    return IncompatibleSchema(
        f"The schema does not fit the topic's: {reason}. The broker says: {refusal.message}",
        topic=topic,
        broker=refusal.broker,
        code=refusal.code,
    )


def reason_of(latest: SchemaInfo, own: SchemaInfo) -> str:
    """Returns what keeps one of two schemas from reading the other's data; empty if unknown."""
    if latest.type != own.type:
        return f"the topic has a schema of type {latest.type.name}, this one is {own.type.name}"
    if own.type in AVRO_BASED:
        if reason := difference(own.data, latest.data):
            return f"consumers with the topic's schema cannot read this one: {reason}"
        if reason := difference(latest.data, own.data):
            return f"this one cannot read messages with the topic's schema: {reason}"
    if own.type is SchemaType.KEY_VALUE:
        try:
            parts = zip(
                ("key", "value"), split_key_value(latest), split_key_value(own), strict=True
            )
        except InvalidSchemaData:
            return ""
        for part, theirs, ours in parts:
            if reason := reason_of(theirs, ours):
                return f"{part}: {reason}"
    return ""

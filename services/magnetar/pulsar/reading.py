"""Names topics as the official client does, and opens readers where the official client does."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar.client import LATEST
from magnetar.client.message_id import MessageId as OwnMessageId
from magnetar.core.names import parse_topic
from magnetar.pulsar.message_id import own_id
from magnetar.pulsar.options import reader_options
from magnetar.pulsar.schema.schema import Declared, Schema

if TYPE_CHECKING:
    from magnetar.client import Client, Reader


def full_name(topic: str) -> str:
    """Returns the name of a topic with its domain and namespace."""
    return str(parse_topic(topic))


async def opened_reader(
    client: "Client", schema: Schema, values: Mapping[str, Any]
) -> "Reader[bytes]":
    """Returns a reader for the arguments of `create_reader`.

    With the latest message as an inclusive start, it reads the last message of each topic first.
    """
    options = reader_options(values)
    start = own_id(values["start_message_id"])
    reader = await client.reader(values["topic"], start, schema=Declared(schema), **options)
    if start == LATEST and values["start_message_id_inclusive"]:
        try:
            await _move_to_last(reader)
        except BaseException:
            await reader.close()
            raise
    return reader


async def _move_to_last(reader: "Reader[bytes]") -> None:
    last = {
        message_id.topic: message_id
        for message_id in await reader.last_message_ids()
        if message_id.entry_id >= 0
    }

    def target(topic: str) -> OwnMessageId:
        return last.get(topic, LATEST)

    if last:
        await reader.seek(target)

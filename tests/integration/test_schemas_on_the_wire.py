"""Schemas as clients of every language send them; the answers are those of Pulsar 4.2.4."""

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/topic"
NONE = pb.Schema.Type.Value("None")
FIRST = bytes(8)


async def produce(client: RawClient, kind: "pb.Schema.Type.ValueType") -> bytes:
    """Attaches a producer; the version that its schema has."""
    command = pb.CommandProducer(topic=TOPIC, producer_id=next(client._ids))
    command.schema.CopyFrom(schema(kind))
    answer = await client.request(CommandType.PRODUCER, command)
    return bytes(answer.schema_version)


def schema(kind: "pb.Schema.Type.ValueType") -> pb.Schema:
    return pb.Schema(name="mine", schema_data=b"", type=kind)


async def test_a_schema_of_type_none_has_a_version() -> None:
    # Go's BytesSchema: its consumer asks for the version that stands in each message.
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        assert await produce(client, NONE) == FIRST
        wanted = pb.CommandGetSchema(topic=TOPIC, schema_version=FIRST)
        found = await client.request(CommandType.GET_SCHEMA, wanted)
        assert (found.schema.type, found.schema_version) == (NONE, FIRST)
        assert found.schema.name == "public/default/topic"
        await client.consumer(TOPIC, "sub", schema=schema(NONE))
        with pytest.raises(Refused, match="exists schema type NONE, new schema type STRING"):
            await produce(client, pb.Schema.String)
        await client.close()


async def test_get_or_create_takes_type_none_for_no_schema() -> None:
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        await client.producer(TOPIC)
        wanted = pb.CommandGetOrCreateSchema(topic=TOPIC, schema=schema(NONE))
        created = await client.request(CommandType.GET_OR_CREATE_SCHEMA, wanted)
        assert (created.schema_version, created.HasField("error_code")) == (b"", False)
        missing = await client.request(CommandType.GET_SCHEMA, pb.CommandGetSchema(topic=TOPIC))
        assert missing.error_code == pb.TopicNotFound
        assert missing.error_message == f"Topic not found or no-schema {TOPIC}"
        await client.close()


async def test_auto_consume_is_for_consumers() -> None:
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        refused = "Schema AUTO_CONSUME is a client-side schema type"
        with pytest.raises(Refused, match=refused):
            await produce(client, pb.Schema.AutoConsume)
        await client.consumer(TOPIC, "sub", schema=schema(pb.Schema.AutoConsume))
        wanted = pb.CommandGetOrCreateSchema(topic=TOPIC, schema=schema(pb.Schema.AutoConsume))
        created = await client.request(CommandType.GET_OR_CREATE_SCHEMA, wanted)
        assert (created.error_code, created.error_message) == (pb.IncompatibleSchema, refused)
        await client.close()

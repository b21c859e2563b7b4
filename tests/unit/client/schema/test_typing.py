"""The types that mypy infers for producers, consumers and messages; mypy checks `assert_type`."""

from dataclasses import dataclass
from typing import Any, assert_type

from magnetar.client import (
    AutoConsumeSchema,
    AvroSchema,
    Client,
    Consumer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Message,
    Producer,
    Reader,
    Schema,
    StringSchema,
    TableView,
)
from magnetar.client.opening import Opening
from magnetar.client.schema import Int64Schema


@dataclass
class Order:
    number: int


def opened_by(client: Client) -> tuple[Opening[Producer[Order]], Opening[Consumer[Order]]]:
    producer = client.producer("orders", schema=JsonSchema(Order))
    assert_type(producer, Opening[Producer[Order]])
    consumer = client.consumer("orders", "billing", schema=AvroSchema(Order))
    assert_type(consumer, Opening[Consumer[Order]])
    assert_type(client.producer("raw"), Opening[Producer[bytes]])
    assert_type(client.reader("n", schema=Int64Schema()), Opening[Reader[int]])
    assert_type(client.table_view("n", schema=StringSchema()), Opening[TableView[str]])
    pairs = KeyValueSchema(StringSchema(), JsonSchema(Order))
    assert_type(client.producer("p", schema=pairs), Opening[Producer[KeyValue[str, Order]]])
    assert_type(client.reader("a", schema=AutoConsumeSchema()), Opening[Reader[Any]])
    return producer, consumer


async def used(producer: Producer[Order], consumer: Consumer[Order]) -> int:
    message = await consumer.receive()
    assert_type(message, Message[Order])
    assert_type(message.value, Order)
    async for other in consumer:
        assert_type(other.value.number, int)
    await producer.send(3)  # type: ignore[arg-type]  # mypy must refuse another type
    return message.value.number


def test_the_schema_has_the_type_of_its_record() -> None:
    """What mypy cannot see: the classes exist, and take type arguments, at run time."""
    schema: Schema[Order] = JsonSchema(Order)
    assert schema.decode(schema.encode(Order(1)), None) == Order(1)
    client = Client("pulsar://localhost")
    assert all(isinstance(part, Opening) for part in opened_by(client))

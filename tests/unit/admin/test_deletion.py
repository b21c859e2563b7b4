"""What a deletion over REST takes with it, and what it leaves."""

import asyncio

import pytest

from magnetar.broker.schema.model import SchemaInfo, SchemaType
from magnetar.metadata.store import Record

from .support import Admin

TOPIC = "~/persistent/t1/n1/a"


async def test_a_late_deletion_does_not_take_the_schema_of_the_next(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer with a schema creates the topic anew as soon as it is deleted."""
    service, deleted = admin.service, asyncio.Event()
    schema = SchemaInfo(SchemaType.STRING, b"", {}, "a")
    topic = await admin.topic("a")
    await topic.add_schema(schema)
    service.topics.add_listener(topic.name.namespace, lambda *_: deleted.set())
    get = service.store.get

    async def produce_again() -> None:
        if deleted.is_set():
            deleted.clear()
            await (await admin.topic("a")).add_schema(schema)
            deleted.clear()

    async def slowly(key: str) -> Record | None:
        if key.startswith("/schemas/"):
            await produce_again()
        return await get(key)

    monkeypatch.setattr(service.store, "get", slowly)
    await admin.done("DELETE", TOPIC)
    await produce_again()
    found = await service.schemas.latest(topic.name)
    assert found is not None
    assert found.schema.type is SchemaType.STRING

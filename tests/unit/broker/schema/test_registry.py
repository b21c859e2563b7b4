"""The registry: versions, tombstones, races, and the checks when a client attaches."""

import asyncio

import pytest

from magnetar.broker.schema.registry import (
    CompatibilityStrategy,
    InvalidSchemaData,
    SchemaInfo,
    SchemaPolicy,
    SchemaRegistry,
    SchemaType,
    version_to_bytes,
)
from magnetar.core.clock import SystemClock
from magnetar.core.errors import IncompatibleSchema
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.metadata.memory import MemoryStore

FULL = CompatibilityStrategy.FULL
ANY = CompatibilityStrategy.ALWAYS_COMPATIBLE
POLICY = SchemaPolicy()
TOPIC = parse_topic("persistent://public/default/flights")


def avro(*fields: str) -> SchemaInfo:
    listed = ",".join(f'{{"name":"{f}","type":["null","int"],"default":null}}' for f in fields)
    data = f'{{"type":"record","name":"R","fields":[{listed}]}}'
    return SchemaInfo(SchemaType.AVRO, data.encode(), {"made.by": "test"}, "R")


BROKEN = SchemaInfo(
    SchemaType.AVRO, b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def registry(store: MemoryStore) -> SchemaRegistry:
    return SchemaRegistry(store, SystemClock())


async def numbers(registry: SchemaRegistry, topic: TopicName = TOPIC) -> list[int]:
    return [found.version for found in await registry.versions(topic)]


async def test_versions_count_from_zero_and_are_given_once(registry: SchemaRegistry) -> None:
    assert await registry.latest(TOPIC) is None
    assert await registry.put(TOPIC, avro("a"), FULL) == 0
    assert await registry.put(TOPIC, avro("a", "b"), FULL) == 1
    assert await registry.put(TOPIC, avro("a"), FULL) == 0
    spaced = SchemaInfo(SchemaType.AVRO, avro("a", "b").data.replace(b",", b" , "))
    assert await registry.put(TOPIC, spaced, FULL) == 1
    assert await numbers(registry) == [0, 1]
    assert await registry.find(TOPIC, avro("a", "b")) == 1
    assert await registry.find(TOPIC, avro("c")) is None


async def test_a_version_reads_as_it_was_given(registry: SchemaRegistry) -> None:
    await registry.put(TOPIC, avro("a"), FULL, user="ann")
    await registry.put(TOPIC, avro("a", "b"), FULL)
    latest = await registry.get(TOPIC)
    first = await registry.get(TOPIC, bytes(8))
    assert latest is not None
    assert first is not None
    assert (latest.version, latest.version_bytes) == (1, b"\0\0\0\0\0\0\0\1")
    assert first == await registry.get(TOPIC, 0)
    assert (first.schema, first.schema.name, first.user) == (avro("a"), "R", "ann")
    assert first.schema.properties == {"made.by": "test"}
    for unknown in (2, b"\0\0\0\0\0\0\0\2", b"", b"\1"):
        assert await registry.get(TOPIC, unknown) is None


async def test_partitions_and_domains_share_their_topics_schemas(registry: SchemaRegistry) -> None:
    await registry.put(TOPIC.partition(3), avro("a"), FULL)
    for name in (TOPIC, TOPIC.partition(0), parse_topic("non-persistent://public/default/flights")):
        found = await registry.get(name)
        assert found is not None
        assert found.version == 0
    assert await registry.get(parse_topic("persistent://public/default/flight")) is None
    assert await registry.get(parse_topic("persistent://public/other/flights")) is None
    odd = TopicName("persistent", "public", "default", "a/b c%2F")
    await registry.put(odd, avro("a"), FULL)
    assert await registry.topics(NamespaceName("public", "default")) == sorted(
        ["flights", odd.encoded_local]
    )


async def test_what_does_not_fit_is_refused_and_not_kept(registry: SchemaRegistry) -> None:
    await registry.put(TOPIC, avro("b"), FULL)
    for call in (registry.put, registry.check):
        with pytest.raises(IncompatibleSchema, match="strategy FULL"):
            await call(TOPIC, BROKEN, FULL)
        with pytest.raises(InvalidSchemaData):
            await call(TOPIC, SchemaInfo(SchemaType.AVRO, b"{"), FULL)
        with pytest.raises(InvalidSchemaData, match="exceeds"):
            await call(TOPIC, SchemaInfo(SchemaType.EXTERNAL, bytes(600_000)), ANY)
        with pytest.raises(InvalidSchemaData, match="exceed"):
            await call(TOPIC, SchemaInfo(SchemaType.INT8, b"", {"k": "é" * 200_000}), ANY)
    assert await numbers(registry) == [0]
    assert await registry.put(TOPIC, BROKEN, ANY) == 1
    await registry.check(TOPIC, BROKEN, FULL)


async def test_transitive_means_all_versions(registry: SchemaRegistry) -> None:
    backward = CompatibilityStrategy.BACKWARD
    text = SchemaInfo(
        SchemaType.AVRO,
        b'{"type":"record","name":"R","fields":[{"name":"a","type":"string","default":""}]}',
    )
    await registry.put(TOPIC, BROKEN, backward)
    await registry.put(TOPIC, avro(), backward)
    with pytest.raises(IncompatibleSchema):
        await registry.check(TOPIC, text, CompatibilityStrategy.BACKWARD_TRANSITIVE)
    assert await registry.put(TOPIC, text, backward) == 2


async def test_deleting_hides_what_was_and_numbers_continue(registry: SchemaRegistry) -> None:
    await registry.put(TOPIC, avro("a"), FULL)
    assert await registry.delete(TOPIC, user="ann") == 1
    assert await registry.delete(TOPIC) == 2
    assert await registry.latest(TOPIC) is None
    assert await registry.get(TOPIC, 0) is None
    assert await registry.find(TOPIC, avro("a")) is None
    newest = await registry.newest(TOPIC)
    assert newest is not None
    assert (newest.version, newest.deleted) == (2, True)
    number = SchemaInfo(SchemaType.INT32, b"")
    assert await registry.put(TOPIC, number, FULL) == 3
    assert await numbers(registry) == [3]
    everything = await registry.versions(TOPIC, with_deleted=True)
    assert [(found.version, found.deleted) for found in everything] == [
        (0, False),
        (1, True),
        (2, True),
        (3, False),
    ]
    assert await registry.delete(parse_topic("never-had-one")) == 0


async def test_forgetting_begins_again(registry: SchemaRegistry, store: MemoryStore) -> None:
    assert await registry.forget(TOPIC) is None
    other = parse_topic("persistent://public/default/flights-2")
    await registry.put(other, avro("a"), FULL)
    for i in range(300):
        await registry.put(TOPIC, SchemaInfo(SchemaType.EXTERNAL, str(i).encode()), FULL)
    assert await registry.forget(TOPIC) == 299
    assert await registry.newest(TOPIC) is None
    assert len(await store.list("/schemas/")) == 2
    assert await registry.put(TOPIC, avro("z"), FULL) == 0


async def test_racing_registrations_get_one_number_each(store: MemoryStore) -> None:
    registries = [SchemaRegistry(store, SystemClock()) for _ in range(3)]
    schemas = [SchemaInfo(SchemaType.EXTERNAL, str(i % 10).encode()) for i in range(60)]
    given = await asyncio.gather(
        *(registries[i % 3].put(TOPIC, schema, FULL) for i, schema in enumerate(schemas))
    )
    assert sorted(set(given)) == list(range(10))
    by_schema = {schema.data: version for schema, version in zip(schemas, given, strict=True)}
    assert [by_schema[schema.data] for schema in schemas] == given
    for registry in registries:
        assert await numbers(registry) == list(range(10))


async def test_incompatible_racers_never_both_win(store: MemoryStore) -> None:
    registries = [SchemaRegistry(store, SystemClock()) for _ in range(2)]
    kinds = [SchemaType.INT8, SchemaType.INT16, SchemaType.INT32, SchemaType.STRING]
    results = await asyncio.gather(
        *(registries[i % 2].put(TOPIC, SchemaInfo(k, b""), FULL) for i, k in enumerate(kinds)),
        return_exceptions=True,
    )
    assert sorted(map(type, results), key=str) == sorted([int, *[IncompatibleSchema] * 3], key=str)
    assert await numbers(registries[0]) == [0]


async def test_another_brokers_change_is_seen_at_once(store: MemoryStore) -> None:
    here, there = (SchemaRegistry(store, SystemClock()) for _ in range(2))
    await here.put(TOPIC, avro("a"), FULL)
    assert await numbers(there) == [0]
    await here.put(TOPIC, avro("b"), FULL)
    assert await numbers(there) == [0, 1]
    await there.delete(TOPIC)
    assert await numbers(here) == []
    await there.forget(TOPIC)
    assert await here.newest(TOPIC) is None


async def test_a_producer_registers_its_schema(registry: SchemaRegistry) -> None:
    assert await registry.for_producer(TOPIC, None, POLICY) is None
    assert await registry.for_producer(TOPIC, SchemaInfo(SchemaType.BYTES, b""), POLICY) is None
    assert await registry.for_producer(TOPIC, avro("a"), POLICY) == 0
    assert await registry.for_producer(TOPIC, avro("a", "b"), POLICY) == 1
    assert await registry.for_producer(TOPIC, None, POLICY) is None
    with pytest.raises(IncompatibleSchema):
        await registry.for_producer(TOPIC, SchemaInfo(SchemaType.STRING, b""), POLICY)


async def test_without_auto_update_only_known_schemas(registry: SchemaRegistry) -> None:
    closed = SchemaPolicy(auto_update=False)
    text = "^Schema not found and schema auto updating is disabled.$"
    with pytest.raises(IncompatibleSchema, match=text):
        await registry.for_producer(TOPIC, avro("a"), closed)
    with pytest.raises(IncompatibleSchema, match=text):
        await registry.for_consumer(TOPIC, avro("a"), closed, topic_is_idle=True)
    await registry.put(TOPIC, avro("a"), FULL)
    assert await registry.for_producer(TOPIC, avro("a"), closed) == 0
    with pytest.raises(IncompatibleSchema, match=text):
        await registry.for_producer(TOPIC, avro("a", "b"), closed)


async def test_enforced_validation_refuses_producers_without_schema(
    registry: SchemaRegistry,
) -> None:
    enforced = SchemaPolicy(validation_enforced=True)
    assert await registry.for_producer(TOPIC, None, enforced) is None
    await registry.put(TOPIC, avro("a"), FULL)
    with pytest.raises(IncompatibleSchema) as failure:
        await registry.for_producer(TOPIC, None, enforced)
    assert failure.value.message == (
        "Producers cannot connect or send message without a schema to topics with a schema"
        "when SchemaValidationEnforced is enabled"
    )
    await registry.delete(TOPIC)
    assert await registry.for_producer(TOPIC, None, enforced) is None


async def test_a_consumer_on_an_idle_topic_brings_its_schema(registry: SchemaRegistry) -> None:
    await registry.for_consumer(TOPIC, None, POLICY, topic_is_idle=True)
    auto = SchemaInfo(SchemaType.AUTO_CONSUME, b"")
    await registry.for_consumer(TOPIC, auto, POLICY, topic_is_idle=True)
    assert await registry.latest(TOPIC) is None
    await registry.for_consumer(TOPIC, avro("a"), POLICY, topic_is_idle=True)
    assert await numbers(registry) == [0]
    # Now there is one: idle or not, a consumer is checked and registers nothing.
    await registry.for_consumer(TOPIC, avro("a", "b"), POLICY, topic_is_idle=True)
    assert await numbers(registry) == [0]
    with pytest.raises(IncompatibleSchema):
        await registry.for_consumer(TOPIC, BROKEN, POLICY, topic_is_idle=True)


async def test_type_none_is_a_type_like_others(registry: SchemaRegistry) -> None:
    # Go's client sends it for BytesSchema, and looks the version up that it was given.
    none = SchemaInfo(SchemaType.NONE, b"", {"made": "by go"})
    assert await registry.for_producer(TOPIC, none, POLICY) == 0
    assert await registry.for_producer(TOPIC, SchemaInfo(SchemaType.NONE, b""), POLICY) == 0
    found = await registry.get(TOPIC, version_to_bytes(0))
    assert found is not None
    assert found.schema == none
    await registry.for_consumer(TOPIC, none, POLICY, topic_is_idle=False)
    text = SchemaInfo(SchemaType.STRING, b"")
    refused = "exists schema type NONE, new schema type STRING"
    with pytest.raises(IncompatibleSchema, match=refused):
        await registry.for_producer(TOPIC, text, POLICY)
    with pytest.raises(IncompatibleSchema, match=refused):
        await registry.for_consumer(TOPIC, text, POLICY, topic_is_idle=False)


async def test_a_consumer_on_a_topic_in_use_without_schema(registry: SchemaRegistry) -> None:
    with pytest.raises(IncompatibleSchema) as failure:
        await registry.for_consumer(TOPIC, avro("a"), POLICY, topic_is_idle=False)
    assert failure.value.message == (
        "Failed to add schema to an active topic with empty(BYTES) schema: new schema type AVRO"
    )
    await registry.for_consumer(TOPIC, None, POLICY, topic_is_idle=False)
    await registry.for_consumer(TOPIC, avro("a"), SchemaPolicy(ANY), topic_is_idle=False)
    assert await registry.latest(TOPIC) is None


@pytest.mark.parametrize(
    ("strategy", "reads_latest", "reads_first", "same"),
    [
        # A consumer must be able to read the stored messages: BACKWARD, whatever the rule for
        # producers.
        ("BACKWARD", True, False, True),
        ("FORWARD", True, False, True),
        ("FULL", True, False, True),
        ("FORWARD_TRANSITIVE", True, False, True),
        ("BACKWARD_TRANSITIVE", False, False, True),
        ("FULL_TRANSITIVE", False, False, True),
        ("ALWAYS_COMPATIBLE", True, True, True),
        ("ALWAYS_INCOMPATIBLE", False, False, False),
    ],
)
async def test_a_consumer_is_checked_backward(
    registry: SchemaRegistry, strategy: str, reads_latest: bool, reads_first: bool, same: bool
) -> None:
    def one(fields: str) -> SchemaInfo:
        data = f'{{"type":"record","name":"R","fields":[{fields}]}}'
        return SchemaInfo(SchemaType.AVRO, data.encode())

    first = one('{"name":"a","type":"int"}')
    latest = one('{"name":"a","type":"int"},{"name":"b","type":"int","default":0}')
    await registry.put(TOPIC, first, ANY)
    await registry.put(TOPIC, latest, ANY)
    policy = SchemaPolicy(CompatibilityStrategy(strategy))

    async def reads(schema: SchemaInfo) -> bool:
        try:
            await registry.for_consumer(TOPIC, schema, policy, topic_is_idle=False)
        except IncompatibleSchema:
            return False
        return True

    assert await reads(one('{"name":"b","type":"long"}')) is reads_latest
    assert await reads(one('{"name":"c","type":"int"}')) is reads_first
    assert await reads(latest) is same

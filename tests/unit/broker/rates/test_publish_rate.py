"""A publish rate, through real sessions and topics, over a clock whose time passes at once."""

import asyncio

import pytest
from tests.unit.broker.rates.rig import Client, Refused, broker, set_namespace_policy, set_policy
from tests.unit.ledger.cluster import virtual

from magnetar.broker.rates.held_sends import BROKER_HELD_BYTES_MAX, HELD_BYTES_MAX
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic
from magnetar.policies.admission import ENCRYPTION_REQUIRED
from magnetar.policies.caps import MAX_MESSAGE_SIZE
from magnetar.policies.rates import PUBLISH_RATE
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.entry import build_entry

TOPIC = "persistent://public/default/t"
OTHER = "persistent://public/default/other"


def rate(messages: int = -1, size_bytes: int = -1) -> dict[str, int]:
    return {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size_bytes}


def between(receipts: list[tuple[float, int]], since: float, until: float) -> int:
    return sum(since <= at < until for at, _ in receipts)


@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
def test_a_rate_of_messages_holds_over_five_seconds(topic: str) -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(topic)
            await set_policy(service, topic, PUBLISH_RATE, rate(100))
            begun = asyncio.get_running_loop().time()
            client.publish(producer, range(1_000))
            await asyncio.sleep(12)
            receipts = client.receipts[producer]
            assert [number for _, number in receipts] == list(range(1_000))
            for since in (0.0, 0.5, 2.0, 4.0):
                count = between(receipts, begun + since, begun + since + 5)
                assert 450 <= count <= 550, (since, count)
            assert client.positions[producer] == sorted(client.positions[producer])
            assert client.pauses == 0
            found = service.topics.loaded(parse_topic(topic))
            assert found is not None
            assert found.counters.publish_limited_times > 0

    virtual(scenario())


def test_a_rate_of_bytes_counts_whole_entries() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(size_bytes=100_000))
            begun = asyncio.get_running_loop().time()
            client.publish(producer, range(1_000), size=1_000)
            await asyncio.sleep(14)
            assert len(client.receipts[producer]) == 1_000
            size = 1_000 + 20  # the metadata before the payload takes 20 to 60 bytes
            first = between(client.receipts[producer], begun, begun + 5)
            assert 450_000 / (size + 40) <= first <= 550_000 / size + 1

    virtual(scenario())


def test_a_batch_counts_as_its_messages() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(100))
            begun = asyncio.get_running_loop().time()
            client.publish(producer, range(20), messages=100)
            await asyncio.sleep(25)
            assert 5 <= between(client.receipts[producer], begun, begun + 5) <= 6
            assert len(client.receipts[producer]) == 20

    virtual(scenario())


def test_a_slow_topic_does_not_hold_up_another_one_of_the_connection() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            slow, fast = await client.producer(TOPIC), await client.producer(OTHER)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(1))
            begun = asyncio.get_running_loop().time()
            for number in range(500):
                client.publish(slow, range(number, number + 1))
                client.publish(fast, range(number, number + 1))
            await asyncio.sleep(0.1)
            assert len(client.receipts[fast]) == 500
            assert len(client.receipts[slow]) == 1
            await asyncio.sleep(10)
            assert between(client.receipts[slow], begun, begun + 10) in (10, 11)
            assert not client.paused

    virtual(scenario())


def test_producers_of_a_topic_share_its_rate() -> None:
    async def scenario() -> None:
        async with broker() as service:
            clients = [Client(service), Client(service, "/10.0.0.2:1000")]
            producers = [await client.producer(TOPIC) for client in clients]
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(100))
            for client, producer in zip(clients, producers, strict=True):
                client.publish(producer, range(1_000))
            await asyncio.sleep(10)
            counts = [
                len(client.receipts[producer])
                for client, producer in zip(clients, producers, strict=True)
            ]
            assert 950 <= sum(counts) <= 1_060
            assert abs(counts[0] - counts[1]) <= 60, counts

    virtual(scenario())


def test_reading_pauses_at_the_bound_of_held_messages() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(size_bytes=1_000_000))
            total, size = 900, 10_000
            client.publish(producer, range(total), size=size)
            held = service.topics._context.held
            assert client.paused
            assert client.unread
            assert HELD_BYTES_MAX < held.bytes <= HELD_BYTES_MAX + (64 << 10) + size
            await asyncio.sleep(20)
            assert [number for _, number in client.receipts[producer]] == list(range(total))
            assert held.bytes == 0
            assert not client.paused

    virtual(scenario())


def test_all_that_a_broker_holds_is_bounded() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, PUBLISH_RATE, rate(1))
            clients = [Client(service, f"/10.0.1.{n}:1") for n in range(60)]
            for number, client in enumerate(clients):
                producer = await client.producer(f"{TOPIC}-{number}")
                client.publish(producer, range(40), size=100_000)
            held = service.topics._context.held
            assert held.bytes <= BROKER_HELD_BYTES_MAX + len(clients) * 110_000
            assert sum(client.paused for client in clients) > 20
            for client in clients:
                client.close()
            assert held.bytes == 0

    virtual(scenario())


def test_a_refusal_on_a_full_broker_pauses_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.rates.held_sends.BROKER_HELD_BYTES_MAX", 1_000)

    async def scenario() -> None:
        async with broker() as service:
            slow, client = Client(service), Client(service, "/10.0.0.2:1")
            limited = await slow.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(1))
            slow.publish(limited, range(10), size=1_000)
            assert service.topics._context.held.bytes > 1_000
            producer = await client.producer(OTHER)
            await set_policy(service, OTHER, MAX_MESSAGE_SIZE, 1_000)
            client.publish(producer, range(1), size=2_000)
            assert [number for _, number, _, _ in client.errors] == [0]
            # Nothing of it is held, so nothing would end a pause.
            assert not client.paused
            client.publish(producer, range(1, 2))
            await asyncio.sleep(1)
            assert [number for _, number in client.receipts[producer]] == [1]

    virtual(scenario())


@pytest.mark.parametrize("after", [rate(0, 0), None])
def test_a_removed_rate_releases_all_waiters_in_order(after: object) -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(1))
            client.publish(producer, range(300))
            await asyncio.sleep(1)
            await set_policy(service, TOPIC, PUBLISH_RATE, after)
            client.publish(producer, range(300, 400))
            await asyncio.sleep(1)
            assert [number for _, number in client.receipts[producer]] == list(range(400))
            topic = service.topics.loaded(parse_topic(TOPIC))
            assert topic is not None
            assert topic.gate is None

    virtual(scenario())


def test_a_namespace_s_rate_holds_for_each_topic_and_a_topic_s_own_is_before_it() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            one, two = await client.producer(TOPIC), await client.producer(OTHER)
            await set_namespace_policy(service, PUBLISH_RATE, rate(10))
            await set_policy(service, OTHER, PUBLISH_RATE, rate(50))
            client.publish(one, range(1_000))
            client.publish(two, range(1_000))
            await asyncio.sleep(10)
            assert 95 <= len(client.receipts[one]) <= 110
            assert 475 <= len(client.receipts[two]) <= 550

    virtual(scenario())


def test_closing_waits_for_what_is_held() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(10))
            client.publish(producer, range(50))
            begun = asyncio.get_running_loop().time()
            await client.close_producer(producer)
            assert asyncio.get_running_loop().time() - begun >= 4
            assert [number for _, number in client.receipts[producer]] == list(range(50))

    virtual(scenario())


def test_held_messages_end_with_their_connection() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client, other = Client(service), Client(service, "/10.0.0.2:1")
            lost, stays = await client.producer(TOPIC), await other.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(10))
            client.publish(lost, range(1_000))
            other.publish(stays, range(50))
            await asyncio.sleep(1)
            client.close()
            assert service.topics._context.held.bytes < 50 * 100
            await asyncio.sleep(6)
            assert len(other.receipts[stays]) >= 45

    virtual(scenario())


def test_a_connection_lost_while_held_messages_are_awaited_leaves_nothing_attached() -> None:
    """The end of a producer that closes must not end the clean-up of the session."""

    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            closes, stays = await client.producer(TOPIC), await client.producer(TOPIC)
            await client.consumer(TOPIC, "s")
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(10))
            client.publish(closes, range(1_000))
            client.publish(stays, range(1_000))
            closing = asyncio.create_task(client.close_producer(closes))
            await asyncio.sleep(1)
            assert not closing.done()
            client.close()
            closing.cancel()
            topic = service.topics.loaded(parse_topic(TOPIC))
            assert topic is not None
            assert list(topic.producers) == []
            assert [len(each.consumers) for each in topic.subscriptions.values()] == [0]

    virtual(scenario())


def test_an_unloaded_topic_drops_held_messages_without_storing_them() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(10))
            await client.consumer(TOPIC, "keeps")
            client.publish(producer, range(200))
            await asyncio.sleep(1)
            await service.topics.unload(parse_topic(TOPIC))
            receipted = len(client.receipts[producer])
            assert producer in client.sent_away
            assert service.topics._context.held.bytes == 0
            await asyncio.sleep(5)
            topic = await service.topics.get_or_open(parse_topic(TOPIC), create=False)
            assert isinstance(topic, PersistentTopic)
            assert topic.managed_ledger.entries_total == receipted

    virtual(scenario())


def test_a_resumed_topic_publishes_held_messages() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, PUBLISH_RATE, rate(10))
            client.publish(producer, range(40))
            await asyncio.sleep(1)
            service.open_topics.suspend()
            await asyncio.sleep(10)
            assert len(client.receipts[producer]) <= 16
            service.open_topics.resume()
            await asyncio.sleep(4)
            assert [number for _, number in client.receipts[producer]] == list(range(40))

    virtual(scenario())


# -- size and encryption


def test_a_message_that_is_too_large_is_refused_in_its_turn() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            await set_policy(service, TOPIC, MAX_MESSAGE_SIZE, 1_000)
            client.publish(producer, range(3))
            client.publish(producer, range(3, 5), size=1_001)
            client.publish(producer, range(5, 8))
            await asyncio.sleep(1)
            assert client.told == [
                ("receipt", 0), ("receipt", 1), ("receipt", 2), ("error", 3), ("error", 4),
                ("receipt", 5), ("receipt", 6), ("receipt", 7),
            ]  # fmt: skip
            refused = int(pb.NotAllowedError)
            text = "Exceed maximum message size"
            assert client.errors == [(producer, number, refused, text) for number in (3, 4)]
            assert service.budget.pending_bytes == 0
            chunk = pb.MessageMetadata(uuid="u", num_chunks_from_msg=2, chunk_id=0)
            client.publish(producer, range(8, 9), size=2_000, metadata=chunk)
            await asyncio.sleep(1)
            assert client.told[-1] == ("receipt", 8)
            await set_policy(service, TOPIC, MAX_MESSAGE_SIZE, None)
            client.publish(producer, range(9, 10), size=2_000)
            await asyncio.sleep(1)
            assert client.told[-1] == ("receipt", 9)

    virtual(scenario())


def test_a_message_may_be_as_large_as_the_limit_says() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            producer = await client.producer(TOPIC)
            about = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            most = 1_000 - len(build_entry(about, b""))
            await set_policy(service, TOPIC, MAX_MESSAGE_SIZE, 1_000)
            client.publish(producer, range(1, 2), size=most)
            client.publish(producer, range(2, 3), size=most + 1)
            await asyncio.sleep(1)
            assert client.told == [("receipt", 1), ("error", 2)]

    virtual(scenario())


def test_required_encryption_disconnects_others_and_refuses_their_return() -> None:
    async def scenario() -> None:
        async with broker() as service:
            client = Client(service)
            plain = await client.producer(TOPIC)
            safe = await client.producer(TOPIC, encrypted=True)
            await set_namespace_policy(service, ENCRYPTION_REQUIRED, True)
            assert client.sent_away == [plain]
            with pytest.raises(Refused, match="Encryption is required in " + TOPIC) as refused:
                await client.producer(TOPIC)
            assert refused.value.code == pb.MetadataError
            about = pb.MessageMetadata()
            about.encryption_keys.add(key="k", value=b"v")
            client.publish(safe, range(1), metadata=about)
            client.publish(safe, range(1, 2))
            client.publish(safe, range(2, 3), metadata=about)
            await asyncio.sleep(1)
            assert client.told == [("receipt", 0), ("error", 1), ("receipt", 2)]
            assert client.errors == [(safe, 1, int(pb.MetadataError), "Messages must be encrypted")]

    virtual(scenario())

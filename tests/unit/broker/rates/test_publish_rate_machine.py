"""Under any change of policies, each send is answered once, in order, and nothing stays held."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.rates.rig import DISK_S, Client, broker, set_policy
from tests.unit.ledger.cluster import virtual

from magnetar.core.names import parse_topic
from magnetar.policies.caps import MAX_MESSAGE_SIZE
from magnetar.policies.rates import PUBLISH_RATE

TOPIC = "persistent://public/default/t"
SIZES = st.sampled_from([1, 100, 1_500])

SENDS = st.tuples(
    st.just("send"), st.integers(0, 2), st.lists(SIZES, min_size=1, max_size=8), st.integers(1, 9)
)
"""Who, and of which sizes, so many of each."""
RATES = st.tuples(st.just("rate"), st.sampled_from([None, 0, 3, 50, 2_000]))
LIMITS = st.tuples(st.just("limit"), st.sampled_from([None, 1_000]))
PAUSES = st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.01, 0.7, 3.0]))
RESTS = st.tuples(st.just("rest"))
ACTS = st.lists(st.one_of(SENDS, SENDS, RATES, LIMITS, PAUSES, RESTS), min_size=3, max_size=12)


@settings(max_examples=25, deadline=None)
@given(ACTS)
def test_answers_come_once_and_in_order(acts: list[tuple]) -> None:  # type: ignore[type-arg]
    async def scenario() -> None:
        async with broker() as service:
            clients = [Client(service, f"/10.0.0.{n}:1") for n in range(3)]
            producers = [await client.producer(TOPIC) for client in clients]
            await set_policy(service, TOPIC, MAX_MESSAGE_SIZE, 1_000)
            sent = [0, 0, 0]
            for act in acts:
                match act:
                    case ("send", who, sizes, count):
                        for size in sizes:
                            numbers = range(sent[who], sent[who] + count)
                            clients[who].publish(producers[who], numbers, size=size)
                            sent[who] += count
                    case ("rate", messages):
                        value = messages and {"publishThrottlingRateInMsg": messages}
                        await set_policy(service, TOPIC, PUBLISH_RATE, value or None)
                    case ("limit", largest):
                        await set_policy(service, TOPIC, MAX_MESSAGE_SIZE, largest)
                    case ("sleep", seconds):
                        await asyncio.sleep(seconds)
                    case _:
                        # A real client would resend these messages after its CLOSE_PRODUCER.
                        service.open_topics.suspend()
                        await asyncio.sleep(2 * DISK_S)
                        stored = [len(client.told) for client in clients]
                        await asyncio.sleep(2.0)
                        assert [len(client.told) for client in clients] == stored
                        service.open_topics.resume()
            await asyncio.sleep(sum(sent) / 3 + 5)
            for client, producer, count in zip(clients, producers, sent, strict=True):
                assert [number for _, number in client.told] == list(range(count))
                assert client.positions[producer] == sorted(client.positions[producer])
                assert not client.paused
                assert not client.sent_away
            topic = service.topics.loaded(parse_topic(TOPIC))
            assert topic is not None
            assert topic.gate is None or not topic.gate._held
            assert service.topics._context.held.bytes == service.budget.pending_bytes == 0
            for session in service.sessions:
                for attached, _ in session.producers.values():
                    assert attached.pending_runs == 0
                    assert attached.held is None

    virtual(scenario())

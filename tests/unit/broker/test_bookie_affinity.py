"""The ledgers of a topic, and of its cursors, carry the affinity of their namespace."""

import asyncio

from tests.unit.broker.rates.rig import Client, broker, set_namespace_policy
from tests.unit.ledger.cluster import virtual

from magnetar.broker.service import BrokerService
from magnetar.ledger.affinity import Affinity, affinity_of
from magnetar.ledger.metadata import LEDGERS_PREFIX, decode
from magnetar.policies.admission import BOOKIE_AFFINITY

TOPIC = "persistent://public/default/t"
POLICY = {"bookkeeperAffinityGroupPrimary": "default", "bookkeeperAffinityGroupSecondary": "x"}


async def affinities(service: BrokerService) -> dict[str, Affinity | None]:
    """The affinity of each ledger, by what it stores."""
    found: dict[str, Affinity | None] = {}
    for record in await service.store.list(LEDGERS_PREFIX):
        properties = decode(record.key, record.value).properties
        kind = "cursor" if "magnetar.cursor" in properties else "log"
        found[kind] = affinity_of(properties)
    return found


def test_new_ledgers_have_the_affinity_of_the_namespace() -> None:
    async def scenario() -> None:
        async with broker() as service:
            await set_namespace_policy(service, BOOKIE_AFFINITY, POLICY)
            client = Client(service)
            consumer = await client.consumer(TOPIC, "s")
            producer = await client.producer(TOPIC)
            client.publish(producer, range(3))
            await asyncio.sleep(1)
            client.flow(consumer, 10)
            await asyncio.sleep(1)
            client.ack(consumer, *client.positions[producer][1])
            await asyncio.sleep(10)
            wanted = Affinity(frozenset({"default"}), frozenset({"x"}))
            assert await affinities(service) == {"log": wanted, "cursor": wanted}
            await set_namespace_policy(service, BOOKIE_AFFINITY, None)
            other = await client.producer(TOPIC.replace("/t", "/u"))
            client.publish(other, range(3))
            await asyncio.sleep(1)
            newest = (await service.store.list(LEDGERS_PREFIX))[-1]
            assert affinity_of(decode(newest.key, newest.value).properties) is None

    virtual(scenario())

"""Claims whose writes are not answered, or come late, or stand in each other's way."""

import asyncio

import pytest
from tests.support.brokers import (
    NAMESPACE,
    TOPIC,
    WITHIN_S,
    Cluster,
    Node,
    ask,
    bundle_of,
    find,
    other,
    running_cluster,
)
from tests.support.late_store import LateStore

from magnetar.admin.deletion import LocalRemover, delete_namespace
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.bundles import RING_END, Bundle
from magnetar.broker.ownership.records import (
    OwnershipRecord,
    bundle_of_key,
    decode_ownership,
    ownership_key,
)
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar.metadata.store import MetadataUnavailable

NAME = parse_topic(TOPIC)

UNANSWERED = pytest.mark.parametrize(
    "unanswered", [[True], [False], [False, True], [True, False]], ids=lambda u: f"landed={u}"
)


async def owners(cluster: Cluster) -> dict[Bundle, str]:
    """What the store says."""
    return {
        bundle_of_key(record.key): decode_ownership(record.key, record.value).broker_id
        for record in await cluster.store.list("/ownership/")
    }


async def agreed(cluster: Cluster) -> None:
    """What brokers believe to own is what the store says, and every claim has its revision."""
    for node in cluster.nodes:
        for bundle, claim in node.ownership.owned().items():
            record = await cluster.store.get(ownership_key(bundle))
            assert record is not None
            assert record.revision == claim.revision
            own = OwnershipRecord.of(node.ownership.brokers.own)
            assert decode_ownership(record.key, record.value) == own


async def writable(node: Node) -> None:
    """A record of the topic can be written here, under the claim."""
    topic = await node.service.topics.get_or_open(NAME, create=True)
    assert isinstance(topic, PersistentTopic)
    await topic.managed_ledger.set_properties({"by": node.broker_id})


@UNANSWERED
async def test_a_claim_without_an_answer(unanswered: list[bool]) -> None:
    async with running_cluster() as cluster:
        node = cluster.nodes[0]
        node.view.unanswered = list(unanswered)
        owner = await find(cluster, by=node)
        node.view.unanswered = []
        assert await owners(cluster) == {bundle_of(owner): owner.broker_id}
        await agreed(cluster)
        await writable(owner)


@UNANSWERED
async def test_a_handover_without_an_answer(unanswered: list[bool]) -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        new = other(cluster, owner)
        bundle = bundle_of(owner)
        owner.view.unanswered = list(unanswered)
        assert await owner.ownership.unload(bundle, new.broker_id) == new.broker_id
        assert await owners(cluster) == {bundle: new.broker_id}
        assert await find(cluster) is new
        await agreed(cluster)
        await writable(new)


@UNANSWERED
async def test_a_split_without_an_answer(unanswered: list[bool]) -> None:
    async with running_cluster(1, bundles=1) as cluster:
        node = await find(cluster)
        await writable(node)
        node.view.unanswered = list(unanswered)
        parts = await node.ownership.split(bundle_of(node))
        assert await owners(cluster) == dict.fromkeys(parts, node.broker_id)
        assert set(node.ownership.owned()) == set(parts)
        await agreed(cluster)
        await writable(node)


@pytest.mark.parametrize("landed", [True, False])
async def test_a_split_that_is_never_answered_leaves_what_the_store_says(
    landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.ownership.claims.RETRY_S", 0.001)
    async with running_cluster(1, bundles=1) as cluster:
        node = await find(cluster)
        await writable(node)
        node.view.cut_off_by = landed
        with pytest.raises(MetadataUnavailable):
            await node.ownership.split(bundle_of(node))
        assert not node.ownership.owned()
        node.view.cut_off = False
        assert await find(cluster) is node
        await agreed(cluster)
        await writable(node)
        assert len(await owners(cluster)) == (2 if landed else 1)


@pytest.mark.parametrize("landed", [True, False])
async def test_topics_of_a_split_that_is_never_answered_are_opened_under_the_claim_of_the_store(
    landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would go on under a claim that this broker has dropped."""
    monkeypatch.setattr("magnetar.broker.ownership.claims.RETRY_S", 0.001)
    async with running_cluster(1, bundles=1) as cluster:
        node = await find(cluster)
        await writable(node)
        node.view.cut_off_by = landed
        with pytest.raises(MetadataUnavailable):
            await node.ownership.split(bundle_of(node))
        assert node.service.topics.loaded(NAME) is None
        node.view.cut_off = False
        await find(cluster)
        await writable(node)


async def test_a_claim_keeps_its_origin_through_splits_and_no_further() -> None:
    """What an instance of a topic may write under: splits of the claim that it was opened with."""
    async with running_cluster(2, bundles=1) as cluster:
        node = await find(cluster)
        await writable(node)
        topic = node.service.topics.loaded(NAME)
        assert isinstance(topic, PersistentTopic)
        ledger = topic.managed_ledger
        first = await node.ownership.guard(ledger.name)
        for _ in range(2):
            await node.ownership.split(bundle_of(node))
        split = await node.ownership.guard(ledger.name)
        assert split.origin == first.origin
        assert split.checks != first.checks
        await ledger.set_properties({"after": "splits"})
        assert not ledger.fenced
        await moved_to_and_fro(cluster, 2)
        assert await find(cluster) is node
        back = await node.ownership.guard(ledger.name)
        assert back.origin != first.origin
        await node.expire()
        async with asyncio.timeout(WITHIN_S):
            while node.ownership.owns(NAME):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while not node.ownership.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while node.ownership.claims.get(bundle_of(node)) is None:
                await node.ownership.claims.acquire(bundle_of(node))
        again = await node.ownership.guard(ledger.name)
        assert again.origin not in (first.origin, back.origin)


async def test_two_that_claim_while_the_store_answers_late() -> None:
    store = LateStore()
    async with running_cluster(2, store=store) as cluster:
        clients = [await node.client() for node in cluster.nodes]
        store.hold()
        asking = [asyncio.ensure_future(ask(c, authoritative=True)) for c in clients]
        await store.landed.wait()
        await asyncio.sleep(0.05)
        store.answering.set()
        answers = {(await answer).brokerServiceUrl for answer in asking}
        assert len(answers) == 1
        (owner,) = [node for node in cluster.nodes if node.ownership.owns(NAME)]
        assert answers == {owner.url}
        await agreed(cluster)


async def test_bundles_of_a_deleted_namespace_are_released_before_others_are_claimed() -> None:
    async with running_cluster(2, bundles=4) as cluster:
        first, second = cluster.nodes
        topics = [f"{TOPIC}{index}" for index in range(20)]
        for topic in topics:
            await find(cluster, topic)
        assert len(await owners(cluster)) == 4
        resources = first.service.resources
        await delete_namespace(first.service, LocalRemover(first.service), NAMESPACE, force=False)
        await resources.create_namespace(NAMESPACE, default_policies(first.service.cluster, 3))
        for topic in topics:
            await find(cluster, topic, by=second)
        bundles = await owners(cluster)
        assert len(bundles) == 3
        assert not any(a is not b and a.overlaps(b) for a in bundles for b in bundles)
        await agreed(cluster)


async def test_what_is_not_owned_here_is_neither_unloaded_nor_split() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        wrong = other(cluster, owner)
        bundle = bundle_of(owner)
        with pytest.raises(NotFound):
            await wrong.ownership.unload(bundle)
        with pytest.raises(NotFound):
            await wrong.ownership.split(bundle)
        with pytest.raises(Conflict, match="inactive destination broker"):
            await owner.ownership.unload(bundle, "nobody:1")
        assert await owner.ownership.unload(bundle, owner.broker_id) == owner.broker_id
        with pytest.raises(PreconditionFailed):
            await owner.ownership.split(bundle, "specified_positions_divide", [RING_END])
        assert set(owner.ownership.owned()) == {bundle}


async def moved_to_and_fro(cluster: Cluster, rounds: int) -> None:
    for _ in range(rounds):
        owner = await find(cluster)
        to = other(cluster, owner)
        await owner.ownership.unload(bundle_of(owner), to.broker_id)


async def test_a_topic_moves_to_and_fro_and_keeps_all_that_was_receipted() -> None:
    async with running_cluster() as cluster:
        await find(cluster)
        sent: list[bytes] = []
        for index in range(6):
            owner = await find(cluster)
            client = await owner.client()
            if not index:
                await client.consumer(TOPIC, "reader", consumer_id=99)
            producer = await client.producer(TOPIC)
            payload = b"%d" % index
            client.send(producer, index, payload)
            await client.receipted(producer, 1)
            sent.append(payload)
            await moved_to_and_fro(cluster, 1)
            await client.close()
        owner = await find(cluster)
        client = await owner.client()
        consumer = await client.consumer(TOPIC, "reader")
        client.flow(consumer, 100)
        received = [await client.receive(consumer) for _ in sent]
        assert [one.payload for one in received] == sent
        ids = [(one.ledger_id, one.entry_id) for one in received]
        assert ids == sorted(set(ids))
        await agreed(cluster)

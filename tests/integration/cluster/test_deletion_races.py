"""A namespace is deleted by one broker while another, which does not know, is asked for topics."""

import pytest
from tests.support.brokers import NAMESPACE, TOPIC, bundle_of, find, running_cluster

from magnetar.admin.deletion import LocalRemover, delete_namespace
from magnetar.core.errors import MagnetarError, TopicNotFound
from magnetar.core.names import parse_topic
from magnetar.metadata.store import Check


async def nothing(mark: Check | None = None) -> None:
    """The partitioned topic has no partitions yet."""


async def test_a_broker_that_has_not_heard_creates_no_topic_in_a_deleted_namespace() -> None:
    async with running_cluster(2, bundles=1) as cluster:
        owner = await find(cluster)
        deleting = next(node for node in cluster.nodes if node is not owner)
        parted = parse_topic(f"persistent://{NAMESPACE}/parted")
        await deleting.service.resources.create_partitioned(parted, 2)
        owner.pause()  # it learns nothing from the store, and answers its clients still
        await deleting.service.resources.partitioned_deletion(parted).run(nothing, nothing)
        await delete_namespace(
            deleting.service, LocalRemover(deleting.service), NAMESPACE, force=False
        )
        assert owner.ownership.has(bundle_of(owner)), "it takes itself for the owner"
        for name in (parse_topic(TOPIC), parted.partition(0)):
            with pytest.raises(MagnetarError):
                await owner.service.topics.get_or_open(name, create=True)
        with pytest.raises(TopicNotFound, match="Namespace not found"):
            # It is not the owner: it would only record them.
            await deleting.service.topics.create_partitions(parted, 0, 2)
        assert not await cluster.store.list("/managed-ledgers/")

"""Subscriptions whose cursors cannot be read: shown, refused with a reason, and deleted."""

import pytest

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import ledger_key

from .support import Admin, topic_name

TOPIC = "~/persistent/t1/n1/a"
BROKEN, WHOLE = TOPIC + "/subscription/broken", TOPIC + "/subscription/whole"
MESSAGES = 5


async def break_cursor(admin: Admin, local: str, name: str, acked: Position) -> PersistentTopic:
    """Returns the topic, opened again after the ledger of the subscription's cursor was lost.

    `acked` leaves a hole, which does not fit into the cursor's record.
    """
    topic = await admin.topic(local)
    cursor = topic.managed_ledger.cursors[name]
    cursor.ack(*acked)
    await cursor.flush()
    assert cursor.log is not None
    lost = cursor.log.ledger_id
    await admin.service.topics.unload(topic_name(local))
    assert await admin.service.store.delete(ledger_key(lost))
    return await admin.topic(local)


@pytest.fixture
async def topic(admin: Admin) -> PersistentTopic:
    """Returns a topic with a broken and a readable subscription."""
    topic = await admin.topic()
    for name in ("broken", "whole"):
        await topic.create_subscription(name, EARLIEST, {"team": name})
    positions = await admin.publish([b"x"] * MESSAGES)
    broken = await break_cursor(admin, "a", "broken", positions[2])
    assert list(broken.subscriptions) == ["whole"]
    return broken


async def test_a_broken_subscription_is_listed_and_its_stats_show_the_error(
    admin: Admin, topic: PersistentTopic
) -> None:
    assert (await admin.done("GET", TOPIC + "/subscriptions")).json() == ["broken", "whole"]
    actual = (await admin.done("GET", TOPIC + "/stats")).json()["subscriptions"]
    assert "does not exist" in actual["broken"]["cursorError"]
    assert actual["broken"]["msgBacklog"] == MESSAGES, "all that it may have left to consume"
    assert actual["broken"]["subscriptionProperties"] == {"team": "broken"}
    assert "cursorError" not in actual["whole"]
    cursors = (await admin.done("GET", TOPIC + "/internalStats")).json()["cursors"]
    assert cursors["broken"]["state"] == "Broken"
    assert "does not exist" in cursors["broken"]["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/skip/1"),
        ("POST", "/skip_all"),
        ("POST", "/resetcursor/1"),
        ("POST", "/expireMessages/1"),
        ("POST", "/analyzeBacklog"),
        ("GET", "/properties"),
        ("GET", "/position/1"),
    ],
)
async def test_requests_that_need_a_broken_cursor_are_refused_with_the_reason(
    admin: Admin, topic: PersistentTopic, method: str, path: str
) -> None:
    refused = await admin.call(method, BROKEN + path)
    assert refused.status_code == 500
    assert "Subscription broken of topic persistent://t1/n1/a cannot be read" in refused.text
    assert "delete it" in refused.text


async def test_requests_about_all_subscriptions_apply_to_the_readable_ones_first(
    admin: Admin, topic: PersistentTopic
) -> None:
    cursor = topic.subscriptions["whole"].cursor
    assert cursor.backlog == MESSAGES
    refused = await admin.call("POST", "~/namespaces/t1/n1/clearBacklog")
    assert refused.status_code == 500
    assert "Subscription broken" in refused.text
    assert cursor.backlog == 0
    await admin.done("POST", "~/namespaces/t1/n1/clearBacklog/whole")


async def test_a_broken_subscription_can_be_deleted_and_then_retains_nothing(
    admin: Admin, topic: PersistentTopic
) -> None:
    await admin.done("DELETE", BROKEN)
    assert not topic.managed_ledger.broken_cursors
    assert (await admin.done("GET", TOPIC + "/subscriptions")).json() == ["whole"]
    assert (await admin.call("DELETE", BROKEN)).status_code == 404
    await admin.service.topics.unload(topic_name("a"))
    again = await admin.topic()
    assert not again.managed_ledger.broken_cursors
    await again.create_subscription("broken", EARLIEST, {})


async def test_a_namespace_unsubscribe_deletes_broken_subscriptions(
    admin: Admin, topic: PersistentTopic
) -> None:
    other = await admin.topic("b")
    await other.create_subscription("broken", EARLIEST, {})
    await admin.done("POST", "~/namespaces/t1/n1/unsubscribe/broken")
    assert not topic.managed_ledger.broken_cursors
    assert not other.subscriptions


async def test_partitions_with_a_broken_subscription_are_included(admin: Admin) -> None:
    parted = "~/persistent/t1/n1/p"
    await admin.done("PUT", parted + "/partitions", 2)
    await admin.done("PUT", parted + "/subscription/s", {"ledgerId": -1, "entryId": -1})
    positions = await admin.publish([b"x"] * MESSAGES, "p-partition-1")
    broken = await break_cursor(admin, "p-partition-1", "s", positions[2])
    assert (await admin.done("GET", parted + "/subscriptions")).json() == ["s"]
    stats = (await admin.done("GET", parted + "/partitioned-stats")).json()
    assert "does not exist" in stats["subscriptions"]["s"]["cursorError"]
    await admin.done("DELETE", parted + "/subscription/s")
    assert not broken.managed_ledger.broken_cursors
    assert (await admin.done("GET", parted + "/subscriptions")).json() == []


async def test_a_topic_with_only_broken_subscriptions_is_deleted_like_others(
    admin: Admin, topic: PersistentTopic
) -> None:
    await topic.delete_subscription("whole")
    with pytest.raises(PreconditionFailed, match="active producers/subscriptions"):
        await admin.service.topics.delete(topic_name("a"), force=False)


async def test_a_new_partition_gets_a_readable_copy_of_a_broken_subscription(
    admin: Admin,
) -> None:
    """Messages that arrive before the repair wait for the subscription as well."""
    path, first = "~/persistent/t1/n1/p", "p-partition-0"
    await admin.done("PUT", path + "/partitions", 1)
    topic = await admin.topic(first)
    await topic.create_subscription("broken", EARLIEST, {"team": "x"})
    positions = await admin.publish([b"x"] * MESSAGES, first)
    await break_cursor(admin, first, "broken", positions[2])
    await admin.done("POST", path + "/partitions", 2)
    actual = (await admin.topic("p-partition-1")).subscriptions["broken"]
    assert actual.cursor.properties == {"team": "x"}

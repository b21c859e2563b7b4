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
    """The topic, opened again after the ledger of the subscription's cursor was lost.

    `acked` is behind a message that is not: that does not fit the cursor's record.
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
    """With one subscription that is broken and one that is not."""
    made = await admin.topic()
    for name in ("broken", "whole"):
        await made.create_subscription(name, EARLIEST, {"team": name})
    positions = await admin.publish([b"x"] * MESSAGES)
    broken = await break_cursor(admin, "a", "broken", positions[2])
    assert list(broken.subscriptions) == ["whole"]
    return broken


async def test_it_is_listed_and_its_stats_say_what_is_wrong(
    admin: Admin, topic: PersistentTopic
) -> None:
    assert (await admin.done("GET", TOPIC + "/subscriptions")).json() == ["broken", "whole"]
    found = (await admin.done("GET", TOPIC + "/stats")).json()["subscriptions"]
    assert "does not exist" in found["broken"]["cursorError"]
    assert found["broken"]["msgBacklog"] == MESSAGES, "all that it may have left to consume"
    assert found["broken"]["subscriptionProperties"] == {"team": "broken"}
    assert "cursorError" not in found["whole"]
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
async def test_what_needs_its_cursor_is_refused_with_the_reason(
    admin: Admin, topic: PersistentTopic, method: str, path: str
) -> None:
    refused = await admin.call(method, BROKEN + path)
    assert refused.status_code == 500
    assert "Subscription broken of topic persistent://t1/n1/a cannot be read" in refused.text
    assert "delete it" in refused.text


async def test_what_concerns_all_subscriptions_is_done_to_the_others_first(
    admin: Admin, topic: PersistentTopic
) -> None:
    cursor = topic.subscriptions["whole"].cursor
    assert cursor.backlog == MESSAGES
    refused = await admin.call("POST", "~/namespaces/t1/n1/clearBacklog")
    assert refused.status_code == 500
    assert "Subscription broken" in refused.text
    assert cursor.backlog == 0
    await admin.done("POST", "~/namespaces/t1/n1/clearBacklog/whole")


async def test_it_can_be_deleted_and_holds_nothing_back_then(
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


async def test_it_is_deleted_with_those_of_its_name_in_the_namespace(
    admin: Admin, topic: PersistentTopic
) -> None:
    other = await admin.topic("b")
    await other.create_subscription("broken", EARLIEST, {})
    await admin.done("POST", "~/namespaces/t1/n1/unsubscribe/broken")
    assert not topic.managed_ledger.broken_cursors
    assert not other.subscriptions


async def test_partitions_where_it_is_broken_are_included(admin: Admin) -> None:
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


async def test_a_topic_is_not_deleted_unforced_for_having_only_broken_ones(
    admin: Admin, topic: PersistentTopic
) -> None:
    await topic.delete_subscription("whole")
    with pytest.raises(PreconditionFailed, match="active producers/subscriptions"):
        await admin.service.topics.delete(topic_name("a"), force=False)


async def test_a_new_partition_gets_a_broken_subscription_whole_with_its_properties(
    admin: Admin,
) -> None:
    """What is sent there until it is mended waits for it as well."""
    path, first = "~/persistent/t1/n1/p", "p-partition-0"
    await admin.done("PUT", path + "/partitions", 1)
    made = await admin.topic(first)
    await made.create_subscription("broken", EARLIEST, {"team": "x"})
    positions = await admin.publish([b"x"] * MESSAGES, first)
    await break_cursor(admin, first, "broken", positions[2])
    await admin.done("POST", path + "/partitions", 2)
    found = (await admin.topic("p-partition-1")).subscriptions["broken"]
    assert found.cursor.properties == {"team": "x"}

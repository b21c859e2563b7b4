"""What storage, the broker's own bounds and compaction keep from a subscription."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tests.support.memory_bookie import MemoryBookie

from magnetar.broker.dispatch.base import TURN_ENTRIES_MAX
from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.subscription.spec import SubType
from magnetar.compaction.artifact import Artifacts
from magnetar.compaction.records import CompactionRecord, compaction_key
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.records import encode
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.stores import StoreSpec

from .explained import attach, client_of, explain, explain_topic, first, follow
from .support import Admin, append, entry, topic_name


def bookie(admin: Admin) -> MemoryBookie:
    client: Any = admin.service.ledgers.client
    (found,) = client._context.bookies._bookies.values()
    assert isinstance(found, MemoryBookie)
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Lets the broker's tasks run until the condition holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_topic_whose_log_cannot_be_opened(admin: Admin) -> None:
    (position,) = await admin.publish([b"1"])
    await (await admin.topic()).create_subscription("s", EARLIEST, {})
    await admin.service.topics.unload(topic_name("a"))
    # The bundle's ledger list names a ledger whose record is gone: nobody knows its bookies.
    assert await admin.service.store.delete(ledger_key(position.ledger_id))
    for answer in (await explain_topic(admin), await explain(admin, "s")):
        (found,) = answer.findings
        assert found.code == "topic_unreadable"
        assert str(position.ledger_id) in str(found.evidence["error"])
        assert "magnetar bookie list" in found.next_step.text


async def test_a_subscription_whose_cursor_cannot_be_read(admin: Admin) -> None:
    topic = await admin.topic()
    await topic.create_subscription("s", EARLIEST, {})
    positions = await admin.publish([b"1", b"2", b"3"])
    cursor = topic.managed_ledger.cursors["s"]
    cursor.ack(*positions[1])
    await cursor.flush()
    assert cursor.log is not None
    lost = cursor.log.ledger_id
    await admin.service.topics.unload(topic_name("a"))
    assert await admin.service.store.delete(ledger_key(lost))
    for message in (None, positions[0]):
        found = await first(admin, "s", message)
        assert found.code == "cursor_unreadable"
        assert "does not exist" in str(found.evidence["error"])
    await follow(admin, found)
    missing = await admin.call("GET", "~/persistent/t1/n1/a/subscription/s/explain")
    assert missing.status_code == 404


async def test_an_entry_that_no_bookie_has(admin: Admin) -> None:
    topic = await admin.topic()
    await topic.create_subscription("s", EARLIEST, {})
    (position,) = await admin.publish([b"1"])
    await admin.service.topics.unload(topic_name("a"))
    topic = await admin.topic()
    del bookie(admin)._ledgers[position.ledger_id].entries[position.entry_id]
    consumer = await attach(admin, "s")
    dispatcher: Any = topic.subscriptions["s"].dispatcher
    await until(lambda: dispatcher.facts().failure is not None)
    for message in (None, position):
        found = await first(admin, "s", message)
        assert found.code == "ledger_unreadable"
        assert found.evidence["position"] == str(position)
        assert found.evidence["ensemble"] == ["memory"]
        assert f"magnetar ledger check {position.ledger_id}" in found.next_step.command
    assert not client_of(consumer).delivered


async def test_entries_that_are_being_read(admin: Admin) -> None:
    topic = await admin.topic()
    await topic.create_subscription("s", EARLIEST, {})
    (position,) = await admin.publish([b"1"])
    await admin.service.topics.unload(topic_name("a"))
    consumer = await attach(admin, "s")
    # In the same turn of the loop as the permits: the read has begun, and no bookie has answered.
    answer = await admin.service.diagnosis.explainer.subscription(await admin.topic(), "s")
    found = answer.findings[0]
    assert found.code == "reading"
    assert found.evidence["read_position"] == str(position)
    await client_of(consumer).got(1)


async def test_the_cap_of_the_broker(admin: Admin) -> None:
    unacked = admin.service.upkeep.unacked
    unacked.set(4, 0.5)
    await attach(admin, "s", name="hoarder")
    await admin.publish([b"x"] * 6)
    await unacked.check()
    subscription = (await admin.topic()).subscriptions["s"]
    await until(lambda: subscription.limits.max_unacked_per_subscription == 2)
    await admin.publish([b"y"])
    found = await first(admin, "s")
    assert found.code == "unacked_cap_broker"
    assert found.evidence["cap"] == 2
    assert found.evidence["most_at"] == "hoarder"
    assert found.evidence["policy"] == "maxUnackedMessagesPerBroker"
    assert "maxUnackedMessagesPerBroker" in found.next_step.text


async def test_a_full_look_ahead(admin: Admin) -> None:
    consumers = {
        name: await attach(admin, "s", SubType.Key_Shared, name=name, permits=0) for name in "ab"
    }
    subscription = (await admin.topic()).subscriptions["s"]
    subscription.limits.look_ahead_per_subscription = 5
    dispatcher = cast("Any", subscription.dispatcher)
    selector = dispatcher.selector
    owner = selector.select(selector.hash_of(b"k"))
    (other,) = [each for each in consumers.values() if each is not owner]
    for number in range(9):
        await append(await admin.topic(), entry(b"x", number, partition_key="k"))
    subscription.flow(other, 10)
    await until(lambda: len(dispatcher.waiting) == 5)
    findings = {each.code: each for each in (await explain(admin, "s")).findings}
    assert findings["key_held"].evidence["owner"] == owner.name
    assert findings["look_ahead_full"].evidence["waiting"] == 5
    assert findings["look_ahead_full"].evidence["look_ahead_max"] == 5


async def test_a_subscription_that_flows(admin: Admin) -> None:
    consumer = await attach(admin, "s", permits=0)
    producer = await admin.producer()
    count = TURN_ENTRIES_MAX + 100
    await admin.publish([b"x"] * count, producer=producer)
    assert (await first(admin, "s")).code == "no_permits"
    topic = await admin.topic()
    topic.subscriptions["s"].flow(consumer, 2 * count)
    # The dispatcher has used its turn of the loop, and continues in the next one.
    answer = await admin.service.diagnosis.explainer.subscription(topic, "s")
    found = answer.findings[0]
    assert found.code == "flowing"
    assert found.evidence["backlog"] == count
    assert found.evidence["readable"] == count - TURN_ENTRIES_MAX
    await client_of(consumer).got(count)
    assert (await first(admin, "s")).code == "in_flight"


async def test_a_message_that_was_compacted_away(admin: Admin, tmp_path: Path) -> None:
    topic = await admin.topic()
    positions = [await append(topic, entry(b"x", number, partition_key="k")) for number in range(2)]
    record = CompactionRecord(
        horizon=positions[0],
        log_created_ms=topic.managed_ledger.created_ms,
        attempt="1",
        store=StoreSpec("filesystem", str(tmp_path)),
        compacted_ms=1,
        files=(),
    )
    store = admin.service.store
    await store.put(compaction_key(topic.managed_ledger.name), encode(record))
    consumer = await attach(admin, "s", SubType.Exclusive, name="reader")
    consumer.compacted = await CompactedLog.open(
        topic.managed_ledger, Artifacts(store, ColdFiles()), admin.service.clock
    )
    found = await first(admin, "s", positions[0])
    assert found.code == "compacted_away"
    assert found.evidence["consumer"] == "reader"
    assert found.evidence["compacted_up_to"] == str(positions[0])
    assert (await first(admin, "s", Position(*positions[1]))).code == "in_flight"

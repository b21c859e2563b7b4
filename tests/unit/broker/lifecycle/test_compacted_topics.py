"""Topics that are compacted: entries that are not compacted yet stay, and so do the topics."""

from msgspec.structs import replace
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, World, world

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.records import (
    CompactionRecord,
    CompactionRequest,
    compaction_key,
    job_key,
    request_key,
)
from magnetar.core.ids import Position
from magnetar.metadata.records import encode
from magnetar.offload.records import RequestState
from magnetar.offload.stores import StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD, INACTIVE_TOPICS

DAY_MS = 24 * 3_600_000


async def compacted_to(w: World, topic: PersistentTopic, horizon: Position) -> None:
    ledger = topic.managed_ledger
    record = CompactionRecord(
        horizon=horizon,
        log_created_ms=ledger.created_ms,
        attempt="a",
        store=StoreSpec("filesystem", "/nowhere"),
        compacted_ms=1,
    )
    await w.service.store.put(compaction_key(ledger.name), encode(record))


async def test_retention_waits_for_the_horizon() -> None:
    async with world() as w:
        await w.set(COMPACTION_THRESHOLD, 1_000)
        topic, other = await w.topic("t"), await w.topic("other")
        await w.set(COMPACTION_THRESHOLD, 0, other)
        places = await w.publish(topic, 3 * ENTRIES_PER_LEDGER)
        await w.publish(other, 3 * ENTRIES_PER_LEDGER)
        await w.upkeep.trim()
        # Compaction is on and has not run: all stays.
        assert w.stored(topic)[0] == 3
        assert w.stored(other)[0] == 1
        await compacted_to(w, topic, places[ENTRIES_PER_LEDGER])
        await w.upkeep.trim()
        assert topic.managed_ledger.first_position.ledger_id == places[ENTRIES_PER_LEDGER].ledger_id
        # It is on where there is an artifact, whatever the threshold says.
        await w.set(COMPACTION_THRESHOLD, 0)
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 2
        await compacted_to(w, topic, places[-1])
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 1


async def test_retention_waits_for_a_job_that_compacts_for_the_first_time() -> None:
    async with world() as w:
        topic = await w.topic("t")
        store, name = w.service.store, topic.managed_ledger.name
        running = CompactionRequest(1, RequestState.RUNNING, "job")
        await store.put(request_key(name), encode(running))
        await store.put(job_key("job"), b"{}")
        await w.publish(topic, 3 * ENTRIES_PER_LEDGER)
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 3
        # If it dies, another one, or the topic's broker, takes the request up.
        await store.delete(job_key("job"))
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 3
        done = replace(running, state=RequestState.ERROR, job="", error="no space")
        await store.put(request_key(name), encode(done))
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 1


async def test_a_compacted_topic_is_in_use() -> None:
    async with world() as w:
        unused = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        }
        await w.set(INACTIVE_TOPICS, unused)
        topic, other = await w.topic("t"), await w.topic("other")
        (place,) = await w.publish(topic)
        await compacted_to(w, topic, place)
        await w.upkeep.delete_unused()
        for _ in range(2):
            w.clock.advance(DAY_MS)
            await w.upkeep.delete_unused()
        assert w.service.topics.loaded(topic.name) is topic
        assert w.service.topics.loaded(other.name) is None

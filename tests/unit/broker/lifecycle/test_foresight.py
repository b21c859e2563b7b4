"""What is predicted is what happens: over drawn logs, acknowledgments and policies."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, World, world

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.lifecycle.effect import Supposed, on_loaded, on_recorded
from magnetar.broker.lifecycle.enforcement import refusal
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import EARLIEST
from magnetar.documents.effect import Effect
from magnetar.policies.lifecycle import BACKLOG_QUOTA, COMPACTION_THRESHOLD, MESSAGE_TTL, RETENTION

ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
NAMES = ("a", "b", "c")

messages = st.lists(
    st.tuples(st.integers(0, 90), st.sampled_from([1, 900, 400_000])), min_size=1, max_size=24
)  # (seconds after the one before, bytes)
acks = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 23), st.integers(0, 6)), max_size=12
)  # (subscription, the first message, how many in a row; 0: all up to it)
retentions = st.one_of(
    st.just((0, 0)),
    st.tuples(st.sampled_from([-1, 1, 5, 20]), st.sampled_from([-1, 1, 2, 4])),
)
limits = st.one_of(st.none(), st.tuples(st.integers(0, 6_000_000), st.sampled_from(ACTIONS)))
ages = st.one_of(st.none(), st.tuples(st.integers(1, 1_500), st.sampled_from(ACTIONS)))


@st.composite
def supposed(draw: st.DrawFn) -> Supposed:
    minutes, size_mb = draw(retentions)
    quota: dict[str, Any] = {}
    if (size := draw(limits)) is not None:
        quota["destination_storage"] = {"limitSize": size[0], "limitTime": -1, "policy": size[1]}
    if (age := draw(ages)) is not None:
        quota["message_age"] = {"limitSize": -1, "limitTime": age[0], "policy": age[1]}
    return Supposed(
        {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size_mb},
        draw(st.sampled_from([0, 1, 30, 300, 1_200])),
        quota,
    )


async def fill(
    w: World,
    history: list[tuple[int, int]],
    subscriptions: int,
    acked: list[tuple[str, int, int]],
) -> PersistentTopic:
    topic = await w.topic("t", *NAMES[:subscriptions])
    places = []
    for after_s, size in history:
        w.clock.advance(after_s * 1000)
        places += await w.publish(topic, size_bytes=size)
    for name, first, count in acked:
        if name in topic.subscriptions and first < len(places):
            cursor = topic.subscriptions[name].cursor
            if not count:
                cursor.ack_cumulative(places[first])
            for place in places[first : first + count]:
                cursor.ack(*place)
    return topic


def standing(topic: PersistentTopic) -> tuple[int, int, int, dict[str, int]]:
    ledger = topic.managed_ledger
    backlogs = {name: each.cursor.backlog for name, each in topic.subscriptions.items()}
    return len(ledger.ledgers), ledger.bytes_total, ledger.entries_total, backlogs


async def check(topic: PersistentTopic, w: World, tried: Supposed, found: Effect) -> None:
    """Sets the quotas, runs the rounds, and compares the result with the prediction."""
    ledgers, size, entries, backlogs = standing(topic)
    await w.set(RETENTION, tried.retention, topic)
    await w.set(MESSAGE_TTL, tried.message_ttl, topic)
    await w.set(BACKLOG_QUOTA, tried.backlog_quota, topic)
    await w.upkeep.expire_messages()
    await w.upkeep.check_quotas()
    await w.upkeep.trim()
    after = standing(topic)
    gone = (ledgers - after[0], size - after[1], entries - after[2])
    assert (found.deletes.ledgers, found.deletes.bytes, found.deletes.entries) == gone
    lost = {
        name: found.expires.get(name, 0) + found.evicts.get(name, 0) for name in topic.subscriptions
    }
    assert lost == {name: backlogs[name] - after[3][name] for name in topic.subscriptions}
    expired = {name: each.expired_total for name, each in topic.subscriptions.items()}
    assert expired == {name: found.expires.get(name, 0) for name in topic.subscriptions}
    # An eviction by the second quota may have made room for the first. The round reports refused
    # producers as it found them, and a later producer is judged again.
    assert found.blocks_producers or await refusal(topic) is None


@settings(max_examples=150, deadline=None)
@given(messages, st.integers(0, 3), acks, st.integers(0, 1_500), supposed())
def test_on_a_loaded_topic(
    history: list[tuple[int, int]],
    subscriptions: int,
    acked: list[tuple[str, int, int]],
    later_s: int,
    tried: Supposed,
) -> None:
    async def run() -> None:
        async with world(retention_minutes=-1, retention_size_mb=-1) as w:
            topic = await fill(w, history, subscriptions, acked)
            w.clock.advance(later_s * 1000)
            before = standing(topic)
            found = await on_loaded(topic, w.service.policies, tried)
            assert standing(topic) == before  # to look changes nothing
            assert not found.estimated
            await check(topic, w, tried, found)

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(messages, st.integers(0, 2), st.integers(0, 1_500), retentions)
def test_retention_on_a_topic_that_is_not_loaded(
    history: list[tuple[int, int]], subscriptions: int, later_s: int, kept: tuple[int, int]
) -> None:
    """Its records suffice for that where no cursor has a ledger of its own."""

    async def run() -> None:
        async with world(retention_minutes=-1, retention_size_mb=-1) as w:
            topic = await fill(w, history, subscriptions, [])
            for each in topic.subscriptions.values():
                await each.clear_backlog()
            await w.service.topics.unload(topic.name)
            w.clock.advance(later_s * 1000)
            tried = Supposed(
                {"retentionTimeInMinutes": kept[0], "retentionSizeInMB": kept[1]}, 0, {}
            )
            known = await w.service.ledgers.outline(ledger_name(topic.name))
            now_ms = w.clock.now_ms()
            found = await on_recorded(topic.name, known, w.service.policies, tried, now_ms, None)
            assert not found.estimated
            await check(await w.topic(), w, tried, found)

    asyncio.run(run())


async def test_what_was_acknowledged_behind_what_expires_lets_a_ledger_go() -> None:
    """The mark runs on through it, over the end of the ledger: too rare to be drawn."""
    async with world(retention_minutes=-1, retention_size_mb=-1) as w:
        history = [(60, 1)] * (ENTRIES_PER_LEDGER + 2)
        topic = await fill(w, history, 1, [("a", 3, 3)])
        # Of the five of the first ledger three are older than that, and two are acknowledged.
        tried = Supposed({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, 230, {})
        found = await on_loaded(topic, w.service.policies, tried)
        assert (found.expires, found.deletes.ledgers) == ({"a": 3}, 1)
        await check(topic, w, tried, found)


async def test_a_topic_that_is_not_loaded_keeps_what_is_not_compacted_yet() -> None:
    async with world(retention_minutes=-1, retention_size_mb=-1) as w:
        topic = await fill(w, [(60, 1)] * (ENTRIES_PER_LEDGER * 2 + 1), 0, [])
        await w.service.topics.unload(topic.name)
        tried = Supposed({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, 0, {})
        known = await w.service.ledgers.outline(ledger_name(topic.name))
        for limit, deletes in ((None, True), (EARLIEST, False)):
            found = await on_recorded(
                topic.name, known, w.service.policies, tried, w.clock.now_ms(), limit
            )
            assert bool(found.deletes.ledgers) is deletes


async def test_retention_deletes_nothing_that_is_not_compacted_yet() -> None:
    """The prediction respects compaction's horizon, loaded or not, as the deletion does."""
    async with world(retention_minutes=-1, retention_size_mb=-1) as w:
        history = [(60, 1)] * (ENTRIES_PER_LEDGER * 2 + 1)
        topic = await fill(w, history, 0, [])
        tried = Supposed({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, 0, {})
        assert (await on_loaded(topic, w.service.policies, tried)).deletes.ledgers == 2
        await w.set(COMPACTION_THRESHOLD, 1_000)
        found = await on_loaded(topic, w.service.policies, tried)
        assert found.deletes.ledgers == 0
        await check(topic, w, tried, found)

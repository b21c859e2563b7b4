"""Each reason why producers are refused or slow, and the bytes on bookies by reason."""

from typing import Any, cast

import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.broker.explain.refusals import REFUSALS_PER_TOPIC_MAX, RecentRefusals, Refusal
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position
from magnetar.documents.explain import Finding
from magnetar.ledger.bookies import LocalBookies

from .explained import attach, explain_topic, follow
from .support import Admin, Peer

QUOTA = {"limitSize": 1, "limitTime": -1}


async def first(admin: Admin) -> Finding:
    return (await explain_topic(admin)).findings[0]


async def with_mode(admin: Admin, name: str, mode: AccessMode) -> Producer:
    producer = Producer(
        1, name, Peer(), epoch=0, generated_name=False, access_mode=mode, topic_epoch=None,
        request_id=1, connected_since_ms=1_700_000_000_000,
    )  # fmt: skip
    await (await admin.topic()).add_producer(producer)
    return producer


async def test_nothing_refuses_producers(admin: Admin) -> None:
    await admin.producer(name="busy")
    found = await first(admin)
    assert found.code == "publishing"
    assert found.evidence["producers"] == ["busy"]


@pytest.mark.parametrize(
    ("action", "code"),
    [("producer_request_hold", "quota_hold"), ("producer_exception", "quota_exception")],
)
async def test_a_quota_names_the_slowest_subscription(admin: Admin, action: str, code: str) -> None:
    await admin.done(
        "POST",
        "~/namespaces/t1/n1/backlogQuota?backlogQuotaType=destination_storage",
        QUOTA | {"policy": action},
    )
    await attach(admin, "laggard", permits=0)
    await admin.publish([b"1", b"2"])
    found = await first(admin)
    assert found.code == code
    assert found.evidence["subscription"] == "laggard"
    assert found.evidence["level"] == "namespace"
    assert cast("int", found.evidence["backlog_bytes"]) > 1
    await follow(admin, found)
    assert (await first(admin)).code == "publishing"


async def test_a_publish_rate_names_its_level_and_who_waits(admin: Admin) -> None:
    await admin.topic()
    await admin.done("POST", "~/persistent/t1/n1/a/publishRate", {"publishThrottlingRateInMsg": 1})
    producer = await admin.producer(name="fast")
    topic = await admin.topic()
    gate: Any = topic.gate
    gate.limiter.take(1_000, 0)
    gate.limiter.wait(lambda: None)
    producer.held = cast("Any", object())
    found = await first(admin)
    producer.held = None
    assert found.code == "publish_rate_limited"
    assert found.evidence["waiting_producers"] == ["fast"]
    assert found.evidence["level"] == "topic"
    await follow(admin, found)
    assert (await first(admin)).code == "publishing"


async def test_producers_at_their_maximum(admin: Admin) -> None:
    await admin.done("POST", "~/namespaces/t1/n1/maxProducersPerTopic", 1)
    await admin.producer(name="only")
    found = await first(admin)
    assert found.code == "producers_cap"
    assert found.evidence["producers"] == ["only"]
    await follow(admin, found)
    assert (await first(admin)).code == "publishing"


async def test_an_exclusive_producer_and_those_that_wait(admin: Admin) -> None:
    await with_mode(admin, "owner", AccessMode.EXCLUSIVE)
    await with_mode(admin, "queued", AccessMode.WAIT_FOR_EXCLUSIVE)
    found = await first(admin)
    assert found.code == "exclusive_producer"
    assert found.evidence["exclusive_producer"] == "owner"
    assert found.evidence["waiting"] == ["queued"]
    assert found.evidence["epoch"] == 0
    await follow(admin, found)
    assert (await first(admin)).code == "publishing"


async def test_a_terminated_topic(admin: Admin) -> None:
    await admin.publish([b"1"])
    await (await admin.topic()).terminate()
    assert (await first(admin)).code == "topic_terminated"


async def test_a_failed_append(admin: Admin) -> None:
    topic = await admin.topic()
    topic.publish_failed(PersistenceError("no bookie answers"))
    found = await first(admin)
    assert found.code == "publish_failed"
    assert found.evidence["error"] == "no bookie answers"
    assert found.since is not None


async def test_too_few_bookies(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    await admin.topic()
    client: Any = admin.service.ledgers.client
    monkeypatch.setattr(client._context, "bookies", LocalBookies([]), raising=False)
    found = await first(admin)
    assert found.code == "bookies_missing"
    assert found.evidence["bookies_running"] == 0
    assert found.evidence["copies_needed"] == 1


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        ("AUTHORIZATION_ERROR", "Client is not authorized to Produce", "right_missing"),
        ("INCOMPATIBLE_SCHEMA", "Incompatible schema", "schema_incompatible"),
        ("METADATA_ERROR", "Encryption is required in t", "encryption_required"),
        ("PRODUCER_FENCED", "Topic epoch has already moved", "producer_fenced"),
        ("UNKNOWN_ERROR", "other", "producer_refused"),
    ],
)
async def test_a_refused_producer(admin: Admin, error: str, text: str, code: str) -> None:
    topic = await admin.topic()
    refused = Refusal("producer", "p", "", "app", "/127.0.0.1:1", error, text)
    for _ in range(2):
        admin.service.refusals.record(topic.full_name, refused)
    found = await first(admin)
    assert found.code == code
    assert found.evidence["text"] == text
    assert found.evidence["times"] == 2
    assert found.evidence["role"] == "app"
    admin.service.refusals.attached(topic.full_name, "producer", "p")
    assert (await first(admin)).code == "publishing"


async def test_a_topic_deleted_as_inactive(admin: Admin) -> None:
    missing = await admin.call("GET", "~/persistent/t1/n1/a/explain")
    assert missing.status_code == 404
    topic = await admin.topic()
    await admin.done(
        "POST",
        "~/namespaces/t1/n1/inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 1,
            "deleteWhileInactive": True,
        },
    )
    topic.last_active_ms = 1
    await admin.service.upkeep.delete_unused()
    found = await first(admin)
    assert found.code == "deleted_as_inactive"
    assert found.evidence["last_active"] == "1970-01-01T00:00:00.001Z"
    await follow(admin, found)
    assert (await first(admin)).code == "publishing"


async def test_the_reasons_add_up_to_the_bytes_on_the_bookies(admin: Admin) -> None:
    consumer = await attach(admin, "fast", name="f")
    await attach(admin, "slow", permits=0, name="s")
    topic = await admin.topic()
    for round_ in range(3):
        await admin.publish([b"x" * 1_000] * 5)
        await admin.service.topics.unload(topic.name)
        topic = await admin.topic()
        if round_ == 0:
            await topic.subscriptions["slow"].clear_backlog()
    consumer = await attach(admin, "fast", name="f")
    last = topic.managed_ledger.last_confirmed
    topic.subscriptions["fast"].ack_one(consumer, last.ledger_id, last.entry_id - 1)
    await topic.subscriptions["fast"].cursor.flush()
    await admin.publish([b"y" * 500])
    topic.managed_ledger.set_retention(-1, -1)
    answer = await explain_topic(admin)
    assert answer.disk is not None
    bookie: Any = admin.service.ledgers.client
    (memory,) = bookie._context.bookies._bookies.values()
    assert isinstance(memory, MemoryBookie)
    stored = sum(
        len(data) for ledger in memory._ledgers.values() for data in ledger.entries.values()
    )
    assert answer.disk.exact
    assert answer.disk.bytes == stored
    assert sum(answer.disk.by_reason.values()) == stored
    assert sum(use.bytes for use in answer.disk.ledgers) == stored
    assert set(answer.disk.by_reason) == {"cursors", "open_ledger", "subscription/fast"}
    assert Position(*last) < topic.managed_ledger.last_confirmed


def test_refusals_are_bounded_and_cut() -> None:
    class Now:
        def now_ms(self) -> int:
            return 1_000_000

        def monotonic(self) -> float:
            return 0.0

    refusals = RecentRefusals(Now())
    for number in range(REFUSALS_PER_TOPIC_MAX + 5):
        refusals.record(
            "t", Refusal("producer", f"{number}" * 999, "", "", "h:1", "E", "x" * 9_999)
        )
    kept = refusals.of("t")
    assert len(kept) == REFUSALS_PER_TOPIC_MAX
    assert all(len(one.text) == 500 and len(one.name) == 256 for one in kept)

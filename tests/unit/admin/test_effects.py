"""The effects of requests, by age, by type of topic, and by the records of jobs."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.ledger.stage import publish

from magnetar.admin.http.bodies import BODY_BYTES_MAX
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.compaction import records as compaction
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST as FIRST
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.metadata.records import encode
from magnetar.offload import records as offload
from magnetar.offload.stores import StoreSpec

from .support import Admin, Peer, topic_name

TOPICS = "~/persistent/t1/n1"
TOPIC = TOPICS + "/a"
NAMESPACE = "~/namespaces/t1/n1"
EARLIEST = {"ledgerId": -1, "entryId": -1}
FOLDER = StoreSpec("filesystem", "/cold")


class LaterClock(SystemClock):
    """Advances the clock, so that the messages are old."""

    passed_s = 1_000

    def now_ms(self) -> int:
        return super().now_ms() + self.passed_s * 1000

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s


async def backlogs(admin: Admin, local: str = "a") -> dict[str, int]:
    topic = await admin.topic(local)
    return {name: item.cursor.backlog for name, item in topic.subscriptions.items()}


async def stats(admin: Admin, path: str = TOPIC) -> dict[str, Any]:
    actual: dict[str, Any] = (await admin.done("GET", path + "/stats")).json()
    return actual


@pytest.mark.parametrize("of", ["subscription/s", "all_subscription"])
async def test_messages_expire_by_their_age_in_seconds_in_every_partition(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    path, parts = TOPICS + "/p", ["p-partition-0", "p-partition-1"]
    await admin.done("PUT", path + "/partitions", len(parts))
    for subscription in ("s", "t"):
        await admin.done("PUT", f"{path}/subscription/{subscription}", EARLIEST)
    for part in parts:
        await admin.publish([b"m0", b"m1"], part)
    expire = f"{path}/{of}/expireMessages/"
    monkeypatch.setattr(admin.service.clock, "_clock", LaterClock())
    await admin.done("POST", f"{expire}{LaterClock.passed_s + 900}")
    assert (await admin.call("POST", expire + "-1")).status_code in (404, 409)
    for part in parts:
        assert await backlogs(admin, part) == {"s": 2, "t": 2}
    await admin.done("POST", f"{expire}{LaterClock.passed_s - 900}")
    for part in parts:
        assert await backlogs(admin, part) == {"s": 0, "t": 2 if of.endswith("/s") else 0}


async def test_a_namespace_is_unsubscribed_in_topics_of_both_kinds(admin: Admin) -> None:
    name = parse_topic("non-persistent://t1/n1/np")
    topic = await admin.service.topics.get_or_open(name, create=True)
    spec = ConsumerSpec(7, "c")
    await topic.subscribe(SubscribeRequest("s", spec), Consumer(spec, Peer(), admin.service.clock))
    await admin.done("PUT", TOPIC + "/subscription/s")
    answer = await admin.call("POST", NAMESPACE + "/unsubscribe/s")
    assert answer.status_code == 412, "its consumer is at a topic that is not persistent"
    assert await backlogs(admin) == {}
    await admin.done("POST", NAMESPACE + "/clearBacklog")


async def test_a_topic_that_is_deleted_meanwhile_does_not_stop_a_namespaces_request(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for local in "abc":
        await admin.done("PUT", f"{TOPICS}/{local}/subscription/s", EARLIEST)
        await admin.publish([b"x"], local)
    names: Callable[..., Awaitable[list[TopicName]]] = admin.service.topics.names

    async def then_deleted(namespace: NamespaceName, domain: str) -> list[TopicName]:
        actual = await names(namespace, domain)
        with contextlib.suppress(Exception):
            await admin.service.topics.delete(topic_name("b"), force=True)
        return actual

    monkeypatch.setattr(admin.service.topics, "names", then_deleted)
    await admin.done("POST", NAMESPACE + "/clearBacklog")
    assert [await backlogs(admin, local) for local in "ac"] == [{"s": 0}] * 2
    assert not await admin.service.topics.exists(topic_name("b"))


async def test_stats_show_offloaded_bytes_and_the_last_failure(admin: Admin) -> None:
    topic = await admin.topic()
    ledger = topic.managed_ledger
    moved = {}
    for size, at_ms in ((70, 5), (30, 3)):
        ledger_id, _ = await publish(ledger, b"x" * size)
        await admin.done("PUT", TOPIC + f"/subscription/s{size}", EARLIEST)
        await ledger.roll_over()
        record = offload.OffloadRecord(ledger_id, "a", FOLDER, "p", 9, 1, size, 1, 1, 2, at_ms)
        moved[at_ms] = ledger_id
        key = offload.offload_key(ledger.name, ledger_id)
        await admin.service.store.put(key, encode(record))
    policies = {
        "managedLedgerOffloadDriver": "filesystem",
        "managedLedgerOffloadBucket": "/cold",
    }
    await admin.service.resources.update_policies(
        NamespaceName("t1", "n1"), lambda document: {**document, "offload_policies": policies}
    )
    for state, failed_ms in ((offload.RequestState.SUCCESS, 0), (offload.RequestState.ERROR, 9)):
        request = offload.OffloadRequest(FIRST, 1, state, finished_ms=9)
        await admin.service.store.put(offload.request_key(ledger.name), encode(request))
        actual = await stats(admin)
        assert actual["offloadedStorageSize"] == 100
        assert actual["lastOffloadLedgerId"] == moved[5]
        assert actual["lastOffloadSuccessTimeStamp"] == 5
        assert actual["lastOffloadFailureTimeStamp"] == failed_ms


async def test_stats_show_the_last_compaction_and_the_last_failure(admin: Admin) -> None:
    topic = await admin.topic()
    name, created_ms = topic.managed_ledger.name, topic.managed_ledger.created_ms
    request = compaction.CompactionRequest(
        1, offload.RequestState.ERROR, finished_ms=7, failed_ms=7
    )
    store = admin.service.store
    await store.put(compaction.request_key(name), encode(request))
    nothing = {
        "lastCompactionRemovedEventCount": 0,
        "lastCompactionSucceedTimestamp": 0,
        "lastCompactionFailedTimestamp": 7,
        "lastCompactionDurationTimeInMills": 0,
    }
    assert (await stats(admin))["compaction"] == nothing
    for of_ms in (created_ms, created_ms - 1):
        record = compaction.CompactionRecord(
            FIRST, of_ms, "a", FOLDER, 5, messages_removed=3, duration_ms=2
        )
        await store.put(compaction.compaction_key(name), encode(record))
        expected = {
            "lastCompactionRemovedEventCount": 3,
            "lastCompactionSucceedTimestamp": 5,
            "lastCompactionFailedTimestamp": 7,
            "lastCompactionDurationTimeInMills": 2,
        }
        # An artifact of an older log with that name does not belong to the topic.
        actual = (await stats(admin))["compaction"]
        assert actual == (expected if of_ms == created_ms else nothing)


async def test_an_offload_without_a_position_includes_all_ledgers(admin: Admin) -> None:
    await admin.done("PUT", TOPIC + "/subscription/keeps")
    topic = await admin.topic()
    await publish(topic.managed_ledger, b"x")
    await topic.managed_ledger.roll_over()
    await publish(topic.managed_ledger, b"y")
    latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
    # Without a store, offloading is an error only if there are ledgers to offload.
    for body, status in ((EARLIEST, "SUCCESS"), ({}, "ERROR"), (latest, "ERROR")):
        await admin.done("PUT", TOPIC + "/offload", body)
        assert (await admin.done("GET", TOPIC + "/offload")).json()["status"] == status


async def test_a_compaction_includes_every_existing_partition(admin: Admin) -> None:
    path = TOPICS + "/p"
    await admin.done("PUT", path + "/partitions", 3)
    await admin.done("DELETE", path + "-partition-0")
    await admin.done("PUT", path + "/compaction")
    names = [f"t1/n1/persistent/p-partition-{index}" for index in range(3)]
    store = admin.service.store
    asked = [await store.get(compaction.request_key(name)) is not None for name in names]
    assert asked == [False, True, True]
    assert (await admin.done("GET", path + "/compaction")).json()["status"] == "RUNNING"
    # A failure of one partition is the topic's failure.
    for name, state, error in (
        (names[1], offload.RequestState.SUCCESS, ""),
        (names[2], offload.RequestState.ERROR, "no"),
    ):
        ended = compaction.CompactionRequest(1, state, error=error, finished_ms=7, failed_ms=7)
        await store.put(compaction.request_key(name), encode(ended))
    actual = (await admin.done("GET", path + "/compaction")).json()
    assert actual == {"status": "ERROR", "lastError": "no"}


async def test_internal_stats_show_offloaded_ledgers_under_any_policy(
    admin: Admin,
) -> None:
    """Operators use this to learn why the bookies have no copies of a ledger."""
    topic = await admin.topic()
    ledger = topic.managed_ledger
    await admin.done("PUT", TOPIC + "/subscription/keeps", EARLIEST)
    ids = []
    for _ in range(2):
        ids.append((await publish(ledger, b"x"))[0])
        await ledger.roll_over()
    record = offload.OffloadRecord(ids[0], "a", FOLDER, "p", 9, 1, 70, 1, 1, 2, 5)
    await admin.service.store.put(offload.offload_key(ledger.name, ids[0]), encode(record))
    actual = (await admin.done("GET", TOPIC + "/internalStats")).json()
    assert {item["ledgerId"]: item["offloaded"] for item in actual["ledgers"]} == {
        **dict.fromkeys((item.ledger_id for item in ledger.ledgers), False),
        ids[0]: True,
    }
    info = (await admin.done("GET", TOPIC + "/internal-info")).json()
    assert [item["isOffloaded"] for item in info["ledgers"]][:2] == [True, False]


async def test_stats_show_the_limits_of_both_backlog_quotas(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    limits = "backlogQuotaLimitSize", "backlogQuotaLimitTime"

    async def shown() -> tuple[int, ...]:
        actual = await stats(admin)
        return tuple(actual[item] for item in limits)

    assert await shown() == (-1, -1)
    for kind, limit, expected in (
        ("message_age", {"limitTime": 60}, (-1, 60)),
        ("destination_storage", {"limitSize": 1_000}, (1_000, 60)),
    ):
        body = {"policy": "producer_exception", **limit}
        await admin.done("POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType={kind}", body)
        assert await shown() == expected
    await admin.done("DELETE", NAMESPACE + "/backlogQuota?backlogQuotaType=message_age")
    assert await shown() == (1_000, -1)


async def test_a_body_may_have_the_maximum_size(admin: Admin) -> None:
    document = b'{"adminRoles":[],"allowedClusters":["standalone"]}'
    for size, status in ((BODY_BYTES_MAX, 204), (BODY_BYTES_MAX + 1, 413)):
        answer = await admin.call("PUT", "~/tenants/t9", document.rjust(size))
        assert answer.status_code == status


async def test_a_topic_is_in_use_until_its_last_client_leaves(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deletion for inactivity counts from that moment."""
    topic = await admin.topic()
    producer = await admin.producer()
    consumer = await admin.consumer("s", SubType.Shared)
    clock = LaterClock()
    monkeypatch.setattr(admin.service.clock, "_clock", clock)
    for leave in (
        lambda: topic.remove_producer(producer),
        lambda: topic.remove_consumer(topic.subscriptions["s"], consumer),
    ):
        clock.passed_s += 1_000
        before_ms = admin.service.clock.now_ms()
        assert topic.last_active_ms < before_ms
        leave()
        assert topic.last_active_ms >= before_ms


RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 1,
    "relativeToPublishRate": False,
}


async def test_a_namespace_is_not_created_with_unsupported_policies(admin: Admin) -> None:
    for asked, status in ((True, 405), (False, 204)):
        body = {"replicatorDispatchRate": {"standalone": RATE}} if asked else {}
        answer = await admin.call("PUT", "~/namespaces/t1/n2", body)
        assert answer.status_code == status, answer.text
        status = (await admin.call("GET", "~/namespaces/t1/n2")).status_code
        assert status == (404 if asked else 200)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"migrated": True}, 405, "Migration of a namespace"),
        ({"clusterDispatchRate": {"local": {}}}, 405, "set topicDispatchRate"),
        ({"schema_auto_update_compatibility_strategy": "Forward"}, 405, "set that instead"),
        ({"schema_auto_update_compatibility_strategy": "x"}, 412, "must be one of"),
        ({"allowed_clusters": ["x"]}, 403, "Cluster [x] is not in the list of allowed clusters"),
    ],
)
async def test_a_namespace_is_not_created_with_what_its_routes_refuse(
    admin: Admin, body: object, status: int, reason: str
) -> None:
    answer = await admin.call("PUT", "~/namespaces/t1/n2", body)
    assert (answer.status_code, reason in answer.json()["reason"]) == (status, True), answer.text
    assert (await admin.call("GET", "~/namespaces/t1/n2")).status_code == 404


@pytest.mark.parametrize("strategy", ["Full", "", None])
async def test_a_namespace_is_created_with_the_old_strategy_that_clients_send_unasked(
    admin: Admin, strategy: str | None
) -> None:
    body = {"schema_auto_update_compatibility_strategy": strategy}
    await admin.done("PUT", "~/namespaces/t1/n2", body)


async def test_a_namespace_may_be_created_for_the_local_cluster_only(admin: Admin) -> None:
    await admin.done("PUT", "~/clusters/c2", {"serviceUrl": "http://x"})
    tenant = {"adminRoles": [], "allowedClusters": ["standalone", "c2"]}
    await admin.done("POST", "~/tenants/t1", tenant)
    answer = await admin.call(
        "PUT", "~/namespaces/t1/n2", {"allowed_clusters": ["standalone", "c2"]}
    )
    assert (answer.status_code, "beyond the local cluster" in answer.text) == (405, True)
    await admin.done("PUT", "~/namespaces/t1/n2", {"allowed_clusters": ["standalone"]})
    document = (await admin.call("GET", "~/namespaces/t1/n2")).json()
    assert document["allowed_clusters"] == ["standalone"]

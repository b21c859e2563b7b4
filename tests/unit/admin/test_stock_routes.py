"""Routes of Pulsar that few tools use: those that work, and those that say why they do not."""

import signal
from typing import Any

import pytest

from magnetar.core.hashing import bundle_hash
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key

from .support import Admin, topic_name

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
SUBSCRIPTION = TOPIC + "/subscription/s"
REFUSALS: list[tuple[str, str, Any, int, str]] = [
    ("POST", SUBSCRIPTION + "/replicatedSubscriptionStatus", True, 405, "Replicated subscriptions"),
    ("PUT", TOPIC + "/shadowTopics", ["persistent://t1/n1/b"], 405, "Shadow topics are not"),
    ("PUT", TOPIC + "/shadowTopics", [], 412, "Cannot specify empty shadow topics"),
    ("POST", NAMESPACE + "/allowedTopicPropertyKeysForMetrics", ["a"], 405, "Labels of metrics"),
    ("POST", NAMESPACE + "/migration", True, 405, "Migration of a namespace"),
    ("GET", NAMESPACE + "/scanOffloadedLedgers", None, 405, "internalStats"),
    ("POST", "~/clusters/standalone/migrate?migrated=true", {}, 405, "Migration of a cluster"),
    ("GET", "~/clusters/standalone/migrate", None, 404, "Cluster does not exist"),
    ("POST", "~/clusters/standalone/peers", ["standalone"], 412, "itself can't be part"),
    ("POST", "~/clusters/standalone/peers", ["no-such"], 412, "Peer cluster no-such does not"),
    ("POST", "~/clusters/no-such/peers", [], 404, "Cluster does not exist"),
    ("GET", "~/broker-stats/mbeans", None, 405, "no JVM"),
    ("GET", "~/broker-stats/allocator-stats/default", None, 405, "does not use Netty"),
    ("GET", "~/broker-stats/allocator-stats/other", None, 406, "Invalid allocator name : other"),
    ("GET", "~/broker-stats/bookieops", None, 405, "Pending operations"),
    ("GET", "~/broker-stats/broker-resource-availability/t1/n1", None, 409, "does not support"),
    ("POST", "~/metadata/migration/start", None, 400, "Target URL is required"),
    ("POST", "~/metadata/migration/start?target=etcd:x", None, 400, "not configured for migration"),
    ("POST", NAMESPACE + "/allowedClusters", ["no-such"], 403, "not in the list of allowed"),
    ("POST", NAMESPACE + "/allowedClusters", [], 400, "do not contain the replication cluster"),
    ("POST", "/topics/persistent/t1/n1/a", {}, 404, "Producing and consuming over REST is not"),
    ("GET", "/admin/clusters", None, 404, "The V1 API is not offered"),
    ("GET", "/lookup/v2/destination/persistent/t1/standalone/n1/a", None, 404, "The V1 API is"),
    ("GET", TOPIC + "/getMessageIdByIndex?index=0", None, 412, "broker entry metadata is disabled"),
    ("POST", "~/non-persistent/t1/n1/a/trim", None, 405, "Trim on a non-persistent topic is not"),
    ("POST", "~/non-persistent/t1/n1/a/closeLedger", None, 405, "has no ledger"),
    ("POST", "~/persistent/t1/n1/none/closeLedger", None, 404, "Topic persistent://t1/n1/none not"),
    ("POST", "~/persistent/t1/n1/none/trim", None, 404, "Topic persistent://t1/n1/none not found"),
]
SUCCESSES: list[tuple[str, str, Any, int, Any]] = [
    ("GET", SUBSCRIPTION + "/replicatedSubscriptionStatus", None, 200,
     {"persistent://t1/n1/a": False}),
    ("POST", SUBSCRIPTION + "/replicatedSubscriptionStatus", False, 204, None),
    ("DELETE", TOPIC + "/shadowTopics", None, 204, None),
    ("GET", NAMESPACE + "/allowedTopicPropertyKeysForMetrics", None, 200, None),
    ("POST", NAMESPACE + "/allowedTopicPropertyKeysForMetrics", [], 204, None),
    ("DELETE", NAMESPACE + "/allowedTopicPropertyKeysForMetrics", None, 204, None),
    ("POST", NAMESPACE + "/migration", False, 204, None),
    ("POST", "~/clusters/standalone/migrate?migrated=false", {}, 200, None),
    ("POST", "~/clusters/standalone/peers", [], 204, None),
    ("GET", "~/metadata/migration/status", None, 200, {"phase": "NOT_STARTED"}),
    ("POST", NAMESPACE + "/allowedClusters", ["standalone"], 200, None),
    ("GET", NAMESPACE + "/allowedClusters", None, 200, ["standalone"]),
    ("DELETE", TOPIC + "/policies", None, 204, None),
    ("DELETE", "~/persistent/t1/n1/none/policies", None, 204, None),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "text"), REFUSALS)
async def test_what_is_not_offered_says_so(
    admin: Admin, method: str, path: str, body: Any, status: int, text: str
) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", SUBSCRIPTION)
    answer = await (admin.call(method, path) if body is None else admin.call(method, path, body))
    assert (answer.status_code, text in answer.json()["reason"]) == (status, True), answer.text


async def test_what_is_not_in_use_can_be_read_and_removed(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", SUBSCRIPTION)
    for method, path, body, status, document in SUCCESSES:
        answer = await (
            admin.call(method, path) if body is None else admin.call(method, path, body)
        )
        found = answer.json() if answer.content else None
        assert (answer.status_code, found) == (status, document), f"{method} {path}: {answer.text}"


async def test_the_bundle_of_a_topic(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    name = str(topic_name("a"))
    bundle = (await admin.done("GET", "/lookup/v2/topic/persistent/t1/n1/a/bundle")).text
    path = f"{NAMESPACE}/{bundle}"
    positions = {"namespace": "t1/n1", "bundle": bundle, "topicHashPositions": {}}
    found = (await admin.done("GET", f"{path}/topicHashPositions")).json()
    assert found == positions | {"topicHashPositions": {name: bundle_hash(name)}}
    other = (
        await admin.done("GET", f"{path}/topicHashPositions?topics=persistent://t1/n1/z")
    ).json()
    assert other == positions
    assert (await admin.done("GET", f"~/non-persistent/t1/n1/{bundle}")).json() == []
    refused = await admin.call("DELETE", path)
    assert (refused.status_code, refused.json()["reason"]) == (
        409,
        "Cannot delete non empty bundle",
    )
    wrong = await admin.call("DELETE", f"{NAMESPACE}/0x00000000_0x00000001")
    assert wrong.status_code == 412
    forced = await admin.call("DELETE", f"{path}?force=true")
    assert forced.status_code == 405
    assert (await admin.call("GET", TOPIC + "/stats")).status_code == 200
    await admin.done("DELETE", TOPIC)
    assert (await admin.done("DELETE", path)).status_code == 204


async def test_trim_deletes_the_ledgers_that_nothing_needs(admin: Admin) -> None:
    await admin.publish([b"1", b"2"])
    ledger = (await admin.topic()).managed_ledger
    before = ledger.ledgers[0].ledger_id
    await ledger.roll_over()
    await admin.done("POST", TOPIC + "/trim")
    assert before not in [info.ledger_id for info in ledger.ledgers]


async def test_the_newest_ledger_can_be_closed(admin: Admin) -> None:
    await admin.publish([b"1", b"2"])
    ledger = (await admin.topic()).managed_ledger
    (newest,) = ledger.ledgers
    await admin.done("POST", TOPIC + "/closeLedger")
    assert (newest.closed_ms > 0, newest.entries) == (True, 2)
    stored = await admin.service.store.get(managed_ledger_key(ledger.name))
    assert stored is not None
    recorded = decode_managed_ledger(stored.key, stored.value).ledgers
    assert [item for item in recorded if not item.closed_ms] == []


async def test_the_backlog_of_each_cursor(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", SUBSCRIPTION)
    await admin.publish([b"1", b"2", b"3"])
    found = (await admin.done("GET", TOPIC + "/backlog")).json()
    assert (found["totalMessages"], found["messageBacklog"]) == (3, 3)
    assert found["cursorDetails"]["s"]["cursorBacklog"] == 3
    assert [ledger["entries"] for ledger in found["dataLedgerDetails"]] == [3]


async def test_all_policies_of_a_topic_are_removed_at_once(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("POST", TOPIC + "/maxProducers", 3)
    await admin.done("POST", TOPIC + "/messageTTL?messageTTL=9&isGlobal=true")
    await admin.done("DELETE", TOPIC + "/policies")
    assert (await admin.done("GET", TOPIC + "/maxProducers")).text == ""
    assert (await admin.done("GET", TOPIC + "/messageTTL?isGlobal=true")).text == ""
    refused = await admin.call("DELETE", "~/persistent/t1/n1/a-partition-0/policies")
    assert refused.status_code == 412


async def test_subscriptions_of_one_topic_expire(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    path = TOPIC + "/subscriptionExpirationTime"
    await admin.done("POST", path + "?subscriptionExpirationTime=12")
    assert (await admin.done("GET", path)).json() == 12
    refused = await admin.call("POST", path + "?subscriptionExpirationTime=-2")
    assert (refused.status_code, refused.json()["reason"]) == (
        412,
        "Invalid value for subscription expiration time",
    )
    await admin.done("DELETE", path)
    assert (await admin.done("GET", path)).text == ""
    assert (await admin.done("GET", path + "?applied=true")).json() == 0


async def test_the_figures_of_a_broker(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", SUBSCRIPTION)
    await admin.publish([b"1", b"2"])
    documents = (await admin.done("GET", "~/broker-stats/metrics")).json()
    (namespace,) = [one for one in documents if one["dimensions"] == {"namespace": "t1/n1"}]
    assert namespace["metrics"]["brk_msg_backlog"] == 2
    assert namespace["metrics"]["brk_no_of_subscriptions"] == 1
    names = {name for one in documents for name in one["metrics"]}
    assert {"brk_ml_count", "brk_active_connections", "brk_health"} <= names


async def test_a_process_without_a_handler_of_sigterm_is_not_stopped(admin: Admin) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    refused = await admin.call("POST", "~/brokers/shutdown")
    assert (refused.status_code, "does not handle SIGTERM" in refused.text) == (405, True)
    limited = await admin.call("POST", "~/brokers/shutdown?maxConcurrentUnloadPerSec=1")
    assert (limited.status_code, "maxConcurrentUnloadPerSec" in limited.text) == (405, True)

"""Status and reason, request by request, as recorded from Apache Pulsar 4.2.4.

The cases of a table run in order, in namespace t1/n1 with topic `a` and partitioned topic `pt` of
four partitions. `~` is /admin/v2, `@` is /admin/v2/persistent/t1/n1. A reason of None is not
checked; "" is an empty body.
"""

import pytest

from magnetar.broker.cold.compaction_state import CARRIED_OUT_BY

from .support import NO_BODY, Admin

Case = tuple[str, str, object, int, str | None]

EXISTS = "This topic already exists"
TENANT = {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
CLUSTER = {"serviceUrl": "http://x:8080"}

CLUSTERS: list[Case] = [
    ("GET", "~/clusters/nope", NO_BODY, 404, "Cluster does not exist"),
    ("PUT", "~/clusters/c2", CLUSTER, 200, ""),
    ("PUT", "~/clusters/c2", CLUSTER, 409, "Cluster already exists"),
    ("POST", "~/clusters/c2", CLUSTER, 200, ""),
    ("POST", "~/clusters/nope", CLUSTER, 404, "Cluster does not exist"),
    ("PUT", "~/clusters/bad$name", CLUSTER, 412, "Cluster name is not valid"),
    ("PUT", "~/clusters/c3", {}, 200, ""),
    ("PUT", "~/clusters/c4", NO_BODY, 400, "cluster data is required"),
    (
        *("PUT", "~/clusters/c5", {"serviceUrl": "x:8080"}, 400),
        "Illegal service url, example: http://pulsar.example.com:8080",
    ),
    (
        *("PUT", "~/clusters/c5", {"brokerServiceUrl": "http://x:8080"}, 400),
        "Illegal broker service url, example: pulsar://pulsar.example.com:6650",
    ),
    (
        *("POST", "~/clusters/c2", {"serviceUrlTls": 5}, 400),
        "Illegal service tls url, example: https://pulsar.example.com:8443",
    ),
    ("DELETE", "~/clusters/c2", NO_BODY, 204, ""),
    ("DELETE", "~/clusters/c2", NO_BODY, 404, "Cluster does not exist"),
    ("GET", "~/clusters/standalone/failureDomains", NO_BODY, 200, None),
    (
        *("GET", "~/clusters/standalone/namespaceIsolationPolicies", NO_BODY, 404),
        "NamespaceIsolationPolicies for cluster standalone does not exist",
    ),
    ("GET", "~/clusters/standalone/peers", NO_BODY, 200, "[]"),
    (
        *("GET", "~/clusters/nope/namespaceIsolationPolicies", NO_BODY, 404),
        "Cluster nope does not exist.",
    ),
]
TENANTS: list[Case] = [
    ("GET", "~/tenants/nope", NO_BODY, 404, "Tenant does not exist"),
    ("PUT", "~/tenants/t2", TENANT, 204, ""),
    ("PUT", "~/tenants/t2", TENANT, 409, "Tenant already exist"),
    ("PUT", "~/tenants/t3", NO_BODY, 412, "TenantInfo is null"),
    ("PUT", "~/tenants/t3", {"adminRoles": []}, 412, "Clusters cannot be null"),
    ("PUT", "~/tenants/t3", {"allowedClusters": []}, 412, "Clusters cannot be empty or blank"),
    ("PUT", "~/tenants/t3", {"allowedClusters": ["nope"]}, 412, "Clusters do not exist"),
    (
        *("PUT", "~/tenants/t3", {**TENANT, "adminRoles": ["me "]}, 412),
        "AdminRoles contains whitespace in the beginning or end.",
    ),
    ("PUT", "~/tenants/ba%20d", TENANT, 412, "Tenant name is not valid"),
    ("PUT", "~/tenants/b@d", TENANT, 412, "Tenant name is not valid"),
    ("POST", "~/tenants/nope", TENANT, 404, "Tenant nope not found"),
    ("POST", "~/tenants/t2", TENANT, 204, ""),
    ("DELETE", "~/tenants/t1", NO_BODY, 409, "The tenant still has active namespaces"),
    (
        *("DELETE", "~/tenants/t2?force=true", NO_BODY, 405),
        "Broker doesn't allow forced deletion of tenants",
    ),
    ("DELETE", "~/tenants/t2", NO_BODY, 204, ""),
    ("DELETE", "~/tenants/t2", NO_BODY, 404, "Tenant doesn't exist"),
]
NAMESPACES: list[Case] = [
    ("GET", "~/namespaces/nope", NO_BODY, 404, "Tenant not found"),
    ("GET", "~/namespaces/t1/nope", NO_BODY, 404, "Namespace does not exist"),
    ("PUT", "~/namespaces/t1/n1", NO_BODY, 409, "Namespace already exists"),
    ("PUT", "~/namespaces/nope/n1", NO_BODY, 404, "Tenant does not exist"),
    ("PUT", "~/namespaces/t1/n3", {"bundles": {"numBundles": 0}}, 204, ""),
    ("PUT", "~/namespaces/t1/n3x", {"bundles": {"numBundles": -1}}, 204, ""),
    ("PUT", "~/namespaces/t1/b%20d", NO_BODY, 412, "Namespace name is not valid"),
    (
        *("PUT", "~/namespaces/t1/n5", {"replication_clusters": ["nope"]}, 403),
        "Cluster [nope] is not in the list of allowed clusters list for tenant [t1]",
    ),
    ("GET", "~/namespaces/t1/nope/topics", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "~/namespaces/t1/nope/bundles", NO_BODY, 404, "Namespace does not exist"),
    ("DELETE", "~/namespaces/t1/n3", NO_BODY, 204, ""),
    ("DELETE", "~/namespaces/t1/n3", NO_BODY, 404, "Namespace t1/n3 does not exist."),
    ("DELETE", "~/namespaces/t1/n1", NO_BODY, 409, "Cannot delete non empty namespace"),
    (
        *("DELETE", "~/namespaces/t1/n1?force=true", NO_BODY, 405),
        "Broker doesn't allow forced deletion of namespaces",
    ),
    ("GET", "~/namespaces/t1/n1/retention", NO_BODY, 200, ""),
    ("GET", "~/namespaces/t1/n1/messageTTL", NO_BODY, 200, ""),
    ("GET", "~/namespaces/t1/nope/messageTTL", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "~/namespaces/t1/n1/schemaAutoUpdateCompatibilityStrategy", NO_BODY, 204, ""),
    *(
        ("PUT", f"~/namespaces/t1/nope/{each}", body, 404, "Namespace does not exist")
        for each, body in (("schemaCompatibilityStrategy", "FULL"), ("properties", {"a": "b"}))
    ),
    ("PUT", "~/namespaces/t1/nope/unload", NO_BODY, 404, "Namespace not found"),
    ("PUT", "~/namespaces/t1/n1/0x00000000_0x40000000/unload", NO_BODY, 204, ""),
    (
        *("PUT", "~/namespaces/t1/n1/0x00000000_0x50000000/unload", NO_BODY, 412),
        (
            "Invalid upper boundary for bundle t1/n1/0x00000000_0x50000000. "
            "Expected upper boundary of t1/n1/0x00000000_0x40000000"
        ),
    ),
    ("POST", "~/namespaces/t1/n1/clearBacklog", NO_BODY, 204, ""),
    ("POST", "~/namespaces/t1/nope/clearBacklog", NO_BODY, 404, "Namespace not found"),
    ("POST", "~/namespaces/t1/n1/unsubscribe/missing", NO_BODY, 204, ""),
]
NO_PARENT = (
    'Can\'t create topic zz-partition-0 with "-partition-" followed by numeric value '
    "if there isn't a partitioned topic zz created."
)
BEYOND = (
    'Can\'t create topic pt-partition-7 with "-partition-" followed by a number smaller than '
    "number of partition of partitioned topic pt"
)
PARTITION_NAME = "Partitioned Topic Name should not contain '-partition-'"
TOPICS: list[Case] = [
    ("PUT", "@/a", NO_BODY, 409, EXISTS),
    ("PUT", "@/pt/partitions", 4, 409, EXISTS),
    ("PUT", "@/a/partitions", 4, 409, EXISTS),
    ("PUT", "@/pt", NO_BODY, 409, EXISTS),
    ("PUT", "@/pz/partitions", 0, 406, "Number of partitions should be more than 0"),
    ("PUT", "@/pz/partitions", -1, 406, "Number of partitions should be more than 0"),
    ("PUT", "@/pz/partitions", "abc", 400, None),
    ("PUT", "@/pt-partition-0/partitions", 4, 412, PARTITION_NAME),
    ("PUT", "@/zz-partition-0", NO_BODY, 412, NO_PARENT),
    ("PUT", "@/pt-partition-7", NO_BODY, 412, BEYOND),
    ("PUT", "@/pt-partition-1", NO_BODY, 409, EXISTS),
    ("PUT", "~/persistent/t1/nope/a", NO_BODY, 404, "Namespace not found"),
    ("PUT", "~/persistent/nope/n/p/partitions", 2, 404, "Namespace not found"),
    ("GET", "~/persistent/t1/nope", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "~/persistent/t1/nope/partitioned", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "@/nope/partitions", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    ("GET", "@/nope/partitions?checkAllowAutoCreation=true", NO_BODY, 200, None),
    ("POST", "@/pt/partitions", 6, 204, ""),
    ("POST", "@/pt/partitions", 6, 204, ""),
    (
        *("POST", "@/pt/partitions", 3, 422),
        "Desired partitions 3 can't be less than the current partitions 6.",
    ),
    (
        *("POST", "@/a/partitions", 3, 409),
        "Topic persistent://t1/n1/a is not the partitioned topic.",
    ),
    ("DELETE", "@/nope", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    ("DELETE", "@/nope/partitions", NO_BODY, 404, "Topic persistent://t1/n1/nope not found."),
    (
        *("DELETE", "@/a/partitions", NO_BODY, 409),
        (
            "persistent://t1/n1/a is a non-partitioned topic. Instead of calling "
            "delete-partitioned-topic please call delete."
        ),
    ),
    (
        *("DELETE", "@/pt", NO_BODY, 409),
        (
            "persistent://t1/n1/pt is a partitioned topic, instead of calling delete topic, "
            "please call delete-partitioned-topic."
        ),
    ),
    ("DELETE", "@/pt-partition-0", NO_BODY, 204, ""),
    ("GET", "@/pt-partition-0/properties", NO_BODY, 200, None),
    ("GET", "@/nope/properties", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    ("PUT", "@/nope/unload", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    ("PUT", "@/pt/unload", NO_BODY, 204, ""),
    ("POST", "@/nope/createMissedPartitions", NO_BODY, 404, None),
    (
        *("POST", "@/x-partition-1/createMissedPartitions", NO_BODY, 412),
        "Partitioned Topic Name should not contain '-partition-'",
    ),
    ("POST", "@/pt/createMissedPartitions", NO_BODY, 204, ""),
    ("DELETE", "@/a", NO_BODY, 204, ""),
    ("DELETE", "@/pt/partitions", NO_BODY, 204, ""),
    ("DELETE", "@/pt/partitions", NO_BODY, 404, "Topic persistent://t1/n1/pt not found."),
]
STATS: list[Case] = [
    ("GET", "@/pt/stats", NO_BODY, 404, "Topic persistent://t1/n1/pt not found"),
    ("GET", "@/nope/internalStats", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    ("GET", "@/nope/internal-info", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    (
        *("GET", "@/a/partitioned-stats", NO_BODY, 404),
        "Partitioned Topic persistent://t1/n1/a not found",
    ),
    ("GET", "@/pt-partition-1/partitioned-stats", NO_BODY, 412, PARTITION_NAME),
    (
        *("GET", "@/pt-partition-1/partitioned-internalStats", NO_BODY, 404),
        "Partitioned Topic persistent://t1/n1/pt-partition-1 not found",
    ),
    ("GET", "~/persistent/t1/nope/x/stats", NO_BODY, 404, "Namespace not found"),
    ("GET", "~/persistent/t1/nope/x/subscriptions", NO_BODY, 404, "Namespace not found"),
    (
        *("GET", "~/persistent/t1/nope/x/lastMessageId", NO_BODY, 404),
        "Topic persistent://t1/nope/x not found",
    ),
    (
        *("GET", "~/non-persistent/t1/n1/x/lastMessageId", NO_BODY, 405),
        "GetLastMessageId on a non-persistent topic is not allowed",
    ),
    (
        *("GET", "~/non-persistent/t1/n1/x/stats", NO_BODY, 404),
        "Topic non-persistent://t1/n1/x not found",
    ),
]
NO_SUB = "Subscription x not found for topic persistent://t1/n1/a"
NO_TOPIC = "Topic persistent://t1/n1/nope not found"
SUBSCRIPTIONS: list[Case] = [
    ("PUT", "@/a/subscription/s1", NO_BODY, 204, ""),
    ("PUT", "@/a/subscription/s1", NO_BODY, 409, "Subscription already exists for topic"),
    ("PUT", "@/fresh/subscription/s1", NO_BODY, 204, ""),
    ("PUT", "@/pt/subscription/s1", NO_BODY, 204, ""),
    ("PUT", "@/pt-partition-1/subscription/s9", NO_BODY, 204, ""),
    ("PUT", "~/persistent/t1/nope/x/subscription/s1", NO_BODY, 404, "Namespace not found"),
    ("GET", "@/a/subscription/s1/position/1", NO_BODY, 404, "Message not found"),
    ("GET", "@/a/subscription/s1/position/0", NO_BODY, 400, None),
    ("GET", "@/a/subscription/x/position/1", NO_BODY, 404, "Message not found"),
    ("GET", "@/nope/subscription/s/position/1", NO_BODY, 404, NO_TOPIC),
    (
        *("GET", "@/pt/subscription/s1/position/1", NO_BODY, 405),
        "Peek messages on a partitioned topic is not allowed",
    ),
    ("POST", "@/a/subscription/s1/resetcursor", {"ledgerId": 9, "entryId": 0}, 204, ""),
    ("POST", "@/a/subscription/s1/resetcursor", {"ledgerId": "x"}, 400, None),
    ("POST", "@/a/subscription/s1/resetcursor", [1], 400, None),
    ("POST", "@/a/subscription/s1/resetcursor", NO_BODY, 400, None),
    ("POST", "@/a/subscription/s1/resetcursor/0", NO_BODY, 204, ""),
    ("POST", "@/a/subscription/s1/resetcursor/-5", NO_BODY, 204, ""),
    ("POST", "@/a/subscription/s1/resetcursor/abc", NO_BODY, 404, None),
    ("POST", "@/a/subscription/x/resetcursor/0", NO_BODY, 404, NO_SUB),
    ("POST", "@/nope/subscription/s/resetcursor/0", NO_BODY, 404, NO_TOPIC),
    (
        *("POST", "@/pt/subscription/s1/resetcursor", {"ledgerId": 9, "entryId": 4}, 405),
        "Reset-cursor at position is not allowed for partitioned-topic",
    ),
    ("POST", "@/pt/subscription/s1/resetcursor/0", NO_BODY, 204, ""),
    ("POST", "@/a/subscription/s1/skip/0", NO_BODY, 204, ""),
    ("POST", "@/a/subscription/s1/skip/-1", NO_BODY, 204, ""),
    ("POST", "@/a/subscription/s1/skip/100", NO_BODY, 204, ""),
    ("POST", "@/a/subscription/x/skip/1", NO_BODY, 404, NO_SUB),
    (
        *("POST", "@/pt/subscription/s1/skip/1", NO_BODY, 405),
        "Skip messages on a partitioned topic is not allowed",
    ),
    ("POST", "@/a/subscription/x/skip_all", NO_BODY, 404, NO_SUB),
    ("POST", "@/pt/subscription/s1/skip_all", NO_BODY, 204, ""),
    (
        *("POST", "@/a/subscription/s1/expireMessages/1", NO_BODY, 409),
        (
            "Expire message by timestamp not issued on topic persistent://t1/n1/a for "
            "subscription s1 due to ongoing message expiration not finished or subscription "
            "almost catch  up. If it's performed on a partitioned topic operation might "
            "succeeded on other partitions, please check stats of individual partition."
        ),
    ),
    ("POST", "@/nope/all_subscription/expireMessages/1", NO_BODY, 404, NO_TOPIC),
    ("POST", "@/a/subscription/x/expireMessages/1", NO_BODY, 404, NO_SUB),
    ("POST", "@/a/subscription/x/analyzeBacklog", NO_BODY, 404, NO_SUB),
    ("GET", "@/a/subscription/x/properties", NO_BODY, 404, NO_SUB),
    ("DELETE", "@/a/subscription/s1", NO_BODY, 204, ""),
    (
        *("DELETE", "@/a/subscription/s1", NO_BODY, 404),
        "Subscription s1 not found for topic persistent://t1/n1/a",
    ),
    ("DELETE", "@/nope/subscription/s", NO_BODY, 404, NO_TOPIC),
    ("DELETE", "@/pt/subscription/s1", NO_BODY, 204, ""),
    (
        *("GET", "@/pt/subscription/s1/properties", NO_BODY, 404),
        "Subscription s1 not found for topic persistent://t1/n1/pt",
    ),
]
MESSAGES: list[Case] = [
    ("GET", "@/a/ledger/9999/entry/0", NO_BODY, 404, "Message id not found"),
    ("GET", "@/nope/ledger/1/entry/0", NO_BODY, 404, NO_TOPIC),
    ("GET", "@/nope/messageid/0", NO_BODY, 404, NO_TOPIC),
    ("POST", "@/nope/terminate", NO_BODY, 404, NO_TOPIC),
    (
        *("POST", "@/pt/terminate", NO_BODY, 405),
        "Termination of a partitioned topic is not allowed",
    ),
    (
        *("POST", "@/a/terminate/partitions", NO_BODY, 405),
        (
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
            "please use terminate commands"
        ),
    ),
    ("GET", "@/a/retention", NO_BODY, 200, ""),
    ("GET", "@/a/maxMessageSize", NO_BODY, 204, ""),
]
AWAITED = f'{{"status":"RUNNING","lastError":"waits: {CARRIED_OUT_BY}"}}'
NOT_OFFLOADED = (
    '{"status":"NOT_RUN","lastError":"","firstUnoffloadedMessage":{"ledgerId":-1,"entryId":-1,'
    '"partitionIndex":-1,"batchIndex":-1,"batchSize":0}}'
)
OTHERS: list[Case] = [
    ("GET", "/lookup/v2/topic/persistent/t1/nope/a", NO_BODY, 404, "Namespace not found"),
    (
        *("GET", "/lookup/v2/topic/persistent/t1/n1/a?listenerName=foo", NO_BODY, 500),
        "the broker do not have foo listener",
    ),
    ("GET", "/lookup/v2/topic/bad/t1/n1/a", NO_BODY, 404, None),
    ("GET", "~/brokers/backlog-quota-check", NO_BODY, 204, ""),
    ("GET", "~/nope", NO_BODY, 404, None),
    ("GET", "/", NO_BODY, 404, None),
    ("GET", "/admin/v3/functions/public/default", NO_BODY, 409, None),
    ("POST", "~/tenants", NO_BODY, 405, None),
    ("GET", "@/a/compaction", NO_BODY, 200, '{"status":"NOT_RUN","lastError":""}'),
    ("PUT", "@/a/compaction", NO_BODY, 204, ""),
    ("PUT", "@/a/compaction", NO_BODY, 409, "Compaction already in progress"),
    ("GET", "@/a/compaction", NO_BODY, 200, AWAITED),
    ("PUT", "@/pt/compaction", NO_BODY, 204, ""),
    ("GET", "@/pt/compaction", NO_BODY, 200, AWAITED),
    ("PUT", "@/nope/compaction", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    (
        *("GET", "@/a/offload", NO_BODY, 200),
        NOT_OFFLOADED,
    ),
    ("PUT", "@/a/offload", NO_BODY, 400, "messageId is null"),
    ("PUT", "@/a/offload", "x", 400, None),
    ("PUT", "@/a/offload", {"ledgerId": 0, "entryId": 0, "partitionIndex": -1}, 204, ""),
    (
        *("PUT", "@/pt/offload", {"ledgerId": 0, "entryId": 0}, 404),
        "Topic persistent://t1/n1/pt not found",
    ),
    ("GET", "@/pt/offload", NO_BODY, 404, "Topic persistent://t1/n1/pt not found"),
    ("GET", "@/nope/offload", NO_BODY, 404, "Topic persistent://t1/n1/nope not found"),
    ("GET", "~/persistent/t1/no/a/offload", NO_BODY, 404, "Topic persistent://t1/no/a not found"),
    ("GET", "~/non-persistent/t1/n1/a/offload", NO_BODY, 405, None),
    ("GET", "~/schemas/t1/n1/a/schema", NO_BODY, 404, "Schema not found"),
    ("GET", "~/schemas/t1/n1/a/schema/7", NO_BODY, 404, "Schema not found"),
    ("PUT", "@/a%2Fb", NO_BODY, 412, None),
]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(CLUSTERS, id="clusters"),
        pytest.param(TENANTS, id="tenants"),
        pytest.param(NAMESPACES, id="namespaces"),
        pytest.param(TOPICS, id="topics"),
        pytest.param(STATS, id="stats"),
        pytest.param(SUBSCRIPTIONS, id="subscriptions"),
        pytest.param(MESSAGES, id="messages"),
        pytest.param(OTHERS, id="others"),
    ],
)
async def test_statuses_and_reasons(admin: Admin, cases: list[Case]) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/a")
    await admin.done("PUT", "~/persistent/t1/n1/pt/partitions", 4)
    wrong: list[str] = []
    for method, path, body, status, reason in cases:
        full = "~/persistent/t1/n1" + path[1:] if path.startswith("@") else path
        response = await admin.call(method, full, body)
        actual: str | None = None
        if reason == "" or status == 200:
            actual = response.text
        elif response.status_code >= 400:
            assert response.headers["content-type"] == "application/json"
            actual = response.json()["reason"]
        if response.status_code != status or (reason is not None and actual != reason):
            wrong.append(f"{method} {path}: {response.status_code} {actual!r}")
    assert not wrong, "\n".join(wrong)


async def test_a_missing_feature_is_named(admin: Admin) -> None:
    functions = await admin.call("GET", "/admin/v3/functions/public/default")
    assert "functions and IO connectors" in functions.json()["reason"]
    missing = await admin.call("GET", "/admin/v3/packages/function/public/default")
    assert missing.json()["reason"] == (
        "Packages are not offered: GET /admin/v3/packages/function/public/default"
    )
    policy = await admin.call("POST", "~/persistent/t1/n1/a/shadowTopics", {})
    assert "shadowTopics" in policy.json()["reason"]
    method = await admin.call("PATCH", "~/tenants/t1")
    assert method.status_code == 405
    assert method.headers["allow"] == "DELETE, GET, POST, PUT"
    assert "DELETE, GET, POST, PUT" in method.json()["reason"]


async def test_invalid_bodies_are_refused_with_a_reason(admin: Admin) -> None:
    malformed = await admin.call("PUT", "~/tenants/t9", b"{bad")
    assert malformed.status_code == 400
    assert "not valid JSON" in malformed.json()["reason"]
    wrong = await admin.call("PUT", "~/tenants/t9", {"allowedClusters": 3})
    assert "$.allowedClusters" in wrong.json()["reason"]
    plain = await admin.call("PUT", "~/tenants/t9", TENANT, {"content-type": "text/plain"})
    assert plain.status_code == 415
    # The tests of the Node client create partitioned topics in this way.
    headers = {"content-type": "text/plain; charset=utf-8"}
    number = await admin.call("PUT", "~/persistent/t1/n1/plain/partitions", 4, headers)
    assert number.status_code == 204
    large = await admin.call("PUT", "~/tenants/t9", b" " * (4 << 20) + b"{}")
    assert large.status_code == 413
    assert (await admin.call("GET", "~/tenants/t9")).status_code == 404
    number = await admin.call("GET", "~/persistent/t1/n1/a/examinemessage?messagePosition=x")
    assert number.status_code in (400, 404)


async def test_null_counts_as_missing(admin: Admin) -> None:
    topic = "~/persistent/t1/n1/go"
    # Go's admin client creates a partitioned topic without properties in this way.
    headers = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
    body = {"partitions": 2, "properties": None}
    created = await admin.call("PUT", topic + "/partitions", body, headers)
    assert created.status_code == 204, created.text
    schema = {"type": "STRING", "schema": "", "properties": None}
    await admin.done("POST", "~/schemas/t1/n1/go/schema", schema)
    start = {"ledgerId": -1, "entryId": -1, "partitionIndex": None}
    await admin.done("PUT", topic + "/subscription/s", start)


async def test_an_unexpected_error_shows_only_its_type(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> list[str]:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(admin.service.resources, "tenants", broken)
    response = await admin.call("GET", "~/tenants")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "ZeroDivisionError" in response.json()["reason"]


async def test_head_and_trailing_slashes(admin: Admin) -> None:
    assert (await admin.call("HEAD", "~/tenants")).status_code == 200
    assert (await admin.call("GET", "~/tenants/")).json() == ["t1"]
    assert (await admin.call("GET", "/metrics/")).status_code == 200

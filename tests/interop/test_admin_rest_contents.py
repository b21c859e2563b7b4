"""What the admin REST shows of topics, subscriptions, clients and brokers, and what its actions do.

The field names are those of a recorded Pulsar 4.2: dashboards and operators read them by name.
"""

import json
import time

import httpx
import pulsar
import pytest

from .conftest import ConnectClient
from .support import (
    UNTIL_FLUSH_MS,
    Names,
    ServerAddress,
    assert_silent,
    await_backlog,
    backlog,
    bodies,
    numbered,
    send_all,
    take,
    wait_until,
)

OLD_S = 4
"""What is new must not be as old by when it is asked for: where it is, newer ones are sent."""
TOPIC_FIELDS = """
abortedTxnCount averageMsgSize backlogQuotaLimitSize backlogQuotaLimitTime backlogSize
bytesInCounter bytesOutCounter bytesOutInternalCounter committedTxnCount compaction
deduplicationStatus delayedMessageIndexSizeInBytes earliestMsgPublishTimeInBacklogs
lastOffloadFailureTimeStamp lastOffloadLedgerId lastOffloadSuccessTimeStamp lastPublishTimeStamp
msgChunkPublished msgInCounter msgOutCounter msgRateIn msgRateOut msgThroughputIn msgThroughputOut
nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize
offloadedStorageSize oldestBacklogMessageAgeSeconds ongoingTxnCount ownerBroker
publishRateLimitedTimes publishers replication storageSize subscriptions systemTopicBytesInCounter
topicCreationTimeStamp waitingPublishers
"""
PUBLISHER_FIELDS = """
accessMode address averageMsgSize chunkedMessageRate clientVersion connectedSince metadata
msgRateIn msgThroughputIn producerId producerName supportsPartialProducer
"""
SUBSCRIPTION_FIELDS = """
allowOutOfOrderDelivery backlogSize blockedSubscriptionOnUnackedMsgs bytesOutCounter
chunkedMessageRate consumers consumersAfterMarkDeletePosition delayedMessageIndexSizeInBytes
drainingHashesClearedTotal drainingHashesCount drainingHashesUnackedMessages durable
earliestMsgPublishTimeInBacklog filterAcceptedMsgCount filterProcessedMsgCount
filterRejectedMsgCount filterRescheduledMsgCount isDurable isReplicated lastAckedTimestamp
lastConsumedFlowTimestamp lastConsumedTimestamp lastExpireTimestamp
lastMarkDeleteAdvancedTimestamp messageAckRate msgBacklog msgBacklogNoDelayed msgDelayed
msgExpired msgInReplay msgOutCounter msgRateExpired msgRateOut msgRateRedeliver msgThroughputOut
nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize replicated
subscriptionProperties totalMsgExpired type unackedMessages
"""
CONSUMER_FIELDS = """
address availablePermits avgMessagesPerEntry blockedConsumerOnUnackedMsgs bytesOutCounter
chunkedMessageRate clientVersion connectedSince consumerName drainingHashesClearedTotal
drainingHashesCount drainingHashesUnackedMessages firstConsumedFlowTimestamp
firstMessagesSentTimestamp lastAckedTime lastAckedTimestamp lastConsumedFlowTimestamp
lastConsumedTime lastConsumedTimestamp messageAckRate metadata msgOutCounter msgRateOut
msgRateRedeliver msgThroughputOut unackedMessages
"""
INTERNAL_FIELDS = """
compactedLedger currentLedgerEntries currentLedgerSize cursors entriesAddedCounter
lastConfirmedEntry lastLedgerCreatedTimestamp ledgers numberOfEntries pendingAddEntriesCount
properties schemaLedgers state totalSize waitingCursorsCount
"""
CURSOR_FIELDS = """
active cursorLedger cursorLedgerLastEntry individuallyDeletedMessages lastLedgerSwitchTimestamp
markDeletePosition messagesConsumedCounter numberOfEntriesSinceFirstNotAckedMessage pendingReadOps
properties readPosition state subscriptionHavePendingRead subscriptionHavePendingReplayRead
totalNonContiguousDeletedMessagesRange waitingReadOp
"""
POLICY_FIELDS = """
allowed_clusters auth_policies backlog_quota_map bundles clusterDispatchRate clusterSubscribeRate
deleted encryption_required is_allow_auto_update_schema latency_stats_sample_rate migrated
offload_threshold offload_threshold_in_seconds properties publishMaxMessageRate
replication_clusters replicatorDispatchRate schema_compatibility_strategy
schema_validation_enforced subscriptionDispatchRate subscription_auth_mode
subscription_types_enabled topicDispatchRate
"""
METRICS = """
pulsar_topics_count pulsar_subscriptions_count pulsar_producers_count pulsar_consumers_count
pulsar_rate_in pulsar_rate_out pulsar_throughput_in pulsar_throughput_out pulsar_in_messages_total
pulsar_in_bytes_total pulsar_out_messages_total pulsar_out_bytes_total pulsar_storage_size
pulsar_msg_backlog pulsar_subscription_back_log pulsar_subscription_unacked_messages
pulsar_subscription_msg_rate_out
"""
Json = dict[str, object]


def missing(found: Json, fields: str) -> set[str]:
    return set(fields.split()) - set(found)


def topic_path(names: Names, local: str = "topic") -> str:
    return f"/admin/v2/persistent/{names.path}/{local}"


def test_topic_stats(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic = names.topic()
    kinds = {
        "Exclusive": pulsar.ConsumerType.Exclusive,
        "Failover": pulsar.ConsumerType.Failover,
        "Shared": pulsar.ConsumerType.Shared,
        "Key_Shared": pulsar.ConsumerType.KeyShared,
    }
    consumers = {
        name: client.subscribe(topic, name, kind, consumer_name="c", properties={"a": "b"})
        for name, kind in kinds.items()
    }
    producer = client.create_producer(topic, producer_name="p", properties={"team": "x"})
    send_all(producer, numbered(10))
    for consumer in consumers.values():
        for message in take(consumer, 10)[:4]:
            consumer.acknowledge(message)
    for name in kinds:
        await_backlog(admin, topic, name, 6)
    stats = admin.get(f"{topic_path(names)}/stats").raise_for_status().json()
    assert not missing(stats, TOPIC_FIELDS)
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (10, 40)
    assert stats["storageSize"] >= stats["backlogSize"] > 0
    (publisher,) = stats["publishers"]
    assert not missing(publisher, PUBLISHER_FIELDS)
    assert publisher["producerName"] == "p"
    assert publisher["accessMode"] == "Shared"
    assert publisher["metadata"] == {"team": "x"}
    assert publisher["clientVersion"].startswith("Pulsar-CPP")
    assert set(stats["subscriptions"]) == set(kinds)
    for name, subscription in stats["subscriptions"].items():
        assert not missing(subscription, SUBSCRIPTION_FIELDS)
        assert (subscription["type"], subscription["msgBacklog"]) == (name, 6)
        assert subscription["isDurable"] is True
        (consumer,) = subscription["consumers"]
        assert not missing(consumer, CONSUMER_FIELDS)
        assert (consumer["consumerName"], consumer["metadata"]) == ("c", {"a": "b"})
        assert consumer["msgOutCounter"] == 10
    shared = stats["subscriptions"]["Shared"]
    assert (shared["unackedMessages"], shared["consumers"][0]["unackedMessages"]) == (6, 6)
    assert stats["subscriptions"]["Failover"]["activeConsumerName"] == "c"


def test_internal_stats(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic = names.topic()
    client.subscribe(topic, "sub").close()
    ids = send_all(client.create_producer(topic), numbered(10))
    stats = admin.get(f"{topic_path(names)}/internalStats").raise_for_status().json()
    assert not missing(stats, INTERNAL_FIELDS)
    assert (stats["entriesAddedCounter"], stats["numberOfEntries"]) == (10, 10)
    assert stats["lastConfirmedEntry"] == f"{ids[-1].ledger_id()}:{ids[-1].entry_id()}"
    assert stats["state"] == "LedgerOpened"
    assert [ledger["ledgerId"] for ledger in stats["ledgers"]] == [ids[0].ledger_id()]
    cursor = stats["cursors"]["sub"]
    assert not missing(cursor, CURSOR_FIELDS)
    assert cursor["markDeletePosition"] == f"{ids[0].ledger_id()}:-1"
    assert cursor["readPosition"] == f"{ids[0].ledger_id()}:0"
    info = admin.get(f"{topic_path(names)}/internal-info").raise_for_status().json()
    assert [ledger["ledgerId"] for ledger in info["ledgers"]] == [ids[0].ledger_id()]
    assert set(info["cursors"]) == {"sub"}
    last = admin.get(f"{topic_path(names)}/lastMessageId").raise_for_status().json()
    assert (last["ledgerId"], last["entryId"]) == (ids[-1].ledger_id(), ids[-1].entry_id())


def test_partitioned_stats(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    path = topic_path(names)
    admin.put(f"{path}/partitions", json=3).raise_for_status()
    client.subscribe(names.topic(), "sub", consumer_name="c")
    send_all(client.create_producer(names.topic()), numbered(9))
    stats = admin.get(f"{path}/partitioned-stats").raise_for_status().json()
    assert not missing(stats, TOPIC_FIELDS) - {"deduplicationStatus", "ownerBroker"}
    assert (stats["metadata"]["partitions"], stats["msgInCounter"]) == (3, 9)
    assert stats["subscriptions"]["sub"]["msgBacklog"] == 9
    partitions = {f"{names.topic()}-partition-{i}" for i in range(3)}
    assert set(stats["partitions"]) == partitions
    assert [p["msgInCounter"] for p in stats["partitions"].values()] == [3, 3, 3]
    brief = admin.get(f"{path}/partitioned-stats", params={"perPartition": "false"}).json()
    assert (brief["partitions"], brief["msgInCounter"]) == ({}, 9)
    internal = admin.get(f"{path}/partitioned-internalStats").raise_for_status().json()
    assert set(internal["partitions"]) == partitions


def test_listing_topics(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    admin.put(f"{topic_path(names, 'parts')}/partitions", json=2).raise_for_status()
    admin.put(topic_path(names, "plain")).raise_for_status()
    client.create_producer(names.topic("fleeting", "non-persistent"))
    persistent = [names.topic("parts-partition-0"), names.topic("parts-partition-1")]
    persistent.append(names.topic("plain"))
    fleeting = names.topic("fleeting", "non-persistent")
    base = "/admin/v2"
    assert sorted(admin.get(f"{base}/persistent/{names.path}").json()) == persistent
    assert admin.get(f"{base}/persistent/{names.path}/partitioned").json() == [names.topic("parts")]
    assert admin.get(f"{base}/non-persistent/{names.path}").json() == [fleeting]
    listing = f"{base}/namespaces/{names.path}/topics"
    assert sorted(admin.get(listing).json()) == persistent
    assert admin.get(listing, params={"mode": "NON_PERSISTENT"}).json() == [fleeting]
    assert sorted(admin.get(listing, params={"mode": "ALL"}).json()) == [fleeting, *persistent]


def test_peeking(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic, path = names.topic(), f"{topic_path(names)}/subscription/sub/position"
    client.subscribe(topic, "sub").close()
    producer = client.create_producer(topic, producer_name="p")
    sent = producer.send(b"body", properties={"n": "1"}, partition_key="k")
    batch = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=UNTIL_FLUSH_MS
    )
    for payload in numbered(3):
        batch.send_async(payload, lambda *_: None)
    batch.flush()
    answer = admin.get(f"{path}/1").raise_for_status()
    assert answer.content == b"body"
    assert answer.headers["X-Pulsar-Message-ID"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert json.loads(answer.headers["X-Pulsar-PROPERTY"]) == {"n": "1"}
    assert answer.headers["X-Pulsar-publish-time"].startswith("20")
    assert answer.headers["X-Pulsar-producer-name"] == "p"
    assert answer.headers["X-Pulsar-partition-key"] == "k"
    assert admin.get(f"{path}/2").headers["X-Pulsar-num-batch-message"] == "3"
    assert admin.get(f"{path}/3").status_code == 404
    assert backlog(admin, topic, "sub") >= 2


def test_moving_a_subscription(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic, path = names.topic(), f"{topic_path(names)}/subscription/sub"
    admin.put(path).raise_for_status()
    producer = client.create_producer(topic)
    send_all(producer, numbered(5, "old"))
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    time.sleep(0.05)
    ids = send_all(producer, numbered(5, "new"))
    admin.post(f"{path}/skip/3").raise_for_status()
    assert backlog(admin, topic, "sub") == 7
    assert admin.get(f"{path}/position/1").content == b"old-3"
    admin.post(f"{path}/skip_all").raise_for_status()
    assert backlog(admin, topic, "sub") == 0
    admin.post(f"{path}/resetcursor/{between_ms}").raise_for_status()
    assert admin.get(f"{path}/position/1").content == b"new-0"
    body = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id(), "partitionIndex": -1}
    admin.post(f"{path}/resetcursor", json=body).raise_for_status()
    assert admin.get(f"{path}/position/1").content == b"new-2"
    admin.post(f"{path}/resetcursor/0").raise_for_status()
    assert backlog(admin, topic, "sub") == 10
    consumer = client.subscribe(topic, "sub")
    assert bodies(take(consumer, 10)) == numbered(5, "old") + numbered(5, "new")
    admin.post(f"{path}/resetcursor", json=body).raise_for_status()
    assert bodies(take(consumer, 3)) == numbered(5, "new")[2:]
    assert_silent(consumer)


def test_expiring_messages(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    topic, path = names.topic(), topic_path(names)
    for subscription in ("a", "b"):
        admin.put(f"{path}/subscription/{subscription}").raise_for_status()
    producer = client.create_producer(topic)
    send_all(producer, numbered(3, "old"))
    while True:
        time.sleep(OLD_S + 0.1)
        began = time.monotonic()
        send_all(producer, numbered(2, "new"))
        kept = backlog(admin, topic, "b")
        admin.post(f"{path}/subscription/a/expireMessages/{OLD_S}").raise_for_status()
        if time.monotonic() - began >= OLD_S:
            continue
        await_backlog(admin, topic, "a", 2)
        assert backlog(admin, topic, "b") == kept > 2
        admin.post(f"{path}/all_subscription/expireMessages/{OLD_S}").raise_for_status()
        if time.monotonic() - began < OLD_S:
            break
    await_backlog(admin, topic, "b", 2)


def test_subscriptions_made_by_rest(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic, path = names.topic(), f"{topic_path(names)}/subscription"
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(4))
    end = 2**63 - 1
    starts = {
        "earliest": {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
        "latest": {"ledgerId": end, "entryId": end, "partitionIndex": -1},
        "middle": {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id()},
    }
    for name, body in starts.items():
        admin.put(f"{path}/{name}", json=body).raise_for_status()
    assert sorted(admin.get(f"{topic_path(names)}/subscriptions").json()) == sorted(starts)
    counts = {name: backlog(admin, topic, name) for name in starts}
    assert counts["earliest"] == 4
    assert counts["latest"] == 0
    assert 1 <= counts["middle"] <= 2


def test_deletes_that_clients_prevent(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    path = topic_path(names)
    consumer = client.subscribe(names.topic(), "sub")
    producer = client.create_producer(names.topic())
    answer = admin.delete(f"{path}/subscription/sub")
    assert answer.status_code == 412
    assert answer.json() == {"reason": "Subscription has active connected consumers"}
    answer = admin.delete(path)
    assert answer.status_code == 412
    assert answer.json()["reason"].startswith("Topic has 2 clients connected")
    consumer.close()
    producer.close()
    answer = admin.delete(path)
    assert answer.status_code == 204
    assert admin.get(f"{path}/stats").status_code == 404


def test_deleting_by_force(connect: ConnectClient, admin: httpx.Client, names: Names) -> None:
    path = topic_path(names)
    connect().subscribe(names.topic(), "sub", pulsar.ConsumerType.Shared)
    connect().create_producer(names.topic())
    forced = admin.delete(f"{path}/subscription/sub", params={"force": "true"})
    assert forced.status_code == 204
    assert admin.delete(path, params={"force": "true"}).status_code == 204


def test_properties(admin: httpx.Client, names: Names) -> None:
    admin.put(topic_path(names, "plain"), json={"a": "1"}).raise_for_status()
    admin.put(f"{topic_path(names, 'parts')}/partitions", json=2).raise_for_status()
    for local, start in (("plain", {"a": "1"}), ("parts", {})):
        path = f"{topic_path(names, local)}/properties"
        admin.put(path, json={"b": "2", "c": "3"}).raise_for_status()
        assert admin.get(path).json() == {**start, "b": "2", "c": "3"}
        admin.delete(path, params={"key": "b"}).raise_for_status()
        assert admin.get(path).json() == {**start, "c": "3"}


def test_namespace_policies(admin: httpx.Client, names: Names) -> None:
    path = f"/admin/v2/namespaces/{names.tenant}"
    policies = admin.get(f"/admin/v2/namespaces/{names.path}").raise_for_status().json()
    assert not missing(policies, POLICY_FIELDS)
    assert policies["bundles"]["numBundles"] == 4
    assert policies["bundles"]["boundaries"][1] == "0x40000000"
    assert names.path in admin.get(path).json()
    body = {
        "bundles": {"numBundles": 8},
        "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
        "message_ttl_in_seconds": 60,
    }
    other = f"/admin/v2/namespaces/{names.path}-x"
    admin.put(other, json=body).raise_for_status()
    made = admin.get(other).json()
    assert len(made["bundles"]["boundaries"]) == 9
    assert {key: made[key] for key in ("retention_policies", "message_ttl_in_seconds")} == {
        key: body[key] for key in ("retention_policies", "message_ttl_in_seconds")
    }


def test_lookup_and_brokers(admin: httpx.Client, server: ServerAddress, names: Names) -> None:
    found = admin.get(f"/lookup/v2/topic/persistent/{names.path}/t").raise_for_status().json()
    assert found["brokerUrl"] == found["nativeUrl"] == server.service_url
    assert found["httpUrl"] == server.http_url
    assert {"brokerUrlTls", "brokerUrlSsl"} & set(found)
    missing_namespace = admin.get(f"/lookup/v2/topic/persistent/{names.tenant}/none/t")
    assert (missing_namespace.status_code, missing_namespace.json()) == (
        404,
        {"reason": "Namespace not found"},
    )
    (cluster,) = admin.get("/admin/v2/clusters").json()
    (broker,) = admin.get(f"/admin/v2/brokers/{cluster}").json()
    leader = admin.get("/admin/v2/brokers/leaderBroker").json()
    assert leader == {"serviceUrl": server.http_url, "brokerId": broker}
    assert admin.get("/admin/v2/brokers/health").text == "ok"
    assert admin.get(f"/admin/v2/clusters/{cluster}").json()["brokerServiceUrl"]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_metrics(client: pulsar.Client, admin: httpx.Client, names: Names, path: str) -> None:
    topic = names.topic()
    client.subscribe(topic, "sub")
    send_all(client.create_producer(topic), numbered(3))

    def page() -> str | None:
        text = admin.get(path).raise_for_status().text
        return text if f'topic="{topic}"' in text else None

    text = wait_until(page, what="the topic's metrics")
    names_seen = {line.split("{")[0].split(" ")[0] for line in text.splitlines()}
    assert not set(METRICS.split()) - names_seen
    of_topic = [line for line in text.splitlines() if f'topic="{topic}"' in line]
    assert all(f'namespace="{names.path}"' in line for line in of_topic)
    assert all('cluster="standalone"' in line for line in of_topic)
    assert any('subscription="sub"' in line for line in of_topic)

"""The contents of lists, policies, stats, schemas and lookups, with Pulsar's field names."""

import pytest

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.producer import AccessMode, Producer

from .support import BROKER, Admin, Peer, entry

PUBLISHER_FIELDS = {
    *("accessMode", "msgRateIn", "msgThroughputIn", "averageMsgSize", "chunkedMessageRate"),
    *("producerId", "supportsPartialProducer", "producerName", "address", "connectedSince"),
    *("clientVersion", "metadata"),
}
TOPIC_FIELDS = {
    *("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "bytesInCounter"),
    *("msgInCounter", "systemTopicBytesInCounter", "bytesOutCounter", "msgOutCounter"),
    *("bytesOutInternalCounter", "averageMsgSize", "msgChunkPublished", "storageSize"),
    *("backlogSize", "backlogQuotaLimitSize", "backlogQuotaLimitTime"),
    *("oldestBacklogMessageAgeSeconds", "publishRateLimitedTimes"),
    *("earliestMsgPublishTimeInBacklogs", "offloadedStorageSize", "lastOffloadLedgerId"),
    *("lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp", "ongoingTxnCount"),
    *("abortedTxnCount", "committedTxnCount", "publishers", "waitingPublishers"),
    *("subscriptions", "replication", "nonContiguousDeletedMessagesRanges"),
    *("nonContiguousDeletedMessagesRangesSerializedSize", "delayedMessageIndexSizeInBytes"),
    *("compaction", "ownerBroker", "topicCreationTimeStamp", "lastPublishTimeStamp"),
}
INTERNAL_FIELDS = {
    *("entriesAddedCounter", "numberOfEntries", "totalSize", "currentLedgerEntries"),
    *("currentLedgerSize", "lastLedgerCreatedTimestamp", "waitingCursorsCount"),
    *("pendingAddEntriesCount", "lastConfirmedEntry", "state", "ledgers", "cursors"),
    *("properties", "schemaLedgers", "compactedLedger"),
}
CURSOR_FIELDS = {
    *("markDeletePosition", "readPosition", "waitingReadOp", "pendingReadOps", "cursorLedger"),
    *("messagesConsumedCounter", "cursorLedgerLastEntry", "individuallyDeletedMessages"),
    *("lastLedgerSwitchTimestamp", "state", "active", "properties"),
    *("numberOfEntriesSinceFirstNotAckedMessage", "totalNonContiguousDeletedMessagesRange"),
    *("subscriptionHavePendingRead", "subscriptionHavePendingReplayRead"),
}


async def test_clusters_show_pulsars_defaults(admin: Admin) -> None:
    await admin.done("PUT", "~/clusters/c2", {"serviceUrl": "http://x"})
    assert (await admin.call("GET", "~/clusters/c2")).json() == {
        "serviceUrl": "http://x",
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
        "brokerClientTlsTrustStoreType": "JKS",
        "brokerClientTlsKeyStoreType": "JKS",
        "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    }
    assert (await admin.call("GET", "~/clusters")).json() == ["c2", "standalone"]


async def test_lists(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/b", {"k": "v"})
    await admin.done("PUT", "~/persistent/t1/n1/pt/partitions", 3)
    await admin.done("PUT", "~/persistent/t1/n1/__change_events")
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    name = "persistent://t1/n1/"
    topics = [name + "b", *(f"{name}pt-partition-{i}" for i in range(3))]
    get = admin.call
    assert (await get("GET", "~/persistent/t1/n1")).json() == topics
    with_system = (await get("GET", "~/persistent/t1/n1?includeSystemTopic=true")).json()
    assert with_system == sorted([*topics, name + "__change_events"])
    assert (await get("GET", "~/persistent/t1/n1/partitioned")).json() == [name + "pt"]
    assert (await get("GET", "~/non-persistent/t1/n1")).json() == ["non-persistent://t1/n1/np"]
    assert (await get("GET", "~/namespaces/t1/n1/topics")).json() == topics
    everything = (await get("GET", "~/namespaces/t1/n1/topics?mode=ALL")).json()
    assert everything == sorted([*topics, "non-persistent://t1/n1/np"])
    # Recorded from Pulsar: the names that are in its first bundle.
    first = await get("GET", "~/persistent/t1/n1?bundle=0x00000000_0x40000000")
    assert first.json() == [name + "b", name + "pt-partition-2"]
    bad = await get("GET", "~/persistent/t1/n1?bundle=0x00000001_0x40000000")
    assert bad.status_code == 412


async def test_policies_of_a_new_namespace(admin: Admin) -> None:
    body = {"bundles": {"numBundles": 8}, "message_ttl_in_seconds": 60}
    await admin.done("PUT", "~/namespaces/t1/n2", body)
    policies = (await admin.call("GET", "~/namespaces/t1/n2")).json()
    assert policies["bundles"]["numBundles"] == 8
    assert policies["bundles"]["boundaries"][:2] == ["0x00000000", "0x20000000"]
    assert policies["bundles"]["boundaries"][-1] == "0xffffffff"
    assert policies["replication_clusters"] == ["standalone"]
    assert (await admin.call("GET", "~/namespaces/t1/n2/messageTTL")).json() == 60
    assert (await admin.call("GET", "~/namespaces/t1/n2/replication")).json() == ["standalone"]
    edges = {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    await admin.done("PUT", "~/namespaces/t1/n3", {"bundles": edges})
    assert (await admin.call("GET", "~/namespaces/t1/n3/bundles")).json() == edges
    for bad in (["0x0"], ["0x00000000", "0x00000000", "0xffffffff"], ["x"], 7):
        refused = await admin.call("PUT", "~/namespaces/t1/n4", {"bundles": {"boundaries": bad}})
        assert refused.status_code == 412, refused.text


async def test_policies_that_can_be_set(admin: Admin) -> None:
    path = "~/namespaces/t1/n1"
    await admin.done("PUT", path + "/properties", {"a": "b"})
    await admin.done("PUT", path + "/property/k/v%2Fw")
    assert (await admin.call("GET", path + "/properties")).json() == {"a": "b", "k": "v/w"}
    assert (await admin.call("GET", path + "/property/k")).text == "v/w"
    assert (await admin.done("DELETE", path + "/property/k")).text == "v/w"
    assert (await admin.call("GET", path + "/property/k")).text == ""
    await admin.done("DELETE", path + "/properties")
    assert (await admin.call("GET", path + "/properties")).json() == {}
    await admin.done("PUT", path + "/schemaCompatibilityStrategy", "BACKWARD")
    assert (await admin.call("GET", path + "/schemaCompatibilityStrategy")).json() == "BACKWARD"
    bad = await admin.call("PUT", path + "/schemaCompatibilityStrategy", "BAD")
    assert bad.status_code == 412
    await admin.done("POST", path + "/isAllowAutoUpdateSchema", False)
    assert (await admin.call("GET", path + "/isAllowAutoUpdateSchema")).json() is False


async def test_topic_stats(admin: Admin) -> None:
    producer = await admin.producer()
    for name, kind in (("ex", SubType.Exclusive), ("sh", SubType.Shared)):
        await admin.consumer(name, kind)
    await admin.done("PUT", "~/persistent/t1/n1/a/subscription/idle", {"properties": {"p": "q"}})
    await admin.publish([b"x" * 10] * 4, producer=producer)
    stats = (await admin.call("GET", "~/persistent/t1/n1/a/stats")).json()
    assert set(stats) == TOPIC_FIELDS | {"deduplicationStatus"}
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (4, 8)
    assert stats["storageSize"] == stats["backlogSize"] == 4 * len(entry(b"x" * 10))
    assert stats["ownerBroker"] == BROKER
    (publisher,) = stats["publishers"]
    assert set(publisher) == PUBLISHER_FIELDS
    assert publisher["accessMode"] == "Shared"
    assert publisher["connectedSince"] == "2023-11-14T22:13:20Z"
    assert publisher["metadata"] == {"team": "x"}
    subscriptions = stats["subscriptions"]
    assert {name: sub["type"] for name, sub in subscriptions.items()} == {
        "ex": "Exclusive", "sh": "Shared", "idle": "None",
    }  # fmt: skip
    assert subscriptions["sh"]["unackedMessages"] == 4
    assert subscriptions["sh"]["consumers"][0]["msgOutCounter"] == 4
    assert subscriptions["idle"]["msgBacklog"] == 4
    assert subscriptions["idle"]["subscriptionProperties"] == {"p": "q"}
    assert subscriptions["idle"]["earliestMsgPublishTimeInBacklog"] == 0
    bare = "~/persistent/t1/n1/a/stats?excludePublishers=true&excludeConsumers=true"
    stats = (await admin.call("GET", bare)).json()
    assert stats["publishers"] == stats["subscriptions"]["sh"]["consumers"] == []
    path = "~/persistent/t1/n1/a/stats?getEarliestTimeInBacklog=true"
    precise = (await admin.call("GET", path)).json()
    assert precise["earliestMsgPublishTimeInBacklogs"] == 1_700_000_000_000


async def test_non_persistent_stats(admin: Admin) -> None:
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    stats = (await admin.call("GET", "~/non-persistent/t1/n1/np/stats")).json()
    assert set(stats) == TOPIC_FIELDS | {"msgDropRate"}
    await admin.done("PUT", "~/non-persistent/t1/n1/npp/partitions", 2)
    summed = (await admin.call("GET", "~/non-persistent/t1/n1/npp/partitioned-stats")).json()
    assert set(summed) == TOPIC_FIELDS - {"ownerBroker"} | {"msgDropRate", "metadata", "partitions"}
    assert len(summed["partitions"]) == 2
    internal = (await admin.call("GET", "~/non-persistent/t1/n1/np/internalStats")).json()
    assert internal["cursors"] == {}


async def test_internal_stats_and_info(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/a", {"k": "v"})
    await admin.consumer("s", SubType.Shared)
    ids = await admin.publish([b"m"] * 3)
    internal = (await admin.call("GET", "~/persistent/t1/n1/a/internalStats")).json()
    assert set(internal) == INTERNAL_FIELDS
    assert internal["lastConfirmedEntry"] == str(ids[-1])
    assert internal["lastLedgerCreatedTimestamp"].endswith("Z")
    cursor = internal["cursors"]["s"]
    assert set(cursor) == CURSOR_FIELDS
    assert cursor["subscriptionHavePendingRead"] is True
    assert internal["properties"] == {"k": "v"}
    info = (await admin.call("GET", "~/persistent/t1/n1/a/internal-info")).json()
    assert [ledger["ledgerId"] for ledger in info["ledgers"]] == [ids[0].ledger_id]
    assert set(info["cursors"]) == {"s"}
    assert info["properties"] == {"k": "v"}


async def test_partitioned_stats_are_sums(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/pt/partitions", {"partitions": 3, "properties": {}})
    await admin.done("PUT", "~/persistent/t1/n1/pt/properties", {"k": "v"})
    for index in range(2):
        local = f"pt-partition-{index}"
        producer = await admin.producer(local, name="pp")
        await admin.consumer("sub", SubType.Shared, local, name="c")
        await admin.publish([b"z"] * 2, local, producer)
    path = "~/persistent/t1/n1/pt/partitioned-stats"
    stats = (await admin.call("GET", path)).json()
    assert stats["metadata"] == {"partitions": 3, "deleted": False, "properties": {"k": "v"}}
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (4, 4)
    assert [publisher["producerName"] for publisher in stats["publishers"]] == ["pp"]
    sub = stats["subscriptions"]["sub"]
    assert (sub["msgBacklog"], sub["unackedMessages"], sub["type"]) == (4, 4, "Shared")
    (consumer,) = sub["consumers"]
    assert (consumer["consumerName"], consumer["availablePermits"]) == ("c", 1_996)
    parts = {name: part["msgInCounter"] for name, part in stats["partitions"].items()}
    assert list(parts.values()) == [2, 2, 0]
    brief = (await admin.call("GET", path + "?perPartition=false")).json()
    assert brief["partitions"] == {}
    bare = path + "?excludePublishers=true&excludeConsumers=true"
    stats = (await admin.call("GET", bare)).json()
    assert stats["publishers"] == stats["subscriptions"]["sub"]["consumers"] == []
    # Reading a deleted partition does not create it again.
    await admin.done("DELETE", "~/persistent/t1/n1/pt-partition-2")
    assert len((await admin.call("GET", path)).json()["partitions"]) == 2
    internal = await admin.call("GET", "~/persistent/t1/n1/pt/partitioned-internalStats")
    assert len(internal.json()["partitions"]) == 2


async def test_new_partitions_get_the_subscriptions(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/pt/partitions", 2)
    await admin.done("PUT", "~/persistent/t1/n1/pt/subscription/s")
    await admin.done("POST", "~/persistent/t1/n1/pt/partitions", 4)
    await admin.publish([b"m"], "pt-partition-3")
    stats = (await admin.call("GET", "~/persistent/t1/n1/pt-partition-3/stats")).json()
    assert stats["subscriptions"]["s"]["msgBacklog"] == 1
    assert (await admin.call("GET", "~/persistent/t1/n1/pt/subscriptions")).json() == ["s"]


async def test_deleting_topics_in_use(admin: Admin) -> None:
    await admin.producer()
    path = "~/persistent/t1/n1/a"
    refused = await admin.call("DELETE", path)
    assert (refused.status_code, refused.json()["reason"]) == (
        412,
        "Topic has 1 client connected Including 0 consumers, 1 producers, and 0 replicators.",
    )
    await admin.consumer("s", SubType.Exclusive)
    busy = await admin.call("DELETE", path + "/subscription/s")
    assert busy.json()["reason"] == "Subscription has active connected consumers"
    refused = await admin.call("DELETE", path)
    assert refused.json()["reason"].startswith("Topic has 2 clients connected")
    await admin.done("DELETE", path + "/subscription/s?force=true")
    await admin.done("DELETE", path + "?force=true")
    assert (await admin.call("GET", "~/persistent/t1/n1")).json() == []
    # As in Pulsar, a subscription without consumers prevents no deletion.
    await admin.done("PUT", path)
    await admin.done("PUT", path + "/subscription/s")
    await admin.done("DELETE", path)


async def test_names_that_need_encoding(admin: Admin) -> None:
    names = {"a%20b": "a b", "a+b": "a b", "a%2Bb": "a+b", "%C3%A9": "é", "a%25b": "a%b"}
    names |= {"a%3Fb": "a?b", "a%23b": "a#b", "a%3Bb": "a;b", "a:b": "a:b", "x%2Fy%2Fz": "x/y/z"}
    for encoded, local in names.items():
        path = f"~/persistent/t1/n1/{encoded}"
        assert (await admin.call("PUT", path)).status_code in (204, 409)
        await admin.done("PUT", path + "/subscription/s%2Ft%20u")
        assert (await admin.call("GET", path + "/subscriptions")).json() == ["s/t u"]
        assert (await admin.call("GET", path + "/internalStats")).status_code == 200
        topics = (await admin.call("GET", "~/persistent/t1/n1")).json()
        assert f"persistent://t1/n1/{local}" in topics
        await admin.done("DELETE", path)


async def test_lookup_and_brokers(admin: Admin) -> None:
    actual = await admin.call("GET", "/lookup/v2/topic/persistent/t1/n1/never")
    assert actual.json() == {
        "brokerUrl": "pulsar://127.0.0.1:6650",
        "httpUrl": f"http://{BROKER}",
        "nativeUrl": "pulsar://127.0.0.1:6650",
        "brokerUrlSsl": "",
    }
    bundle = await admin.call("GET", "/lookup/v2/topic/persistent/t1/n1/a/bundle")
    assert bundle.text == "0x80000000_0xc0000000"
    for path in ("~/brokers", "~/brokers/standalone"):
        assert (await admin.call("GET", path)).json() == [BROKER]
    leader = (await admin.call("GET", "~/brokers/leaderBroker")).json()
    assert leader == {"serviceUrl": f"http://{BROKER}", "brokerId": BROKER}
    for path in ("~/brokers/health?topicVersion=V2", "~/brokers/ready"):
        assert (await admin.call("GET", path)).text == "ok"
    runtime = (await admin.call("GET", "~/brokers/configuration/runtime")).json()
    assert runtime["maxMessageSize"] == "5242880"
    assert runtime["allowAutoTopicCreation"] == "true"
    await admin.topic()
    owned = await admin.call("GET", f"~/brokers/standalone/{BROKER}/ownedNamespaces")
    assert list(owned.json()) == ["t1/n1/0x80000000_0xc0000000"]
    by_bundle = (await admin.call("GET", "~/broker-stats/topics")).json()
    topics = by_bundle["t1/n1"]["0x80000000_0xc0000000"]["persistent"]
    assert set(topics["persistent://t1/n1/a"]) >= TOPIC_FIELDS


async def test_health_says_what_fails(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.service.stopping = True
    for path in ("~/brokers/health", "~/brokers/ready"):
        assert (await admin.call("GET", path)).status_code == 503
    admin.service.stopping = False
    await admin.service.store.close()
    broken = await admin.call("GET", "~/brokers/health")
    assert broken.status_code == 503
    assert "Metadata" in broken.json()["reason"]


AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":"%s"}]}'


async def test_schemas(admin: Admin) -> None:
    path = "~/schemas/t1/n1/a"
    body = {"type": "AVRO", "schema": AVRO % "int", "properties": {}}
    other = {**body, "schema": AVRO % "string"}
    assert (await admin.done("POST", path + "/schema", body)).json() == {"version": {"version": 0}}
    actual = (await admin.call("GET", path + "/schema")).json()
    assert actual.pop("timestamp") > 1_700_000_000_000
    assert actual == {"version": 0, "type": "AVRO", "data": AVRO % "int", "properties": {}}
    versions = (await admin.call("GET", path + "/schemas")).json()
    assert [item["version"] for item in versions["getSchemaResponses"]] == [0]
    assert (await admin.done("POST", path + "/version", body)).json() == {"version": 0}
    assert (await admin.done("POST", path + "/version", other)).json() == {"version": -1}
    refused = await admin.call("POST", path + "/schema", other)
    assert refused.status_code == 409
    for schema, fits in ((body, True), (other, False)):
        answer = await admin.call("POST", path + "/compatibility", schema)
        assert (answer.status_code, answer.json()) == (
            202,
            {"schemaCompatibilityStrategy": "FULL", "compatibility": fits},
        )
    invalid = await admin.call("POST", path + "/schema", {**body, "schema": "{bad"})
    assert invalid.status_code == 422
    unknown = await admin.call("POST", path + "/schema", {**body, "type": "NONSENSE"})
    assert unknown.status_code == 422
    assert (await admin.done("DELETE", path + "/schema")).json() == {"version": 1}
    assert (await admin.call("GET", path + "/schema")).status_code == 404
    nothing_left: dict[str, list[object]] = {"getSchemaResponses": []}
    assert (await admin.done("GET", path + "/schemas")).json() == nothing_left
    entries = [{"ledgerId": -1, "entryId": -1, "version": version} for version in (0, 1)]
    metadata = (await admin.done("GET", path + "/metadata")).json()
    assert metadata == {"info": entries[1], "index": entries}
    await admin.done("DELETE", path + "/schema?force=true")
    assert (await admin.done("GET", path + "/schemas")).json() == nothing_left
    assert (await admin.done("GET", path + "/metadata")).content == b""


async def test_a_schema_of_bytes_is_stored_as_none(admin: Admin) -> None:
    path = "~/schemas/t1/n1/b"
    body = {"type": "BYTES", "schema": "", "properties": {}}
    assert (await admin.done("POST", path + "/schema", body)).json() == {"version": {"version": 0}}
    assert (await admin.call("GET", path + "/schema")).json()["type"] == "NONE"
    assert (await admin.done("POST", path + "/schema", body)).json() == {"version": {"version": 0}}
    text = {**body, "type": "STRING"}
    assert (await admin.call("POST", path + "/schema", text)).status_code == 409
    for kind in ("AUTO_CONSUME", "AUTO_PUBLISH", "AUTO"):
        refused = await admin.call("POST", path + "/schema", {**body, "type": kind})
        assert refused.status_code == 422
        assert refused.json() == {"reason": f"Schema {kind} is a client-side schema type"}


async def test_the_epoch_of_a_topic(admin: Admin) -> None:
    topic = await admin.topic()
    stats = "~/persistent/t1/n1/a/stats"
    assert "topicEpoch" not in (await admin.done("GET", stats)).json()
    for epoch in range(2):
        producer = Producer(
            1, f"p{epoch}", Peer(), epoch=0, generated_name=False,
            access_mode=AccessMode.EXCLUSIVE, topic_epoch=None, request_id=1,
            connected_since_ms=1_700_000_000_000, metadata=[],
        )  # fmt: skip
        await topic.add_producer(producer)
        assert (await admin.done("GET", stats)).json()["topicEpoch"] == epoch
        topic.remove_producer(producer)


async def test_key_value_schemas_are_one_json_text(admin: Admin) -> None:
    path = "~/schemas/t1/n1/kv/schema"
    text = '{"key":%s,"value":""}' % (AVRO % "int")
    body = {
        "type": "KEY_VALUE",
        "schema": text,
        "properties": {
            "key.schema.name": "", "key.schema.type": "AVRO", "key.schema.properties": "{}",
            "value.schema.name": "", "value.schema.type": "STRING",
            "value.schema.properties": "{}", "kv.encoding.type": "SEPARATED",
        },
    }  # fmt: skip
    await admin.done("POST", path, body)
    assert (await admin.call("GET", path)).json()["data"] == text
    for bad in ("{", "[]", '{"key": 1}'):
        assert (await admin.call("POST", path, {**body, "schema": bad})).status_code == 422


async def test_rates_of_producers_and_topics(admin: Admin) -> None:
    producer = await admin.producer()
    await admin.publish([b"x"] * 5, producer=producer)
    await admin.service._renew_rates()
    stats = (await admin.call("GET", "~/persistent/t1/n1/a/stats")).json()
    assert stats["msgRateIn"] == stats["publishers"][0]["msgRateIn"] == 0.5
    assert stats["msgThroughputIn"] == stats["publishers"][0]["msgThroughputIn"] > 0

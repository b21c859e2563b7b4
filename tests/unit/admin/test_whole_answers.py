"""The complete answers and refusals of rare requests that tools depend on."""

from typing import Any

import pytest

from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.policies.table import PolicyTable
from magnetar.broker.subscription.spec import SubType
from magnetar.policies.lifecycle import MESSAGE_TTL
from magnetar.policies.policy import Level
from magnetar.policies.registry import BY_NAME, at, rest_of

from .support import NO_BODY, Admin, append, entry, topic_name

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
FIRST = {"ledgerId": -1, "entryId": -1}
RATE = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": 6,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}


async def document(admin: Admin, method: str, path: str, body: object = NO_BODY) -> Any:
    return (await admin.done(method, path, body)).json()


async def test_exactly_the_policies_set_for_a_topic_are_shown(
    admin: Admin,
) -> None:
    path = "~/magnetar/persistent/t1/n1/{}/policies"
    await admin.topic()
    assert await document(admin, "GET", path.format("a")) == {}
    await admin.done("POST", NAMESPACE + "/messageTTL", 60)
    await admin.done("POST", TOPIC + "/dispatchRate", RATE)
    await admin.done("POST", TOPIC + "/maxProducers?isGlobal=true", 3)
    await admin.done("POST", TOPIC + "/maxConsumers?isGlobal=true", 3)
    await admin.done("POST", TOPIC + "/maxConsumers", 4)
    actual = await document(admin, "GET", path.format("a"))
    assert actual == {"dispatch_rate": RATE, "max_producers": 3, "max_consumers": 4}


async def test_a_partition_shows_the_policies_of_its_topic(admin: Admin) -> None:
    path = "~/magnetar/persistent/t1/n1/{}/policies"
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 2)
    for local in ("p", "p-partition-1"):
        assert await document(admin, "GET", path.format(local)) == {}
    await admin.done("POST", "~/persistent/t1/n1/p/maxProducers", 3)
    for local in ("p", "p-partition-1"):
        assert await document(admin, "GET", path.format(local)) == {"max_producers": 3}
    # A topic whose partitions are all deleted still has its policies.
    for index in range(2):
        await admin.done("DELETE", f"~/persistent/t1/n1/p-partition-{index}")
    assert await document(admin, "GET", path.format("p")) == {"max_producers": 3}
    await admin.done("DELETE", "~/persistent/t1/n1/p/maxProducers")
    assert await document(admin, "GET", path.format("p")) == {}


async def test_policies_of_a_missing_topic_are_not_found(admin: Admin) -> None:
    for topic, reason in (
        ("t1/n1/nope", "Topic persistent://t1/n1/nope not found"),
        ("t1/nope/a", "Namespace not found"),
    ):
        answer = await admin.call("GET", f"~/magnetar/persistent/{topic}/policies")
        assert (answer.status_code, answer.json()) == (404, {"reason": reason})


@pytest.mark.parametrize("level", Level)
def test_each_policy_has_a_route_to_get_set_and_remove_it(level: Level) -> None:
    routes, table = Routes(), PolicyTable(level)

    async def get(_: Any) -> Any: ...
    async def put(_: Any) -> Any: ...
    async def remove(_: Any) -> Any: ...

    table.register(routes, "/it", get=get, set_=put, remove=remove)
    actual: dict[tuple[str, str], Any] = {}
    for item in routes.descriptions:
        assert item.openapi_extra is not None
        assert ("requestBody" in item.openapi_extra) == (item.method not in ("GET", "DELETE"))
        names = [first["name"] for first in item.openapi_extra["parameters"]]
        assert names == (["applied", "isGlobal"] if level is Level.TOPIC else ["applied"])
        actual.setdefault((item.method, item.path.rpartition("/")[0]), []).append(item.handler)
    for policy in at(level):
        rest = rest_of(policy, level)
        assert rest is not None
        for verb, path, handler in (
            ("GET", rest.path, get),
            (rest.set_verb, rest.setting_path, put),
            (rest.remove_verb, rest.removing_path, remove),
        ):
            head = path.rpartition("/")[0]
            assert handler in actual[verb, "/it" + (f"/{head}" if head else "")]


def test_a_policy_has_no_route_at_a_level_where_it_cannot_be_set() -> None:
    with pytest.raises(LookupError, match="max_topics cannot be set for a topic"):
        PolicyTable(Level.TOPIC).rest(BY_NAME["max_topics"])
    assert PolicyTable(Level.TOPIC).rest(MESSAGE_TTL) is MESSAGE_TTL.topic


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("allowedClusters", "[]"),
        ("entryFilters", ""),
    ],
)
async def test_policies_that_cannot_be_set_answer_as_unset(
    admin: Admin, policy: str, text: str
) -> None:
    answer = await admin.done("GET", f"{NAMESPACE}/{policy}")
    assert (answer.status_code, answer.text) == (200, text)


async def test_removing_a_missing_property_answers_without_a_body(admin: Admin) -> None:
    path = NAMESPACE + "/propert"
    await admin.done("PUT", path + "y/a/1")
    gone = await admin.call("DELETE", path + "y/b")
    assert (gone.status_code, gone.text) == (200, "")
    assert await document(admin, "GET", path + "ies") == {"a": "1"}


@pytest.mark.parametrize("body", [None, {}, NO_BODY])
async def test_an_empty_body_changes_no_property(admin: Admin, body: object) -> None:
    await admin.done("PUT", TOPIC, {"a": "1"})
    for path in (NAMESPACE, TOPIC):
        await admin.done("PUT", path + "/properties", {"a": "1"})
        await admin.done("PUT", path + "/properties", body)
        assert await document(admin, "GET", path + "/properties") == {"a": "1"}


async def test_a_refused_grant_changes_no_role(admin: Admin) -> None:
    path = NAMESPACE + "/permissions/subscription"
    answer = await admin.call("POST", path + "/s", None)
    assert (answer.status_code, answer.json()) == (400, {"reason": "Roles should not be null"})
    await admin.done("DELETE", path + "/s/nobody")
    assert await document(admin, "GET", path) == {}
    await admin.done("POST", path + "/s", ["r", "r", "q"])
    await admin.done("POST", path + "/t", [])
    await admin.done("DELETE", path + "/u/r")
    assert await document(admin, "GET", path) == {"s": ["q", "r"], "t": []}


async def test_revoking_a_role_does_not_change_others(admin: Admin) -> None:
    for local in ("a", "b"):
        await admin.topic(local)
        for role in ("r", "q"):
            path = f"~/persistent/t1/n1/{local}/permissions"
            await admin.done("POST", f"{path}/{role}", ["produce"])
    for role in ("r", "q"):
        await admin.done("POST", f"{NAMESPACE}/permissions/{role}", ["consume"])
    await admin.done("DELETE", TOPIC + "/permissions/r")
    other = "~/persistent/t1/n1/b/permissions"
    assert await document(admin, "GET", TOPIC + "/permissions") == {
        "r": ["consume"],
        "q": ["consume", "produce"],
    }
    await admin.done("DELETE", NAMESPACE + "/permissions/r")
    assert await document(admin, "GET", TOPIC + "/permissions") == {"q": ["consume", "produce"]}
    assert await document(admin, "GET", other) == {"r": ["produce"], "q": ["consume", "produce"]}
    # A second grant replaces the first.
    await admin.done("POST", TOPIC + "/permissions/q", ["functions"])
    assert await document(admin, "GET", TOPIC + "/permissions") == {"q": ["consume", "functions"]}


async def test_a_cluster_is_not_created_as_migrated(admin: Admin) -> None:
    for method in ("PUT", "POST"):
        body = {"serviceUrl": "http://x", "migrated": True}
        answer = await admin.call(method, "~/clusters/c2", body)
        assert (answer.status_code, "Migration of a cluster" in answer.text) == (405, True)
    assert await document(admin, "GET", "~/clusters") == ["standalone"]


async def test_peer_clusters_are_refused(
    admin: Admin,
) -> None:
    for method in ("PUT", "POST"):
        body = {"serviceUrl": "http://x", "peerClusterNames": ["y"]}
        answer = await admin.call(method, "~/clusters/c2", body)
        assert answer.status_code == 405
        assert "peerClusterNames is not supported" in answer.json()["reason"]
    assert await document(admin, "GET", "~/clusters") == ["standalone"]
    await admin.done("PUT", "~/clusters/c2", {"serviceUrl": "http://x", "peerClusterNames": []})
    answer = await admin.done("GET", "~/clusters/c2/peers")
    assert (answer.status_code, answer.text) == (200, "[]")
    assert (await admin.call("GET", "~/clusters/none/peers")).status_code == 404


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("serviceUrl", ["http://x"], ["https://x", "pulsar://x", "x"]),
        ("serviceUrlTls", ["https://x"], ["http://x"]),
        ("brokerServiceUrl", ["pulsar://x"], ["pulsar+ssl://x", "http://x"]),
        ("brokerServiceUrlTls", ["pulsar+ssl://x"], ["pulsar://x"]),
        ("proxyServiceUrl", ["pulsar://x", "pulsar+ssl://x"], ["http://x", 5]),
    ],
)
async def test_a_clusters_addresses_have_their_schemes(
    admin: Admin, field: str, good: list[str], bad: list[object]
) -> None:
    path = "~/clusters/c2"
    await admin.done("PUT", path, {})
    for url in bad:
        assert (await admin.call("POST", path, {field: url})).status_code == 400
        assert field not in await document(admin, "GET", path)
    for url in [*good, ""]:
        await admin.done("POST", path, {field: url})
        assert (await document(admin, "GET", path))[field] == url


async def test_a_schema_that_cannot_be_read_is_neither_compatible_nor_incompatible(
    admin: Admin,
) -> None:
    bad = {"type": "AVRO", "schema": "{bad", "properties": {}}
    good = {"type": "STRING", "schema": "", "properties": {"a": "b"}}
    path = "~/schemas/t1/n1/a"
    for request in ("/compatibility", "/schema"):
        assert (await admin.call("POST", path + request, bad)).status_code == 422
    await admin.done("POST", path + "/schema", good)
    assert (await document(admin, "GET", path + "/schema"))["properties"] == {"a": "b"}
    actual = await document(admin, "GET", path + "/schema/0")
    assert (actual["version"], actual["type"]) == (0, "STRING")
    answer = await admin.call("GET", "~/schemas/t1/n1/a%2Fb/schema")
    assert answer.status_code in (404, 412)


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_the_body_sets_the_number_of_partitions(admin: Admin, method: str) -> None:
    path = "~/persistent/t1/n1/p/partitions"
    if method == "POST":
        await admin.done("PUT", path, 1)
    for body in (NO_BODY, None):
        answer = await admin.call(method, path, body)
        assert answer.status_code == 400
        assert answer.json() == {"reason": "The body must say how many partitions"}
    for count, body in enumerate((2, {"partitions": 3, "properties": {}}, "4"), 2):
        await admin.done(method, path, body)
        assert (await document(admin, "GET", path))["partitions"] == count
        if method == "PUT":
            await admin.done("DELETE", path)
    await admin.done("PUT", "~/persistent/t1/n1/q/partitions", {"partitions": 1,
                     "properties": {"a": "b"}})  # fmt: skip
    assert (await document(admin, "GET", "~/persistent/t1/n1/q/partitions")) == {
        "partitions": 1,
        "deleted": False,
        "properties": {"a": "b"},
    }


async def test_a_forced_deletion_of_a_schema_returns_the_last_version(
    admin: Admin,
) -> None:
    path = "~/schemas/t1/n1/a/schema"
    assert await document(admin, "DELETE", path + "?force=true") == {"version": -1}
    for kind, expected in (("STRING", 0), ("STRING", 0)):
        body = {"type": kind, "schema": "", "properties": {}}
        await admin.done("POST", path, body)
        assert await document(admin, "DELETE", path + "?force=true") == {"version": expected}
    assert (await admin.call("GET", path)).status_code == 404


async def test_a_partitioned_topic_without_properties_has_an_empty_answer(
    admin: Admin,
) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 1)
    answer = await admin.done("GET", "~/persistent/t1/n1/p/properties")
    assert (answer.status_code, answer.text) == (200, "")


async def test_partitioned_topics_are_listed_by_their_domain(admin: Admin) -> None:
    for domain in ("persistent", "non-persistent"):
        await admin.done("PUT", f"~/{domain}/t1/n1/b/partitions", 1)
        await admin.done("PUT", f"~/{domain}/t1/n1/{domain}-a/partitions", 1)
    for domain in ("persistent", "non-persistent"):
        assert await document(admin, "GET", f"~/{domain}/t1/n1/partitioned") == [
            f"{domain}://t1/n1/b",
            f"{domain}://t1/n1/{domain}-a",
        ]


async def test_a_partition_has_no_partitions(admin: Admin) -> None:
    path = "~/persistent/t1/n1/a-partition-0/partitions"
    for method, body in (("PUT", 1), ("POST", 2), ("DELETE", NO_BODY)):
        refused = await admin.call(method, path, body)
        assert refused.status_code == 412
        assert refused.json()["reason"].endswith("should not contain '-partition-'")


async def test_an_unreadable_entry_counts_as_one_message(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", TOPIC + "/subscription/s")
    for data in (b"no entry at all", entry(b"three", 1, num_messages_in_batch=3)):
        await append(topic, data)
    actual = await document(admin, "POST", TOPIC + "/subscription/s/analyzeBacklog")
    assert actual == {
        "entries": 2,
        "messages": 4,
        "markerMessages": 0,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": 2,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": 4,
        "filterRescheduledMessages": 0,
        "aborted": False,
        "firstMessageId": actual["firstMessageId"],
        "lastMessageId": actual["lastMessageId"],
    }


async def test_a_topics_oldest_unread_message_is_the_oldest_of_any_subscription(
    admin: Admin,
) -> None:
    for name in ("behind", "ahead", "done"):
        await admin.done("PUT", f"{TOPIC}/subscription/{name}")
    await admin.publish([b"m"] * 3)
    await admin.done("POST", TOPIC + "/subscription/ahead/skip/2")
    await admin.done("POST", TOPIC + "/subscription/done/skip_all")
    field = "earliestMsgPublishTimeInBacklog"
    for query, times in (
        ("?getEarliestTimeInBacklog=true", (1_700_000_000_000, 1_700_000_000_002, 0)),
        ("?getEarliestTimeInBacklog=false", (0, 0, 0)),
        ("", (0, 0, 0)),
    ):
        stats = await document(admin, "GET", TOPIC + "/stats" + query)
        subscriptions = stats["subscriptions"]
        actual = tuple(subscriptions[name][field] for name in ("behind", "ahead", "done"))
        assert (actual, stats[field + "s"]) == (times, times[0])


async def test_a_producers_stats_show_the_average_message_size(admin: Admin) -> None:
    producer = await admin.producer()
    stats = await document(admin, "GET", TOPIC + "/stats")
    assert (stats["publishers"][0]["averageMsgSize"], stats["averageMsgSize"]) == (0.0, 0.0)
    sizes = [len(entry(b"x" * size, number)) for number, size in enumerate((10, 30))]
    await admin.publish([b"x" * 10, b"x" * 30], producer=producer)
    await admin.service._renew_rates()
    stats = await document(admin, "GET", TOPIC + "/stats")
    assert stats["publishers"][0]["averageMsgSize"] == sum(sizes) / 2
    assert stats["averageMsgSize"] == sum(sizes) / 2
    assert stats["bytesInCounter"] == sum(sizes)


async def test_a_missing_partition_is_not_in_the_sums(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 2)
    await admin.consumer("s", SubType.Shared, "p-partition-1")
    await admin.done("DELETE", "~/persistent/t1/n1/p-partition-0")
    missing = await admin.call("GET", "~/persistent/t1/n1/p-partition-2/stats")
    assert missing.status_code == 404
    assert missing.json() == {"reason": "Topic partitions were not yet created"}
    for what in ("partitioned-stats", "partitioned-internalStats"):
        actual = await document(admin, "GET", f"~/persistent/t1/n1/p/{what}")
        assert set(actual["partitions"]) == {str(topic_name("p-partition-1"))}
        assert actual["metadata"] == {"partitions": 2, "deleted": False}


async def test_a_topics_stats_are_its_counters(admin: Admin) -> None:
    topic = await admin.topic()
    counters = topic.counters
    counters.messages_in, counters.bytes_in, counters.last_published_ms = 1, 2, 3
    counters.publish_limited_times, counters.message_rate_in = 4, 5.0
    counters.bytes_rate_in = 60.0
    actual = await document(admin, "GET", TOPIC + "/stats")
    assert (actual["msgInCounter"], actual["bytesInCounter"]) == (1, 2)
    assert (actual["lastPublishTimeStamp"], actual["publishRateLimitedTimes"]) == (3, 4)
    assert (actual["msgRateIn"], actual["msgThroughputIn"]) == (5.0, 60.0)
    assert actual["averageMsgSize"] == 12.0
    assert (actual["waitingPublishers"], actual["oldestBacklogMessageAgeSeconds"]) == (0, -1)
    assert actual["deduplicationStatus"] == "Disabled"


async def test_ack_holes_are_counted_over_all_subscriptions(
    admin: Admin,
) -> None:
    topic = await admin.topic()
    for name in ("one", "two"):
        await admin.done("PUT", f"{TOPIC}/subscription/{name}", FIRST)
    ids = await admin.publish([b"m"] * 6)
    for name, acked in (("one", (1,)), ("two", (1, 3))):
        for number in acked:
            topic.subscriptions[name].cursor.ack(*ids[number])
    actual = await document(admin, "GET", TOPIC + "/stats")
    field = "nonContiguousDeletedMessagesRanges"
    holes = {name: item[field] for name, item in actual["subscriptions"].items()}
    assert (holes, actual[field]) == ({"one": 1, "two": 2}, 3)

"""Each option of a request has its effect, and none if it is missing."""

from typing import Any

import pytest
from tests.support.settings import changed

from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.own_properties import EPOCH_PROPERTY, SHADOW_PROPERTY
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.managed_ledger.record import WATERMARK_PROPERTY

from .support import NO_BODY, Admin, Peer, topic_name

TOPICS = "~/persistent/t1/n1"
TOPIC = TOPICS + "/a"
PARTS = TOPICS + "/p"
NAMESPACE = "~/namespaces/t1/n1"
EARLIEST = {"ledgerId": -1, "entryId": -1}
STRING = {"type": "STRING", "schema": "", "properties": {}}


async def documents(admin: Admin, method: str, path: str, body: object = NO_BODY) -> Any:
    return (await admin.done(method, path, body)).json()


async def refused(admin: Admin, method: str, path: str, body: object = NO_BODY) -> tuple[int, str]:
    answer = await admin.call(method, path, body)
    assert answer.status_code >= 400, f"{method} {path}: {answer.status_code}"
    return answer.status_code, answer.json()["reason"]


async def all_topics(admin: Admin, namespace: str = "t1/n1") -> list[str]:
    names = await admin.service.topics.names(NamespaceName.parse(namespace), "persistent")
    return sorted(name.local for name in names)


def settings_are(admin: Admin, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    settings = changed(admin.service.settings, **given)
    monkeypatch.setattr(admin.service, "settings", settings)


def producer_of(mode: AccessMode) -> Producer:
    return Producer(
        1, "p", Peer(), epoch=0, generated_name=False, access_mode=mode, topic_epoch=None,
        request_id=1, connected_since_ms=1, metadata=[],
    )  # fmt: skip


@pytest.mark.parametrize("client", ["producer", "consumer"])
async def test_a_client_of_one_partition_prevents_an_unforced_deletion_of_the_topic(
    admin: Admin, client: str
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 3)
    await admin.done("POST", "~/schemas/t1/n1/p/schema", STRING)
    await admin.done("POST", PARTS + "/maxConsumers", 7)
    last = "p-partition-2"
    if client == "producer":
        await admin.producer(last)
    else:
        await admin.consumer("s", SubType.Shared, last)
    counts = "0 consumers, 1 producers" if client == "producer" else "1 consumers, 0 producers"
    reason = f"Topic has 1 client connected Including {counts}, and 0 replicators."
    for path in (PARTS + "/partitions", f"{TOPICS}/{last}"):
        for force in ("", "?force=false"):
            assert await refused(admin, "DELETE", path + force) == (412, reason)
    assert len(await all_topics(admin)) == 3
    assert (await documents(admin, "GET", PARTS + "/partitions"))["partitions"] == 3
    await admin.done("DELETE", PARTS + "/partitions?force=True")
    assert await all_topics(admin) == []
    # The name can be used again, for a topic without the old data.
    await admin.done("PUT", PARTS + "/partitions", 1)
    assert (await admin.call("GET", "~/schemas/t1/n1/p/schema")).status_code == 404
    assert (await admin.done("GET", PARTS + "/maxConsumers")).text in ("", "null")


async def test_a_consumer_of_one_partition_prevents_an_unforced_deletion_of_the_subscription(
    admin: Admin,
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.done("PUT", PARTS + "/subscription/s")
    await admin.consumer("s", SubType.Shared, "p-partition-1")
    for force in ("", "?force=false"):
        answer = await refused(admin, "DELETE", PARTS + "/subscription/s" + force)
        assert answer == (412, "Subscription has active connected consumers")
    for index in range(2):
        assert set((await admin.topic(f"p-partition-{index}")).subscriptions) == {"s"}
    await admin.done("DELETE", PARTS + "/subscription/s?force=true")
    for index in range(2):
        assert not (await admin.topic(f"p-partition-{index}")).subscriptions


async def test_a_forced_deletion_of_a_namespace_needs_the_brokers_consent(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.producer("a")
    for allowed in (False, True):
        settings_are(admin, monkeypatch, force_delete_namespace=allowed)
        plain = await refused(admin, "DELETE", NAMESPACE)
        assert plain == (409, "Cannot delete non empty namespace")
        forced = await admin.call("DELETE", NAMESPACE + "?force=true")
        assert forced.status_code == (204 if allowed else 405)
        assert len(await all_topics(admin)) == (0 if allowed else 3)
    assert (await admin.call("GET", NAMESPACE)).status_code == 404


async def test_a_tenant_is_deleted_with_its_namespaces_only_by_force(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_are(admin, monkeypatch, force_delete_tenant=True, force_delete_namespace=True)
    for force in ("", "?force=false"):
        status, reason = await refused(admin, "DELETE", "~/tenants/t1" + force)
        assert (status, reason) == (409, "The tenant still has active namespaces")
    settings_are(admin, monkeypatch, force_delete_tenant=False, force_delete_namespace=True)
    told = (405, "Broker doesn't allow forced deletion of tenants")
    assert await refused(admin, "DELETE", "~/tenants/t1?force=true") == told
    await admin.done("GET", NAMESPACE)


async def test_a_query_of_partitions_creates_a_topic_only_on_request(
    admin: Admin,
) -> None:
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    await admin.done("POST", NAMESPACE + "/autoTopicCreation", rule)
    for query in ("", "?checkAllowAutoCreation=false"):
        assert (await admin.call("GET", PARTS + "/partitions" + query)).status_code == 404
    assert await documents(admin, "GET", TOPICS + "/partitioned") == []
    actual = await documents(admin, "GET", PARTS + "/partitions?checkAllowAutoCreation=true")
    assert actual["partitions"] == 3
    assert await documents(admin, "GET", TOPICS + "/partitioned") == ["persistent://t1/n1/p"]
    await admin.done("POST", NAMESPACE + "/autoTopicCreation", {"allowAutoTopicCreation": False})
    path = TOPICS + "/q/partitions?checkAllowAutoCreation=true"
    assert (await admin.call("GET", path)).status_code == 404


async def test_a_subscription_creates_its_topic_only_if_auto_creation_is_allowed(
    admin: Admin,
) -> None:
    await admin.done("POST", NAMESPACE + "/autoTopicCreation", {"allowAutoTopicCreation": False})
    answer = await refused(admin, "PUT", TOPIC + "/subscription/s")
    assert answer == (412, "Topic does not exist and cannot be auto-created")
    assert await all_topics(admin) == []
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", TOPIC + "/subscription/s")


async def test_the_number_of_partitions_is_limited_by_broker_and_namespace(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.service.topics.creation, "partitions_max", 4)
    too_many = (406, "Number of partitions should be less than or equal to 4")
    assert await refused(admin, "PUT", PARTS + "/partitions", 5) == too_many
    await admin.done("PUT", TOPICS + "/full/partitions", 4)
    await admin.done("PUT", PARTS + "/partitions", 2)
    assert await refused(admin, "POST", PARTS + "/partitions", 5) == too_many
    await admin.done("POST", NAMESPACE + "/maxTopicsPerNamespace", 8)
    full = (412, "Exceed maximum number of topics in namespace.")
    assert await refused(admin, "PUT", TOPICS + "/q/partitions", 3) == full
    await admin.done("POST", PARTS + "/partitions", 4)
    assert await refused(admin, "PUT", TOPICS + "/q/partitions", 1) == full
    assert len(await all_topics(admin)) == 8
    monkeypatch.setattr(admin.service.topics.creation, "partitions_max", 0)
    await admin.done("POST", NAMESPACE + "/maxTopicsPerNamespace", 0)
    await admin.done("POST", PARTS + "/partitions", 9)


async def test_new_partitions_get_durable_subscriptions_with_their_properties(
    admin: Admin,
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 1)
    given = {**EARLIEST, "properties": {"team": "x"}}
    await admin.done("PUT", PARTS + "/subscription/s", given)
    topic = await admin.topic("p-partition-0")
    spec = ConsumerSpec(7, "c", SubType.Exclusive, durable=False)
    request = SubscribeRequest("reader", spec, durable=False)
    await topic.subscribe(request, Consumer(spec, Peer(), admin.service.clock))
    await admin.done("POST", PARTS + "/partitions", 3)
    for index in (1, 2):
        actual = (await admin.topic(f"p-partition-{index}")).subscriptions
        assert set(actual) == {"s"}
        assert actual["s"].cursor.properties == {"team": "x"}


async def test_partitions_that_are_missing_are_created(admin: Admin) -> None:
    await admin.done("PUT", PARTS + "/partitions", 3)
    for index in (0, 2):
        await admin.done("DELETE", f"{PARTS}-partition-{index}")
    # Reading the topic does not create the partitions again.
    for look in ("subscriptions", "partitioned-stats", "partitioned-internalStats"):
        await admin.done("GET", f"{PARTS}/{look}")
    assert await all_topics(admin) == ["p-partition-1"]
    await admin.done("POST", PARTS + "/createMissedPartitions")
    assert await all_topics(admin) == [f"p-partition-{index}" for index in range(3)]


@pytest.mark.parametrize("partitioned", [False, True])
async def test_properties_of_a_topic_are_added_replaced_and_removed_one_by_one(
    admin: Admin, partitioned: bool
) -> None:
    begin = {"a": "1", "b": "1"}
    if partitioned:
        await admin.done("PUT", TOPIC + "/partitions", {"partitions": 2, "properties": begin})
        grown = await refused(
            admin, "POST", TOPIC + "/partitions", {"partitions": 3, "properties": {"x": "y"}}
        )
        assert grown[0] == 400
    else:
        await admin.done("PUT", TOPIC, begin)
    path = TOPIC + "/properties"
    assert await documents(admin, "GET", path) == begin
    await admin.done("PUT", path, {"b": "2", "c": "2"})
    assert await documents(admin, "GET", path) == {"a": "1", "b": "2", "c": "2"}
    for query in ("", "?key="):
        assert (await refused(admin, "DELETE", path + query))[0] == 400
    await admin.done("DELETE", path + "?key=nope")
    await admin.done("DELETE", path + "?key=b")
    assert await documents(admin, "GET", path) == {"a": "1", "c": "2"}


async def test_the_brokers_own_properties_of_a_topic_are_not_shown(
    admin: Admin,
) -> None:
    await admin.done("PUT", TOPIC, {"a": "1"})
    topic = await admin.topic()
    await topic.add_producer(producer_of(AccessMode.EXCLUSIVE))
    assert len(topic.managed_ledger.properties) == 2
    assert await documents(admin, "GET", TOPIC + "/properties") == {"a": "1"}
    for key in (EPOCH_PROPERTY, WATERMARK_PROPERTY):
        path = TOPIC + "/properties"
        assert (await refused(admin, "PUT", path, {key: "1"}))[0] == 412
        assert (await refused(admin, "DELETE", f"{path}?key={key}"))[0] == 412
    assert len(topic.managed_ledger.properties) == 2


async def test_no_topic_becomes_a_shadow_of_another(admin: Admin) -> None:
    shadow = {SHADOW_PROPERTY: "persistent://t1/n1/source"}
    partitioned = {"partitions": 2, "properties": shadow}
    for verb, path, body in (
        ("PUT", TOPIC, shadow),
        ("PUT", PARTS + "/partitions", partitioned),
    ):
        status, reason = await refused(admin, verb, path, body)
        assert (status, "Shadow topics are not supported" in reason) == (405, True)
        assert (await admin.call("GET", TOPIC + "/stats")).status_code == 404
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", PARTS + "/partitions", 2)
    for path in (TOPIC, PARTS):
        assert (await refused(admin, "PUT", path + "/properties", shadow))[0] == 405


async def test_a_partitions_number_is_below_the_number_of_partitions(admin: Admin) -> None:
    await admin.done("PUT", PARTS + "/partitions", 2)
    for index in (2, 3):
        assert (await refused(admin, "PUT", f"{PARTS}-partition-{index}"))[0] == 412
    assert (await refused(admin, "PUT", PARTS + "-partition-1"))[0] == 409
    await admin.done("DELETE", PARTS + "-partition-1")
    await admin.done("PUT", PARTS + "-partition-1")


async def test_a_bundles_edges_may_be_written_in_capitals(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    bundle = (await admin.done("GET", "/lookup/v2/topic/persistent/t1/n1/a/bundle")).text
    capitals = bundle.upper().replace("X", "x")
    assert capitals != bundle
    for item in (bundle, capitals):
        actual = await documents(admin, "GET", f"{TOPICS}?bundle={item}")
        assert actual == ["persistent://t1/n1/a"]


async def test_a_subscription_exists_once_all_partitions_have_it(admin: Admin) -> None:
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.done("PUT", PARTS + "-partition-0/subscription/s")
    await admin.done("PUT", PARTS + "/subscription/s")
    assert set((await admin.topic("p-partition-1")).subscriptions) == {"s"}
    for index, subscription in enumerate("tu"):
        await admin.done("PUT", f"{PARTS}-partition-{index}/subscription/{subscription}")
    assert await documents(admin, "GET", PARTS + "/subscriptions") == ["s", "t", "u"]
    again = await refused(admin, "PUT", PARTS + "/subscription/s")
    assert again == (409, "Subscription already exists for topic")


async def test_a_replicated_subscription_is_refused_and_not_created(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    assert (await refused(admin, "PUT", TOPIC + "/subscription/s?replicated=true"))[0] == 405
    assert await documents(admin, "GET", TOPIC + "/subscriptions") == []
    await admin.done("PUT", TOPIC + "/subscription/s?replicated=false")


async def test_stats_omit_only_the_excluded_lists(
    admin: Admin,
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 1)
    await admin.producer("p-partition-0")
    await admin.consumer("s", SubType.Shared, "p-partition-0")
    for path in (PARTS + "-partition-0/stats", PARTS + "/partitioned-stats"):
        for publishers in ("true", "false"):
            for consumers in ("true", "false"):
                query = f"?excludePublishers={publishers}&excludeConsumers={consumers}"
                actual = await documents(admin, "GET", path + query)
                assert len(actual["publishers"]) == (publishers == "false")
                assert len(actual["subscriptions"]["s"]["consumers"]) == (consumers == "false")


async def test_lists_of_a_namespace_have_the_requested_domain_and_system_topics(
    admin: Admin,
) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", TOPICS + "/__change_events")
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    user, system = "persistent://t1/n1/a", "persistent://t1/n1/__change_events"
    other = "non-persistent://t1/n1/np"
    for query, wanted in (
        ("", [user]),
        ("?includeSystemTopic=false", [user]),
        ("?includeSystemTopic=true", [user, system]),
        ("?mode=PERSISTENT", [user]),
        ("?mode=NON_PERSISTENT", [other]),
        ("?mode=ALL", [user, other]),
        ("?mode=ALL&includeSystemTopic=true", [user, other, system]),
    ):
        assert await documents(admin, "GET", NAMESPACE + "/topics" + query) == sorted(wanted)
    assert (await refused(admin, "GET", NAMESPACE + "/topics?mode=all"))[0] == 400
    for path in (TOPICS, TOPICS + "?includeSystemTopic=false"):
        assert await documents(admin, "GET", path) == [user]


class Two:
    """Creates two namespaces, the first with topics in two bundles; all have two subscriptions."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.bundles: dict[str, str] = {}
        self.names = [parse_topic(f"persistent://t1/n1/{local}") for local in "abcdef"]
        self.names.append(parse_topic("persistent://t1/n2/a"))

    async def made(self) -> "Two":
        await self.admin.done("PUT", "~/namespaces/t1/n2")
        for name in self.names:
            path = f"~/persistent/{name.namespace}/{name.local}"
            for subscription in ("s", "t"):
                await self.admin.done("PUT", f"{path}/subscription/{subscription}", EARLIEST)
            topic = self.admin.service.topics.loaded(name)
            assert topic is not None
            bundle = f"/lookup/v2/topic/persistent/{name.namespace}/{name.local}/bundle"
            self.bundles[str(name)] = (await self.admin.done("GET", bundle)).text
        return self

    def of(self, bundle: str | None) -> set[str]:
        """Returns the topics of the first namespace, or of one of its bundles."""
        return {
            full for full, item in self.bundles.items() if "/n1/" in full and bundle in (None, item)
        }

    @property
    def loaded(self) -> set[str]:
        return {topic.full_name for topic in self.admin.service.topics}

    async def having(self, subscription: str) -> set[str]:
        actual = set()
        for name in self.names:
            topic = await self.admin.service.topics.get_or_open(name, create=False)
            if subscription in topic.subscriptions:
                actual.add(str(name))
        return actual


@pytest.mark.parametrize("whole", [True, False])
async def test_requests_about_a_namespace_or_bundle_apply_to_no_other(
    admin: Admin, whole: bool
) -> None:
    two = await Two(admin).made()
    bundle = None if whole else two.bundles["persistent://t1/n1/a"]
    path = NAMESPACE if whole else f"{NAMESPACE}/{bundle}"
    everything, chosen = set(two.bundles), two.of(bundle)
    assert chosen < two.of(None) or whole
    await admin.done("PUT", path + "/unload")
    assert two.loaded == everything - chosen
    await admin.done("POST", path + "/unsubscribe/s")
    assert await two.having("s") == everything - chosen
    assert await two.having("t") == everything


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("subscription", [None, "s"])
async def test_the_backlog_is_cleared_only_of_the_requested_subscription_and_bundle(
    admin: Admin, whole: bool, subscription: str | None
) -> None:
    two = await Two(admin).made()
    bundle = None if whole else two.bundles["persistent://t1/n1/a"]
    for local in "abcdef":
        await admin.publish([b"x"], local)
    path = (NAMESPACE if whole else f"{NAMESPACE}/{bundle}") + "/clearBacklog"
    await admin.done("POST", path + (f"/{subscription}" if subscription else ""))
    for local in "abcdef":
        actual = (await admin.topic(local)).subscriptions
        chosen = str(topic_name(local)) in two.of(bundle)
        left = {name: item.cursor.backlog for name, item in actual.items()}
        assert left == {
            "s": 0 if chosen else 1,
            "t": 0 if chosen and subscription is None else 1,
        }


async def test_a_namespace_is_created_only_with_fields_that_clients_may_set(
    admin: Admin,
) -> None:
    given = {"bundles": {"numBundles": 2}, "deleted": False, "max_consumers_per_topic": 5}
    await admin.done("PUT", "~/namespaces/t1/n2", given)
    actual = await documents(admin, "GET", "~/namespaces/t1/n2")
    assert (actual["deleted"], actual["max_consumers_per_topic"]) == (False, 5)
    assert await documents(admin, "GET", "~/namespaces/t1") == ["t1/n1", "t1/n2"]
    await admin.done("PUT", "~/persistent/t1/n2/a")


async def test_a_tenant_without_namespaces_has_an_empty_list(admin: Admin) -> None:
    info = {"adminRoles": ["b", "a", "b"], "allowedClusters": ["standalone"]}
    await admin.done("PUT", "~/tenants/t2", info)
    assert await documents(admin, "GET", "~/namespaces/t2") == []
    assert (await documents(admin, "GET", "~/tenants/t2"))["adminRoles"] == ["a", "b"]
    for clusters, reason in (
        (["standalone", "nope"], "Clusters do not exist"),
        (["standalone", " "], "Clusters cannot be empty or blank"),
    ):
        body = {"adminRoles": [], "allowedClusters": clusters}
        assert await refused(admin, "POST", "~/tenants/t2", body) == (412, reason)


async def test_a_check_of_a_schema_registers_nothing(admin: Admin) -> None:
    path = "~/schemas/t1/n1/a"
    await admin.done("POST", path + "/compatibility", STRING)
    assert (await admin.call("GET", path + "/schema")).status_code == 404


@pytest.mark.parametrize("force", ["", "?force=false", "?force=true"])
async def test_schema_versions_continue_unless_the_deletion_is_forced(
    admin: Admin, force: str
) -> None:
    path = "~/schemas/t1/n1/a"
    await admin.done("POST", path + "/schema", STRING)
    await admin.done("DELETE", path + "/schema" + force)
    again = await documents(admin, "POST", path + "/schema", STRING)
    assert again == {"version": {"version": 0 if force == "?force=true" else 2}}


@pytest.mark.parametrize("value", ["1", "yes", "", "truee"])
async def test_an_option_that_is_neither_true_nor_false_is_refused_and_does_nothing(
    admin: Admin, value: str
) -> None:
    await admin.done("PUT", TOPIC)
    await admin.done("PUT", TOPIC + "/subscription/s", EARLIEST)
    for path, option in ((TOPIC, "force"), (TOPIC + "/subscription/s", "force")):
        answer = await refused(admin, "DELETE", f"{path}?{option}={value}")
        assert answer == (400, f"Query parameter force must be true or false, not {value!r}")
    answer = await refused(admin, "GET", f"{TOPIC}/maxProducers?applied={value}")
    assert answer == (400, f"Query parameter applied must be true or false, not {value!r}")
    assert await all_topics(admin) == ["a"]
    await admin.done("DELETE", TOPIC + "?force=True")
    assert await all_topics(admin) == []


async def test_a_cap_that_is_too_large_is_refused_with_the_largest(admin: Admin) -> None:
    await admin.done("PUT", TOPIC)
    for path in (TOPIC + "/maxProducers", NAMESPACE + "/maxProducersPerTopic"):
        status, reason = await refused(admin, "POST", path, 2**31)
        assert (status, "must be 2147483647 or less, and is 2147483648" in reason) == (400, True)
        assert await refused(admin, "POST", path, -1) == (
            412, f"{path.rpartition('/')[2]} must be 0 or more",
        )  # fmt: skip

"""Required parts of requests; requests change only what they name."""

import pytest

from magnetar.broker.subscription.spec import SubType
from magnetar.core.names import TopicName

from .support import NO_BODY, Admin, topic_name

TOPIC = "~/persistent/t1/n1/a"
AVRO = {"type": "AVRO", "schema": '{"type":"record","name":"R","fields":[]}', "properties": {}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "~/schemas/t1/nope/a/compatibility", AVRO, 404, "Namespace does not exist"),
        ("POST", "~/schemas/t1/nope/a/schema", AVRO, 404, "Namespace does not exist"),
        ("POST", TOPIC + "/subscription/s/expireMessages", NO_BODY, 400, "must be a message id"),
        ("POST", TOPIC + "/subscription/s/resetcursor", NO_BODY, 400, "must be a message id"),
        ("POST", TOPIC + "/maxProducers", NO_BODY, 400, "The request entity cannot be empty."),
        ("GET", "~/magnetar/bookies/a%2Fb/drain", NO_BODY, 404, "There is only this process"),
    ],
)
async def test_an_incomplete_request_is_refused(
    admin: Admin, method: str, path: str, body: object, status: int, text: str
) -> None:
    await admin.done("PUT", TOPIC + "/subscription/s")
    answer = await admin.call(method, path, body)
    assert answer.status_code == status
    assert text in answer.text


async def test_partitions_that_are_added_exist_at_once(admin: Admin) -> None:
    path = "~/persistent/t1/n1/pt/partitions"
    await admin.done("PUT", path, 1)
    await admin.done("POST", path, 3)
    for index in range(3):
        local = f"~/persistent/t1/n1/pt-partition-{index}"
        assert (await admin.call("GET", local + "/internal-info")).status_code == 200
    await admin.done("POST", path, 3)  # the current number
    assert (await admin.call("POST", path, 2)).status_code == 422


async def test_a_new_partitions_subscriptions_miss_no_earlier_message(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers use new partitions as soon as they exist."""
    path = "~/persistent/t1/n1/pt/partitions"
    await admin.done("PUT", path, 1)
    await admin.done("PUT", "~/persistent/t1/n1/pt/subscription/s")
    create = admin.service.topics.create_partitions

    async def then_used(name: TopicName, first: int, end: int) -> None:
        await create(name, first, end)
        await admin.publish([b"early"], f"pt-partition-{first}")

    monkeypatch.setattr(admin.service.topics, "create_partitions", then_used)
    await admin.done("POST", path, 2)
    topic = await admin.topic("pt-partition-1")
    assert topic.subscriptions["s"].cursor.backlog == 1


async def test_a_quota_for_all_clusters_does_not_change_the_topics_own_quotas(
    admin: Admin,
) -> None:
    await admin.done("PUT", TOPIC)
    own, wide = f"{TOPIC}/backlogQuota", f"{TOPIC}/backlogQuota?isGlobal=true"
    policy = {"policy": "producer_exception"}
    await admin.done("POST", own, {"limitSize": 1, "limitTime": -1, **policy})
    await admin.done("POST", wide, {"limitSize": 2, "limitTime": -1, **policy})
    age = wide + "&backlogQuotaType=message_age"
    await admin.done("POST", age, {"limitSize": -1, "limitTime": 3, **policy})

    async def limits(suffix: str) -> dict[str, tuple[int, int]]:
        actual = (await admin.done("GET", f"{TOPIC}/backlogQuotaMap{suffix}")).json()
        return {name: (item["limitSize"], item["limitTime"]) for name, item in actual.items()}

    assert await limits("") == {"destination_storage": (1, -1)}
    assert await limits("?isGlobal=true") == {
        "destination_storage": (2, -1),
        "message_age": (-1, 3),
    }
    await admin.done("DELETE", wide)
    assert await limits("?isGlobal=true") == {"message_age": (-1, 3)}
    assert await limits("") == {"destination_storage": (1, -1)}


async def test_a_new_namespace_has_no_properties(admin: Admin) -> None:
    path = "~/namespaces/t1/n1/properties"
    assert (await admin.done("GET", path)).json() == {}
    await admin.done("PUT", path, {"a": "1", "b": "2"})
    await admin.done("PUT", path, {"b": "3"})
    assert (await admin.done("GET", path)).json() == {"a": "1", "b": "3"}
    gone = await admin.done("DELETE", "~/namespaces/t1/n1/property/a")
    assert gone.text.strip('"') == "1"
    assert (await admin.done("GET", path)).json() == {"b": "3"}
    await admin.done("DELETE", path)
    assert (await admin.done("GET", path)).json() == {}


async def test_null_fields_count_as_missing(admin: Admin) -> None:
    path = "~/namespaces/t1/n1/persistence"
    whole = {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    await admin.done("POST", path, {**whole, "managedLedgerStorageClassName": None})
    assert (await admin.done("GET", path)).json().items() >= whole.items()


async def test_the_topics_that_lose_most_are_listed_first(admin: Admin) -> None:
    for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    await admin.done("POST", "~/namespaces/t1/n1/retention", for_ever)
    counts = {"a": 1, "b": 3, "c": 2}
    for local, count in counts.items():
        await admin.publish([b"x" * 100] * count, local)
        await admin.service.topics.unload(topic_name(local))
        await admin.topic(local)
        await admin.publish([b"the ledger that is written is kept"], local)
    path = "~/magnetar/namespaces/t1/n1/effect?retentionTimeInMinutes=0&retentionSizeInMB=0"
    actual = (await admin.done("GET", path)).json()
    losers = [name.removeprefix("persistent://t1/n1/") for name in actual["topics"]]
    assert losers == ["b", "c", "a"]
    assert actual["deletes"]["entries"] == 6


async def test_a_topics_rate_out_is_that_of_all_its_subscriptions(admin: Admin) -> None:
    for name in ("one", "two"):
        await admin.consumer(name, SubType.Shared)
    await admin.publish([b"m"] * 30)
    topic = await admin.topic()
    for subscription in topic.subscriptions.values():
        for consumer in subscription.consumers:
            consumer.rates.out, consumer.rates.throughput = 5.0, 50.0
    stats = (await admin.done("GET", TOPIC + "/stats")).json()
    rates = [item["msgRateOut"] for item in stats["subscriptions"].values()]
    assert stats["msgRateOut"] == sum(rates) > 0
    assert stats["msgOutCounter"] == 60
    assert stats["msgThroughputOut"] == sum(
        item["msgThroughputOut"] for item in stats["subscriptions"].values()
    )

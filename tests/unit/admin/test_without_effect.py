"""What could not act is refused, with the name of the field and what to do instead."""

from typing import Any

import pytest

from magnetar.core.errors import NotAllowed
from magnetar.core.names import parse_topic

from .support import Admin

NAMESPACES = "~/namespaces/t1"
FOUR = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
TOO_MANY = "Number of partitions should be less than or equal to 3"
RATE = {"publishThrottlingRateInMsg": 5}


async def test_a_non_persistent_topic_is_not_created_with_properties(admin: Admin) -> None:
    path = "~/non-persistent/t1/n1/a"
    refused = await admin.call("PUT", path, {"team": "x"})
    assert refused.status_code == 405
    assert "keeps no properties" in refused.text
    assert not await admin.service.topics.exists(parse_topic("non-persistent://t1/n1/a"))
    await admin.done("PUT", path, {})


async def test_the_maximum_of_partitions_holds_for_topics_created_by_use(admin: Admin) -> None:
    limit, topics = "~/brokers/configuration/maxNumPartitionsPerPartitionedTopic", admin.service
    await admin.done("POST", f"{NAMESPACES}/n1/autoTopicCreation", FOUR)
    await admin.done("POST", f"{limit}/3")
    refused = await admin.call("POST", f"{NAMESPACES}/n1/autoTopicCreation", FOUR)
    assert (refused.status_code, refused.json()["reason"]) == (406, TOO_MANY)
    created = {"autoTopicCreationOverride": FOUR}
    assert (await admin.call("PUT", f"{NAMESPACES}/n2", created)).status_code == 406
    # The policy is older than the limit.
    name = parse_topic("persistent://t1/n1/used")
    with pytest.raises(NotAllowed, match=TOO_MANY):
        await topics.topics.partitions_or_create(name, auto_create=True)
    assert not await topics.resources.partitions(name)
    await admin.done("DELETE", limit)
    assert await topics.topics.partitions_or_create(name, auto_create=True) == 4


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"deleted": True}, 405, "leave it out"),
        ({"latency_stats_sample_rate": {"a": 1}}, 405, "latency_stats_sample_rate"),
        (
            {"publishMaxMessageRate": {"far": RATE}},
            405,
            "publishMaxMessageRate has a value for far",
        ),
        ({"auth_policies": {"namespace_auth": {"r": ["fly"]}}}, 400, "No such action: fly"),
        ({"auth_policies": {"destination_auth": {"t": {"r": ["no"]}}}}, 400, "No such action: no"),
        ({"auth_policies": {"namespace_auth": {"r": "produce"}}}, 400, "auth_policies"),
        ({"auth_policies": {"namespaces": {}}}, 400, "namespaces"),
    ],
)
async def test_a_namespace_is_not_created_with_what_nothing_reads(
    admin: Admin, body: dict[str, Any], status: int, text: str
) -> None:
    refused = await admin.call("PUT", f"{NAMESPACES}/n2", body)
    assert refused.status_code == status
    assert text in refused.json()["reason"]
    assert (await admin.call("GET", f"{NAMESPACES}/n2")).status_code == 404


async def test_grants_of_a_new_namespace_are_complete(admin: Admin) -> None:
    grants = {"namespace_auth": {"r": ["produce", "consume", "produce"]}}
    cluster = admin.service.cluster
    body = {"auth_policies": grants, "publishMaxMessageRate": {cluster: RATE}}
    await admin.done("PUT", f"{NAMESPACES}/n2", body)
    shown = (await admin.done("GET", f"{NAMESPACES}/n2/permissions")).json()
    assert shown == {"r": ["consume", "produce"]}
    assert (await admin.done("GET", f"{NAMESPACES}/n2/permissions/subscription")).json() == {}


@pytest.mark.parametrize("path", [f"{NAMESPACES}/n1", "~/persistent/t1/n1/a"])
@pytest.mark.parametrize(
    ("kind", "own", "other"),
    [("destination_storage", "limitSize", "limitTime"), ("message_age", "limitTime", "limitSize")],
)
async def test_a_quota_has_the_limit_that_its_type_counts(
    admin: Admin, path: str, kind: str, own: str, other: str
) -> None:
    await admin.topic()
    quota = {"policy": "producer_exception", other: 60}
    at = f"{path}/backlogQuota?backlogQuotaType={kind}"
    refused = await admin.call("POST", at, quota)
    assert refused.status_code == 400
    assert f"{kind} needs {own}" in refused.json()["reason"]
    created = await admin.call("PUT", f"{NAMESPACES}/n2", {"backlog_quota_map": {kind: quota}})
    assert created.status_code == 400
    await admin.done("POST", at, quota | {own: 60})  # as pulsar-admin sends both
    await admin.done("POST", at, {"policy": "producer_exception"})  # no limit

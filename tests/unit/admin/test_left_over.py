"""Incomplete records and objects: records without a field, cursors without consumers."""

from typing import Any

import pytest

from magnetar.admin.cluster.sender import UNDER_HEADER
from magnetar.admin.routers.policies.offload_form import _ELSEWHERE
from magnetar.broker.subscription.spec import SubType
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.store import BadRevision

from .support import Admin

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
NAME = NamespaceName("t1", "n1")


async def without(admin: Admin, field: str) -> None:
    """Writes the namespace's document without the field, as an older release did."""

    def change(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != field}

    await admin.service.resources.update_policies(NAME, change)


async def test_a_namespace_whose_record_has_no_properties_has_none(admin: Admin) -> None:
    await without(admin, "properties")
    path = NAMESPACE + "/properties"
    assert (await admin.done("GET", path)).json() == {}
    await admin.done("PUT", path, {"a": "1"})
    assert (await admin.done("GET", path)).json() == {"a": "1"}


@pytest.mark.parametrize("field", ["message_ttl_in_seconds", "backlog_quota_map"])
async def test_a_policy_is_set_and_removed_in_a_record_without_it(admin: Admin, field: str) -> None:
    await without(admin, field)
    await admin.done("POST", NAMESPACE + "/messageTTL", 5)
    quota = {"limitSize": 5, "policy": "producer_exception"}
    await admin.done("POST", NAMESPACE + "/backlogQuota", quota)
    assert (await admin.done("GET", NAMESPACE + "/messageTTL")).json() == 5
    await admin.done("DELETE", NAMESPACE + "/messageTTL")
    await admin.done("DELETE", NAMESPACE + "/backlogQuota")
    assert (await admin.done("GET", NAMESPACE + "/messageTTL")).text == ""
    assert (await admin.done("GET", NAMESPACE + "/backlogQuotaMap")).json() == {}


async def test_a_cursor_waits_for_entries_while_a_consumer_is_connected(admin: Admin) -> None:
    consumer = await admin.consumer("s", SubType.Shared)
    topic = await admin.topic()

    async def waits() -> Any:
        cursor = (await admin.done("GET", TOPIC + "/internalStats")).json()["cursors"]["s"]
        return cursor["subscriptionHavePendingRead"]

    assert await waits() is True
    topic.remove_consumer(topic.subscriptions["s"], consumer)
    assert await waits() is False


@pytest.mark.parametrize(
    ("header", "changed", "status"),
    [
        ("7 /namespaces/t1/n1", "/namespaces/t1/n1", 412),
        ("7 /namespaces/t1/n1", "/another", 409),
        (None, "/namespaces/t1/n1", 409),
    ],
)
async def test_a_deletion_starts_over_only_if_its_own_mark_has_changed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, header: str | None, changed: str, status: int
) -> None:
    await admin.topic()

    async def overtaken(name: TopicName, **_: object) -> None:
        raise BadRevision(changed, 7, 8)

    monkeypatch.setattr(admin.service.topics, "delete", overtaken)
    headers = None if header is None else {UNDER_HEADER: header}
    answer = await admin.call("DELETE", TOPIC, headers=headers)
    assert answer.status_code == status
    assert changed in answer.json()["reason"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        *((field, "x", f"{text}; leave it out") for field, text in _ELSEWHERE.items()),
        ("offloadersDirectory", "/x", "leave it out"),
        ("managedLedgerOffloadMaxThreads", 3, "leave it out"),
    ],
)
async def test_a_field_without_effect_is_refused_with_the_alternative(
    admin: Admin, field: str, value: object, reason: str
) -> None:
    given = {"managedLedgerOffloadDriver": "aws-s3", field: value}
    answer = await admin.call("POST", NAMESPACE + "/offloadPolicies", given)
    assert answer.status_code == 412
    assert answer.json()["reason"] == f"{field} has no effect here: {reason}"


@pytest.mark.parametrize(
    ("field", "driver", "owner"),
    [
        ("s3ManagedLedgerOffloadBucket", "filesystem", "aws-s3 or S3 or s3"),
        ("gcsManagedLedgerOffloadRegion", "aws-s3", "google-cloud-storage"),
        ("fileSystemURI", None, "filesystem"),
    ],
)
async def test_a_field_of_another_driver_is_refused_with_its_driver(
    admin: Admin, field: str, driver: str | None, owner: str
) -> None:
    given = {field: "x"} if driver is None else {field: "x", "managedLedgerOffloadDriver": driver}
    answer = await admin.call("POST", NAMESPACE + "/offloadPolicies", given)
    assert answer.status_code == 412
    said = f"managedLedgerOffloadDriver is {driver or 'not set'}"
    reason = answer.json()["reason"]
    assert reason.startswith(f"{field} belongs to the driver ")
    assert reason.endswith(f", and {said}")
    assert set(owner.split(" or ")) <= set(reason.replace(",", "").split())


async def test_a_reset_to_the_earliest_ignores_the_batch_index(
    admin: Admin,
) -> None:
    sub = TOPIC + "/subscription/s"
    await admin.done("PUT", sub)
    await admin.publish([b"m0", b"m1"])
    for more in ({"batchIndex": 1}, {"batchIndex": 0, "isExcluded": True}):
        await admin.done("POST", sub + "/skip_all")
        await admin.done("POST", sub + "/resetcursor", {"ledgerId": -1, "entryId": -1, **more})
        assert (await admin.done("GET", sub + "/position/1")).content == b"m0"

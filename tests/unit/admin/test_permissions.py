"""Permissions are stored and shown; namespaces are created and shown with their policies."""

from typing import Any

import pytest

from .support import Admin

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
QUOTA = {"limit": 9, "policy": "producer_exception"}
FULL = "persistent://t1/n1/a"


async def document(admin: Admin) -> dict[str, Any]:
    actual: dict[str, Any] = (await admin.call("GET", NAMESPACE)).json()
    return actual


async def test_granted_on_a_namespace_and_a_topic(admin: Admin) -> None:
    await admin.topic()
    await admin.done("POST", f"{NAMESPACE}/permissions/team", ["produce", "consume", "produce"])
    await admin.done("POST", f"{TOPIC}/permissions/team", ["functions"])
    await admin.done("POST", f"{TOPIC}/permissions/guest", ["consume"])
    of_namespace = (await admin.call("GET", f"{NAMESPACE}/permissions")).json()
    assert of_namespace == {"team": ["consume", "produce"]}
    assert (await admin.call("GET", f"{TOPIC}/permissions")).json() == {
        "team": ["consume", "functions", "produce"],
        "guest": ["consume"],
    }
    assert (await document(admin))["auth_policies"]["destination_auth"] == {
        FULL: {"team": ["functions"], "guest": ["consume"]}
    }
    for _ in range(2):  # revoking nothing succeeds as well
        await admin.done("DELETE", f"{TOPIC}/permissions/team")
    await admin.done("DELETE", f"{NAMESPACE}/permissions/team")
    assert (await admin.call("GET", f"{TOPIC}/permissions")).json() == {"guest": ["consume"]}


async def test_permissions_of_a_topic_are_deleted_with_it(admin: Admin) -> None:
    await admin.topic()
    await admin.done("POST", f"{TOPIC}/permissions/guest", ["consume"])
    await admin.done("DELETE", f"{TOPIC}?force=true")
    assert (await document(admin))["auth_policies"]["destination_auth"] == {}


async def test_permissions_of_a_partitioned_topic_apply_to_its_partitions(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 2)
    await admin.done("POST", "~/persistent/t1/n1/p/permissions/guest", ["consume"])
    auth = (await document(admin))["auth_policies"]["destination_auth"]
    assert auth == {"persistent://t1/n1/p": {"guest": ["consume"]}}
    await admin.done("DELETE", "~/persistent/t1/n1/p/partitions?force=true")
    assert (await document(admin))["auth_policies"]["destination_auth"] == {}


@pytest.mark.parametrize("prefix", ["subscription/s1", "s1"])
async def test_granted_on_a_subscription(admin: Admin, prefix: str) -> None:
    path = f"{NAMESPACE}/permissions/subscription"
    await admin.done("POST", f"{path}/s1", ["r2", "r1"])
    assert (await admin.call("GET", path)).json() == {"s1": ["r1", "r2"]}
    await admin.done("DELETE", f"{NAMESPACE}/permissions/{prefix}/r2")
    assert (await admin.call("GET", path)).json() == {"s1": ["r1"]}
    await admin.done("DELETE", f"{NAMESPACE}/permissions/{prefix}/nobody")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", f"{NAMESPACE}/permissions/r", ["fly"], 400, "No such action: fly"),
        ("POST", f"{NAMESPACE}/permissions/r", None, 400, "Actions should not be null"),
        ("POST", f"{TOPIC}-no/permissions/r", ["produce"], 404, f"Topic {FULL}-no not found"),
        ("GET", f"{TOPIC}-no/permissions", None, 404, f"Topic {FULL}-no not found"),
        ("GET", "~/namespaces/t1/no/permissions", None, 404, "Namespace does not exist"),
        (
            "POST",
            "~/namespaces/t1/no/permissions/r",
            ["produce"],
            404,
            "Topic's namespace does not exist",
        ),
    ],
)
async def test_invalid_permissions_are_refused(
    admin: Admin, method: str, path: str, body: object, status: int, reason: str
) -> None:
    answer = await admin.call(method, path, body)
    assert (answer.status_code, reason in answer.json()["reason"]) == (status, True)


async def test_a_namespace_is_created_with_its_policies(admin: Admin) -> None:
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1}
    await admin.done(
        "PUT",
        "~/namespaces/t1/made",
        {
            "bundles": {"numBundles": 2},
            "message_ttl_in_seconds": 60,
            "retention_policies": {"retentionTimeInMinutes": "5", "retentionSizeInMB": 7},
            "backlog_quota_map": {"destination_storage": QUOTA},
            "topicDispatchRate": {"standalone": rate},
            "deduplicationEnabled": None,
        },
    )  # fmt: skip
    actual = (await admin.call("GET", "~/namespaces/t1/made")).json()
    assert actual["message_ttl_in_seconds"] == 60
    assert actual["retention_policies"] == {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}
    assert actual["backlog_quota_map"]["destination_storage"]["limitSize"] == 9
    assert actual["backlog_quota_map"]["destination_storage"]["limit"] == 9
    assert actual["is_allow_auto_update_schema"] is True
    assert "deduplicationEnabled" not in actual
    applied = await admin.call("GET", "~/namespaces/t1/made/dispatchRate")
    assert applied.json()["dispatchThrottlingRateInMsg"] == 5


@pytest.mark.parametrize(
    ("policies", "status", "reason"),
    [
        (
            {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 10}},
            400,
            "Invalid retention policy",
        ),
        ({"message_ttl_in_seconds": -1}, 412, "Invalid value for message TTL"),
        ({"message_ttl_in_seconds": "x"}, 400, "must be a whole number"),
        ({"publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": -9}}}, 412, "-9"),
        (
            {
                "persistence": {
                    "bookkeeperEnsemble": 1,
                    "bookkeeperWriteQuorum": 2,
                    "bookkeeperAckQuorum": 2,
                }
            },
            400,
            "WriteQuorum (2) >= AckQuorum (2)",
        ),
    ],
)
async def test_a_namespace_with_invalid_policies_is_not_created(
    admin: Admin, policies: dict[str, object], status: int, reason: str
) -> None:
    answer = await admin.call("PUT", "~/namespaces/t1/bad", policies)
    assert (answer.status_code, reason in answer.json()["reason"]) == (status, True), answer.text
    assert (await admin.call("GET", "~/namespaces/t1/bad")).status_code == 404


async def test_the_document_is_pulsars(admin: Admin) -> None:
    before = await document(admin)
    strategy = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy"
    refused = await admin.call("PUT", strategy, "Backward")
    assert refused.status_code == 405
    assert "schemaCompatibilityStrategy" in refused.json()["reason"]
    await admin.done("PUT", strategy, None)
    assert await document(admin) == before
    wrong = await admin.call("PUT", f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", "X")
    assert wrong.status_code == 412

"""A field that no body has is refused by name: it would have no effect (PIP-179 as the default)."""

import pytest

from .support import Admin

TENANT = {"allowedClusters": ["standalone"]}
NAMESPACE, TOPIC = "~/namespaces/t1/n1", "~/persistent/t1/n1/a"
CLUSTER = "~/clusters/standalone"
ISOLATION = {
    "namespaces": ["public/.*"],
    "primary": [".*"],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {}, "extra": 1},
}
RETENTION = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5}


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        (
            *("PUT", "~/tenants/t9", {**TENANT, "admin_roles": ["me"]}),
            'Unrecognized field "admin_roles": known are adminRoles, allowedClusters',
        ),
        (
            *("POST", NAMESPACE + "/retention", {**RETENTION, "retention_size_in_mb": 9}),
            (
                'Unrecognized field "retention_size_in_mb": known are retentionSizeInMB, '
                "retentionTimeInMinutes"
            ),
        ),
        (
            *("POST", TOPIC + "/retention", {"retention_size_in_mb": -1}),
            (
                'Unrecognized field "retention_size_in_mb": known are retentionSizeInMB, '
                "retentionTimeInMinutes"
            ),
        ),
        (
            *("PUT", "~/namespaces/t1/n9", {"message_ttl_in_second": 60}),
            'Unrecognized field "message_ttl_in_second": known are message_ttl_in_seconds',
        ),
        (
            *("PUT", "~/namespaces/t1/n9", {"retention_policies": {**RETENTION, "size": 1}}),
            'Unrecognized field "size": known are retentionSizeInMB, retentionTimeInMinutes',
        ),
        ("PUT", "~/namespaces/t1/n9", {"nonsense": 1}, 'Unrecognized field "nonsense"'),
        (
            *("PUT", "~/clusters/c9", {"serviceUrl": "http://x", "brokerServiceURL": "pulsar://x"}),
            (
                'Unrecognized field "brokerServiceURL": known are brokerServiceUrl, '
                "brokerServiceUrlTls, proxyServiceUrl"
            ),
        ),
        (
            *("POST", CLUSTER + "/namespaceIsolationPolicies/p9", ISOLATION),
            'Unrecognized field "extra" of auto_failover_policy: known are parameters, policy_type',
        ),
        (
            *("POST", CLUSTER + "/failureDomains/d9", {"brokers": ["a:1"], "broker": "a:1"}),
            'Unrecognized field "broker": known are brokers',
        ),
        (
            *("PUT", "~/resourcegroups/g9", {"publishRateInMsg": 1}),
            (
                'Unrecognized field "publishRateInMsg": known are dispatchRateInBytes, '
                "dispatchRateInMsgs, publishRateInBytes, publishRateInMsgs"
            ),
        ),
        (
            *("PUT", "~/persistent/t1/n1/p9/partitions", {"partitions": 2, "property": {}}),
            'Unrecognized field "property": known are deleted, partitions, properties',
        ),
        (
            *("POST", "~/namespaces/grantPermissionsOnTopics"),
            [{"topic": "persistent://t1/n1/x", "role": "r", "actions": [], "action": "consume"}],
            'Unrecognized field "action": known are actions, role, topic',
        ),
    ],
)
async def test_an_unknown_field_is_named_with_its_likes_and_nothing_is_stored(
    admin: Admin, method: str, path: str, body: object, reason: str
) -> None:
    await admin.topic()
    refused = await admin.call(method, path, body)
    assert (refused.status_code, refused.json()["reason"]) == (400, reason)
    shown = await admin.call("GET", path)
    assert "9" not in shown.text or shown.status_code == 404


async def test_a_null_counts_as_missing_and_ids_may_have_the_fields_of_clients(
    admin: Admin,
) -> None:
    await admin.topic()
    await admin.done("POST", NAMESPACE + "/retention", {**RETENTION, "newer": None})
    await admin.done("PUT", "~/tenants/t9", {**TENANT, "newer": None})
    await admin.done("PUT", "~/clusters/c9", {"serviceUrl": "http://x", "newer": None})
    await admin.done("PUT", TOPIC + "/subscription/s", "earliest")
    place = {"ledgerId": 0, "entryId": 0, "acker": {"batchSize": 1}}
    await admin.done("POST", TOPIC + "/subscription/s/resetcursor", place)


async def test_what_a_namespace_shows_may_be_sent_back(admin: Admin) -> None:
    quota = {"limitSize": 9, "policy": "producer_exception"}
    await admin.done("POST", NAMESPACE + "/retention", RETENTION)
    await admin.done("POST", NAMESPACE + "/messageTTL", 60)
    await admin.done("DELETE", NAMESPACE + "/retention")
    await admin.done("POST", NAMESPACE + "/backlogQuota", quota)
    shown = (await admin.call("GET", NAMESPACE)).json()
    await admin.done("PUT", "~/namespaces/t1/n9", shown)
    assert (await admin.call("GET", "~/namespaces/t1/n9")).json() == shown

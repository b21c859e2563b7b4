"""Isolation policies over REST: statuses and texts as recorded from Apache Pulsar 4.2.4."""

from typing import Any

import pytest

from .support import BROKER, NO_BODY, Admin

PATH = "~/clusters/standalone/namespaceIsolationPolicies"
UNKNOWN = "~/clusters/nope/namespaceIsolationPolicies"
NONE = "NamespaceIsolationPolicies for cluster standalone does not exist"
FAILOVER: dict[str, Any] = {
    "policy_type": "min_available",
    "parameters": {"min_limit": "1", "usage_threshold": "80"},
}


def policy(**changes: object) -> dict[str, Any]:
    return {
        "namespaces": ["public/.*"],
        "primary": ["127.*"],
        "secondary": ["x.*"],
        "auto_failover_policy": FAILOVER,
    } | changes


async def test_policies_are_set_shown_and_deleted(admin: Admin) -> None:
    for path, status, reason in (
        (PATH, 404, NONE),
        (PATH + "/p1", 404, NONE),
        (UNKNOWN, 404, "Cluster nope does not exist."),
        (UNKNOWN + "/p1", 412, "Cluster nope does not exist."),
        (UNKNOWN + "/brokers", 412, "Cluster nope does not exist."),
        (UNKNOWN + "/brokers/b", 412, "Cluster nope does not exist."),
    ):
        refused = await admin.call("GET", path)
        assert (refused.status_code, refused.json()["reason"]) == (status, reason), path
    unisolated = {"brokerName": BROKER, "namespaceRegex": [], "primary": False}
    assert (await admin.done("GET", PATH + "/brokers")).json() == [unisolated]
    assert (await admin.done("POST", PATH + "/p1", policy())).status_code == 204
    assert (await admin.done("GET", PATH + "/p1")).json() == policy()
    scoped = policy(unload_scope="none")
    await admin.done("POST", PATH + "/p2", scoped)
    assert (await admin.done("GET", PATH)).json() == {"p1": policy(), "p2": scoped}
    isolated = {
        "brokerName": BROKER,
        "policyName": "p2",
        "namespaceRegex": ["public/.*", "public/.*"],
        "primary": True,
    }
    assert (await admin.done("GET", PATH + "/brokers")).json() == [isolated]
    assert (await admin.done("GET", f"{PATH}/brokers/{BROKER}")).json() == isolated
    other = (await admin.done("GET", f"{PATH}/brokers/nope:1")).json()
    assert other == {"brokerName": "nope:1", "namespaceRegex": [], "primary": False}
    missing = await admin.call("GET", PATH + "/p9")
    assert (missing.status_code, missing.json()["reason"]) == (
        404,
        "Cannot find NamespaceIsolationPolicy p9 for cluster standalone",
    )
    for name in ("p1", "p2", "p2", "p9"):
        assert (await admin.done("DELETE", f"{PATH}/{name}")).status_code == 204
    assert (await admin.done("GET", PATH)).json() == {}
    assert (await admin.call("DELETE", UNKNOWN + "/p1")).status_code == 412


@pytest.mark.parametrize(
    "body",
    [
        NO_BODY,
        {},
        policy(secondary=None),
        policy(primary=[]),
        policy(namespaces=["["]),
        policy(unload_scope="bogus"),
        policy(auto_failover_policy={"policy_type": "foo", "parameters": {}}),
        policy(primary="x"),
    ],
)
async def test_an_unusable_policy_is_refused_and_not_stored(admin: Admin, body: object) -> None:
    assert (await admin.call("POST", PATH + "/p1", body)).status_code == 400
    assert (await admin.call("GET", PATH)).status_code == 404


async def test_a_policy_that_nothing_could_honor_is_refused(admin: Admin) -> None:
    elsewhere = await admin.call("POST", PATH + "/p1", policy(primary=["other.*"]))
    assert elsewhere.status_code == 412
    assert "served nowhere" in elsewhere.json()["reason"]
    await admin.done("POST", PATH + "/p1", policy(primary=["other.*"], secondary=["127.*"]))
    await admin.done("PUT", "~/clusters/far", {"serviceUrl": "http://far:8080"})
    far = await admin.call("POST", "~/clusters/far/namespaceIsolationPolicies/p", policy())
    assert far.status_code == 405
    assert "use the address of a broker of far" in far.json()["reason"]
    assert (await admin.call("GET", "~/clusters/far/namespaceIsolationPolicies")).status_code == 404
    long = await admin.call("POST", f"{PATH}/{'p' * 257}", policy())
    assert long.status_code == 412


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("min_limit", "-1"), ("usage_threshold", "-1")],
)
async def test_a_limit_that_can_never_act_is_refused(
    admin: Admin, parameter: str, value: str
) -> None:
    failover = {**FAILOVER, "parameters": {**FAILOVER["parameters"], parameter: value}}
    refused = await admin.call("POST", PATH + "/p1", policy(auto_failover_policy=failover))
    assert refused.status_code == 400
    assert f"the parameter {parameter} must be 0" in refused.json()["reason"]
    assert (await admin.call("GET", PATH + "/p1")).status_code == 404

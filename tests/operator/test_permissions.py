"""Permissions as resources: granted, repaired, revoked, and only on what they name."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.resource_stage import NS, Stage, resource_stage

from magnetar_operator.admin import client as admin_client
from magnetar_operator.admin.target import PERMISSION, Target
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER

NAMESPACE = "/namespaces/t1/n1/permissions"
TOPIC = "persistent://t1/n1/a"


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


def shop(*actions: str, **place: str) -> dict[str, Any]:
    return {"role": "shop", "actions": list(actions), **(place or {"namespace": "t1/n1"})}


async def own_grants(on: Stage, part: str) -> Any:
    document = await on.say("GET", "/namespaces/t1/n1")
    return document["auth_policies"][part]


async def test_a_role_gets_its_actions_on_a_namespace(on: Stage) -> None:
    await on.say("POST", f"{NAMESPACE}/other", ["consume"])
    await on.ready("Permission", "p", shop("produce", "consume"))
    assert await on.say("GET", NAMESPACE) == {"other": ["consume"], "shop": ["consume", "produce"]}
    assert on.status("Permission", "p")["resolvedName"] == "shop on t1/n1"
    writes = len(on.rest.writes)
    assert await on.look("Permission", "p") is None
    assert len(on.rest.writes) == writes, "a second look writes nothing"


async def test_a_change_replaces_the_actions_and_drift_is_repaired(on: Stage) -> None:
    await on.ready("Permission", "p", shop("produce", "consume"))
    await on.ready("Permission", "p", shop("consume"))
    assert await on.say("GET", NAMESPACE) == {"shop": ["consume"]}
    await on.say("POST", f"{NAMESPACE}/shop", ["produce", "functions"])
    await on.look("Permission", "p")
    assert await on.say("GET", NAMESPACE) == {"shop": ["consume"]}
    await on.say("DELETE", f"{NAMESPACE}/shop")
    await on.look("Permission", "p")
    assert await on.say("GET", NAMESPACE) == {"shop": ["consume"]}


async def test_deleting_the_resource_revokes_only_its_role(on: Stage) -> None:
    await on.say("POST", f"{NAMESPACE}/other", ["consume"])
    await on.ready("Permission", "p", shop("produce"))
    await on.delete("Permission", "p")
    assert on.get("Permission", "p") == {}
    assert await on.say("GET", NAMESPACE) == {"other": ["consume"]}


async def test_a_topics_grants_are_its_own_and_not_its_namespaces(on: Stage) -> None:
    await on.say("PUT", "/persistent/t1/n1/a")
    await on.say("POST", f"{NAMESPACE}/shop", ["produce"])
    await on.ready("Permission", "p", shop("consume", topic="t1/n1/a"))
    assert await own_grants(on, "destination_auth") == {TOPIC: {"shop": ["consume"]}}
    assert on.status("Permission", "p")["resolvedName"] == f"shop on {TOPIC}"
    # The REST's own list of the topic has the namespace's, too: that is no drift.
    writes = len(on.rest.writes)
    await on.look("Permission", "p")
    assert len(on.rest.writes) == writes
    await on.delete("Permission", "p")
    assert await on.say("GET", NAMESPACE) == {"shop": ["produce"]}
    grants = await own_grants(on, "destination_auth")
    assert not grants.get(TOPIC)


async def test_several_roles_share_a_subscription(on: Stage) -> None:
    for role in ("one", "two"):
        spec = {"role": role, "namespace": "t1/n1", "subscription": "audit/log"}
        await on.ready("Permission", role, spec)
    assert await own_grants(on, "subscription_auth_roles") == {"audit/log": ["one", "two"]}
    await on.delete("Permission", "one")
    assert await own_grants(on, "subscription_auth_roles") == {"audit/log": ["two"]}


async def test_it_waits_for_its_topic_and_takes_its_cluster(on: Stage) -> None:
    on.apply("Permission", "p", {"role": "shop", "actions": ["consume"], "topicRef": {"name": "a"}})
    await on.look("Permission", "p")
    assert on.reason("Permission", "p") == "WaitingForTopic"
    on.watches.woken.clear()
    await on.ready("Topic", "a", {"name": "t1/n1/a"})
    assert on.watches.woken == ["p"]
    assert await on.look("Permission", "p") is None
    assert await own_grants(on, "destination_auth") == {TOPIC: {"shop": ["consume"]}}


async def test_two_resources_do_not_fight_over_one_permission(on: Stage) -> None:
    await on.ready("Permission", "first", shop("produce"))
    on.apply("Permission", "second", shop("consume"))
    await on.look("Permission", "second")
    assert on.reason("Permission", "second") == "Duplicate"
    assert await on.say("GET", NAMESPACE) == {"shop": ["produce"]}


@pytest.mark.parametrize(
    "target",
    [
        Target(PERMISSION, "t1/n1", role="shop"),
        Target(PERMISSION, "t/permissions", role="a on b/c d"),
        Target(PERMISSION, TOPIC, role="x@y"),
        Target(PERMISSION, "t1/n1", "s on x", "shop"),
    ],
)
def test_a_recorded_name_is_read_back(target: Target) -> None:
    assert Target.parse(PERMISSION, target.full_name) == target


def closed_cluster(on: Stage, namespace: str, admitted: list[str]) -> None:
    auth = {"authentication": {"enabled": True}, "resourceNamespaces": admitted}
    spec = {"auth": auth, "adminUrl": "http://127.0.0.1:8080"}
    metadata = {"name": "demo", "namespace": namespace}
    manifest = {"apiVersion": API_VERSION, "kind": CLUSTER.kind, "metadata": metadata, "spec": spec}
    on.kube.put(manifest)


@pytest.mark.parametrize(("admitted", "reason"), [([], "InvalidSpec"), ([NS], "AsSpecified")])
async def test_a_closed_cluster_admits_resources_of_named_namespaces_only(
    on: Stage, admitted: list[str], reason: str
) -> None:
    """Or the author of a resource anywhere in Kubernetes would be a super user of it."""
    closed_cluster(on, "elsewhere", admitted)
    reference = {"name": "demo", "namespace": "elsewhere"}
    on.apply("Permission", "p", {**shop("produce"), "clusterRef": reference})
    await on.look("Permission", "p")
    assert on.reason("Permission", "p") == reason
    assert (await on.say("GET", NAMESPACE) == {}) is (not admitted)

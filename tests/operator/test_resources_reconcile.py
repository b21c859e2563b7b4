"""One reconcile of a resource: changes in the cluster, records before them, the status."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.resource_stage import URL, Stage, resource_stage

from magnetar_operator.admin import client as admin_client
from magnetar_operator.admin.view import FRESH_S
from magnetar_operator.catalog.memory import OUTAGE_PAUSE_MAX_S, PAUSE_FIRST_S, PAUSE_MAX_S
from magnetar_operator.kube.kinds import EVENT, TOPIC
from magnetar_operator.settings import FINALIZER

A = "/persistent/t1/n1/a"
NAME = "t1/n1/a"
HOUR = {"messageTTL": "1h"}
AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


def applied(on: Stage, kind: str = "Topic", name: str = "a") -> dict[str, Any]:
    return dict(on.status(kind, name).get("applied") or {})


# -- waiting


async def test_resources_wait_for_their_dependencies_and_are_woken_by_them(
    on: Stage,
) -> None:
    on.apply("Subscription", "audit", {"topicRef": {"name": "first"}})
    assert await on.look("Subscription", "audit") is not None
    waiting = on.condition("Subscription", "audit")
    assert (waiting["status"], waiting["reason"]) == ("False", "WaitingForTopic")
    assert "there is no Topic resource 'first'" in waiting["message"]
    on.apply("Topic", "first", {"namespaceRef": {"name": "early"}})
    await on.look("Topic", "first")
    assert on.reason("Topic", "first") == "WaitingForNamespace"
    on.apply("Namespace", "early", {"name": "market/early"})
    await on.look("Namespace", "early")
    waiting = on.condition("Namespace", "early")
    assert waiting["reason"] == "WaitingForTenant"
    assert "there is no tenant market in the cluster" in waiting["message"]
    assert on.status("Namespace", "early")["resolvedName"] == "market/early"
    on.watches.woken.clear()
    await on.ready("Tenant", "market", {})
    assert on.watches.woken == ["early"]
    for kind, name, woken in (
        ("Namespace", "early", "first"),
        ("Topic", "first", "audit"),
        ("Subscription", "audit", ""),
    ):
        on.watches.woken.clear()
        assert await on.look(kind, name) is None, on.condition(kind, name)
        assert on.watches.woken == ([woken] if woken else [])
    assert on.status("Subscription", "audit")["resolvedName"] == (
        "persistent://market/early/first/subscription/audit"
    )
    assert await on.say("GET", "/persistent/market/early/first/subscriptions") == ["audit"]


async def test_pauses_grow_with_failures_and_restart_after_success(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    on.apply("Namespace", "n", {"tenant": "later"})
    pauses = [await on.look("Namespace", "n") for _ in range(7)]
    assert pauses[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses[-1] == PAUSE_MAX_S
    await on.ready("Tenant", "later", {})
    assert await on.look("Namespace", "n") is None
    on.rest.refuse = lambda method, _: (412, "not now") if method == "POST" else None
    on.apply("Namespace", "n", {"tenant": "later", "policies": HOUR})
    assert await on.look("Namespace", "n") == PAUSE_FIRST_S


async def test_an_outage_has_short_pauses_and_the_first_answer_wakes_the_others(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    on.rest.down = True
    for name in ("a", "b"):
        on.apply("Topic", name, {"name": f"t1/n1/{name}"})
    pauses = [await on.look("Topic", "a") for _ in range(6)]
    assert pauses[-1] == OUTAGE_PAUSE_MAX_S
    await on.look("Topic", "b")
    down = on.condition("Topic", "a")
    assert (down["status"], down["reason"]) == ("False", "ClusterUnreachable")
    assert "cannot be reached" in down["message"]
    assert on.status("Topic", "a")["adminUrl"] == URL
    on.rest.down = False
    on.time_s += 60
    on.watches.woken.clear()
    assert await on.look("Topic", "a") is None
    assert on.watches.woken == ["b"]
    assert await on.look("Topic", "b") is None


# -- nothing to do


async def test_a_reconcile_with_nothing_to_do_writes_nothing(on: Stage) -> None:
    spec = {"name": NAME, "partitions": 2, "policies": HOUR, "properties": {"team": "red"}}
    await on.ready("Topic", "a", spec)
    before, asked = len(on.kube.writes), len(on.rest.writes)
    for _ in range(3):
        on.time_s += FRESH_S
        assert await on.look("Topic", "a") is None
    on.restart()
    assert await on.look("Topic", "a") is None
    assert (len(on.kube.writes), len(on.rest.writes)) == (before, asked)


async def test_a_status_that_the_watch_has_not_reported_is_not_written_twice(on: Stage) -> None:
    obj = on.apply("Topic", "a", {"name": NAME, "policies": HOUR})
    await on.reconciler.reconcile(obj)
    written = len(on.kube.writes_of(TOPIC))
    stale = {**obj, "metadata": {**obj["metadata"], "finalizers": [FINALIZER]}}
    await on.reconciler.reconcile(stale)
    assert len(on.kube.writes_of(TOPIC)) == written
    assert on.notes("Adopted") == []


# -- the order of a reconcile


async def test_the_finalizer_is_written_before_anything_is_created(on: Stage) -> None:
    """An operator that ends in between would else leave a topic that no deletion deletes."""
    seen: list[list[str]] = []

    def noted(method: str, _: str) -> None:
        if method != "GET":
            seen.append(on.finalizers("Topic", "a"))

    on.rest.refuse = noted
    obj = on.apply("Topic", "a", {"name": NAME, "policies": HOUR})
    on.kube.put({**obj, "metadata": {**obj["metadata"], "finalizers": ["theirs"]}})
    assert await on.look("Topic", "a") is None
    assert len(seen) == 3
    assert all(item == ["theirs", FINALIZER] for item in seen)
    await on.ready("Topic", "a", {"name": NAME, "lifecyclePolicy": "KeepAfterDeletion"})
    assert on.finalizers("Topic", "a") == ["theirs"]


async def test_fields_are_recorded_before_they_are_set(on: Stage) -> None:
    """An operator that ends in between must know later that it has to remove them."""
    seen: list[tuple[str, Any]] = []

    def noted(method: str, path: str) -> None:
        if method != "GET":
            seen.append((path.rpartition("/")[2], applied(on).get("pending")))
            assert on.status("Topic", "a")["resolvedName"] == f"persistent://{NAME}"

    on.rest.refuse = noted
    on.apply("Topic", "a", {"name": NAME, "policies": HOUR})
    await on.look("Topic", "a")
    pending = ["policies.messageTTL"]
    assert seen == [("a", pending), ("messageTTL", pending), ("inactiveTopicPolicies", pending)]
    assert applied(on)["fields"]["policies.messageTTL"] == 3600
    assert "pending" not in applied(on)
    seen.clear()
    policies = {"messageTTL": "2h", "maxProducersPerTopic": 3}
    on.apply("Topic", "a", {"name": NAME, "policies": policies})
    await on.look("Topic", "a")
    pending = ["policies.maxProducersPerTopic"]
    assert seen == [("maxProducers", pending), ("messageTTL", pending)]


async def test_a_creation_is_recorded_before_it_and_dropped_if_it_is_refused(
    on: Stage,
) -> None:
    recorded: list[Any] = []

    def full(method: str, _: str) -> tuple[int, str] | None:
        if method != "PUT":
            return None
        recorded.append(applied(on, "Namespace", "n"))
        return 412, "the cluster is full"

    on.rest.refuse = full
    on.apply("Namespace", "n", {"tenant": "t1", "name": "n"})
    assert await on.look("Namespace", "n") is not None
    assert recorded == [{"creating": True}]
    ready = on.condition("Namespace", "n")
    assert (ready["reason"], ready["message"]) == (
        "Refused",
        "the target cannot be created: the cluster is full",
    )
    assert "applied" not in on.status("Namespace", "n")
    assert on.notes("Refused") == [
        "create namespace t1/n: refused by the cluster: the cluster is full"
    ]
    on.rest.refuse = lambda _method, _path: None
    assert await on.look("Namespace", "n") is None
    assert await on.delete("Namespace", "n") is None
    assert await on.say("GET", "/namespaces/t1") == ["t1/n1"]


# -- changes and drift


async def test_a_topic_follows_its_manifest_and_nothing_else_changes(on: Stage) -> None:
    spec: dict[str, Any] = {
        "name": NAME,
        "partitions": 2,
        "properties": {"team": "red", "x": "1"},
        "policies": {"retention": {"time": "7d", "size": "1Gi"}, "maxProducersPerTopic": 3},
        "schema": {"type": "AVRO", "schema": AVRO},
    }
    await on.ready("Topic", "a", spec)
    status = on.status("Topic", "a")
    assert (status["partitions"], status["schemaVersion"], status["observedGeneration"]) == (
        2, 0, 1,
    )  # fmt: skip
    assert on.reason("Topic", "a", "PolicyReady") == "AsSpecified"
    assert await on.say("GET", f"{A}/retention") == {
        "retentionTimeInMinutes": 10_080, "retentionSizeInMB": 1_024,
    }  # fmt: skip
    assert await on.say("GET", f"{A}/properties") == {"team": "red", "x": "1"}
    await on.say("POST", f"{A}/messageTTL", 60)
    spec |= {"partitions": 5, "properties": {"team": "blue"}}
    spec["policies"] = {"retention": {"time": "8d", "size": "1Gi"}}
    await on.ready("Topic", "a", spec)
    status = on.status("Topic", "a")
    assert (status["partitions"], status["schemaVersion"], status["observedGeneration"]) == (
        5, 0, 2,
    )  # fmt: skip
    assert (await on.say("GET", f"{A}/retention"))["retentionTimeInMinutes"] == 11_520
    assert await on.say("GET", f"{A}/maxProducers") in (None, {})
    assert await on.say("GET", f"{A}/messageTTL") == 60
    assert await on.say("GET", f"{A}/properties") == {"team": "blue"}
    assert on.notes("DriftRepaired") == []
    await on.ready("Topic", "a", {"name": NAME, "partitions": 5})
    assert "schemaVersion" in on.status("Topic", "a"), "a schema is never taken away"


@pytest.mark.parametrize("kind", ["Topic", "Namespace"])
async def test_each_backlog_quota_is_set_and_removed_separately(on: Stage, kind: str) -> None:
    of_size = {"destination_storage": {"size": "1Mi", "policy": "producer_exception"}}
    of_age = {"message_age": {"time": "60s", "policy": "consumer_backlog_eviction"}}
    place_fields = {"name": NAME} if kind == "Topic" else {"tenant": "t1"}

    async def there() -> dict[str, tuple[Any, ...]]:
        path = f"{A}/backlogQuotaMap" if kind == "Topic" else "/namespaces/t1/a/backlogQuotaMap"
        answer = await on.say("GET", path) or {}
        return {key: (one["limitSize"], one["limitTime"], one["policy"])
                for key, one in answer.items()}  # fmt: skip

    await on.ready(kind, "a", {**place_fields, "policies": {"backlogQuota": {**of_size, **of_age}}})
    size = ("destination_storage", (1 << 20, -1, "producer_exception"))
    age = ("message_age", (-1, 60, "consumer_backlog_eviction"))
    assert await there() == dict([size, age])
    await on.ready(kind, "a", {**place_fields, "policies": {"backlogQuota": of_age}})
    assert await there() == dict([age])
    await on.ready(kind, "a", {**place_fields, "policies": {"backlogQuota": of_size}})
    assert await there() == dict([size])


async def test_a_tenant_a_namespace_and_a_subscription_follow_their_manifests(on: Stage) -> None:
    await on.ready("Tenant", "m", {"adminRoles": ["a", "b"]})
    spec: dict[str, Any] = {"tenant": "m", "policies": {**HOUR, "encryptionRequired": True}}
    await on.ready("Namespace", "m", {**spec, "properties": {"team": "red"}, "bundles": 8})
    await on.ready("Tenant", "m", {"adminRoles": ["b"]})
    spec["policies"] = {"publishRate": {"messages": 10}}
    await on.ready("Namespace", "m", spec)
    assert on.status("Namespace", "m")["bundles"] == 8
    assert on.status("Tenant", "m")["namespaces"] == 1
    assert await on.say("GET", "/tenants/m") == {
        "adminRoles": ["b"], "allowedClusters": ["standalone"],
    }  # fmt: skip
    document = await on.say("GET", "/namespaces/m/m")
    assert document["encryption_required"] is False
    assert document.get("message_ttl_in_seconds") is None
    assert document["properties"] == {}
    await on.ready("Tenant", "m", {})
    assert (await on.say("GET", "/tenants/m"))["adminRoles"] == []
    await on.ready("Topic", "t", {"name": "m/m/t"})
    place_fields = {"topic": "persistent://m/m/t", "name": "s"}
    properties = "/persistent/m/m/t/subscription/s/properties"
    await on.ready("Subscription", "s", {**place_fields, "properties": {"team": "red", "x": "1"}})
    await on.say("PUT", properties, {"team": "red", "x": "1", "theirs": "2"})
    await on.ready("Subscription", "s", {**place_fields, "properties": {"team": "blue"}})
    assert await on.say("GET", properties) == {"team": "blue", "theirs": "2"}


async def test_drift_is_repaired_and_reported_unless_ignored(on: Stage) -> None:
    policies = {"retention": {"time": "7d", "size": "1Gi"}, **HOUR}
    spec = {"name": NAME, "partitions": 2, "policies": policies}
    await on.ready("Topic", "a", spec, ignore_drift="messageTTL")
    await on.say("POST", f"{A}/messageTTL", 5)
    await on.say("POST", f"{A}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})
    assert await on.look("Topic", "a") is None
    (note,) = on.notes("DriftRepaired")
    assert note == (
        f"Repaired drift of topic persistent://{NAME}: "
        "retention: time 1m, size 1Mi → time 7d, size 1Gi."
    )
    (event,) = [event for event in on.kube.all_of(EVENT) if event["note"] == note]
    assert (event["type"], event["regarding"]["name"]) == ("Warning", "a")
    assert event["regarding"]["uid"] == on.get("Topic", "a")["metadata"]["uid"]
    assert (await on.say("GET", f"{A}/retention"))["retentionTimeInMinutes"] == 10_080
    assert await on.say("GET", f"{A}/messageTTL") == 5
    on.apply("Topic", "a", spec)
    await on.look("Topic", "a")
    assert await on.say("GET", f"{A}/messageTTL") == 3600


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_topic_deleted_by_hand_is_created_again_and_reported_once(
    on: Stage, partitions: int
) -> None:
    path = f"{A}/partitions" if partitions else A
    spec = {"name": NAME, "partitions": partitions, "policies": HOUR}
    await on.ready("Topic", "a", spec)
    await on.say("DELETE", path)
    on.time_s += FRESH_S
    assert await on.look("Topic", "a") is None
    (note,) = on.notes("Recreated")
    assert "deleted in the cluster: create it again" in note
    assert note.endswith("empty.")
    assert on.notes("DriftRepaired") == []
    assert await on.say("GET", f"{A}/messageTTL") == 3600
    await on.say("DELETE", path)
    on.apply("Topic", "a", spec, ignore_drift="deleted")
    on.time_s += FRESH_S
    assert await on.look("Topic", "a") is None
    ready = on.condition("Topic", "a")
    assert (ready["status"], ready["reason"]) == ("False", "Deleted")
    assert "stays deleted" in ready["message"]
    assert await on.say("GET", "/persistent/t1/n1") == []


async def test_an_existing_target_is_adopted_once_and_otherwise_unchanged(on: Stage) -> None:
    await on.say("PUT", A)
    await on.say("POST", f"{A}/messageTTL", 60)
    spec = {"name": NAME, "policies": {"maxProducersPerTopic": 1}}
    await on.ready("Topic", "a", spec)
    (note,) = on.notes("Adopted")
    assert note.startswith(f"topic persistent://{NAME} already existed")
    await on.look("Topic", "a")
    on.restart()
    await on.look("Topic", "a")
    assert len(on.notes("Adopted")) == 1
    assert len(on.kube.writes_of(EVENT)) == 1
    assert await on.say("GET", f"{A}/messageTTL") == 60
    assert await on.say("GET", f"{A}/maxProducers") == 1
    await on.ready("Topic", "b", {"name": "t1/n1/b"})
    assert len(on.notes("Adopted")) == 1, "what it made itself was not there before"


async def test_an_outdated_list_creates_nothing_twice(on: Stage) -> None:
    """The topic was created after the namespace's list was read: it is adopted at once."""
    await on.ready("Topic", "b", {"name": "t1/n1/b"})
    await on.say("PUT", f"{A}/partitions", 2)
    await on.ready("Topic", "a", {"name": NAME, "partitions": 3, "policies": HOUR})
    assert on.notes("Adopted") != []
    assert (await on.say("GET", f"{A}/partitions"))["partitions"] == 3
    await on.say("DELETE", f"{A}/partitions")
    assert await on.look("Topic", "a") is None
    assert (await on.say("GET", f"{A}/partitions"))["partitions"] == 3
    assert on.notes("Recreated") != []


async def test_a_lasting_conflict_is_a_refusal(on: Stage) -> None:
    def conflict(method: str, path: str) -> tuple[int, str] | None:
        return (409, "too many topics") if (method, path) == ("PUT", A) else None

    on.rest.refuse = conflict
    on.apply("Topic", "a", {"name": NAME})
    assert await on.look("Topic", "a") is not None
    assert on.condition("Topic", "a")["message"] == "the target cannot be created: too many topics"
    assert on.rest.asked.count(("PUT", A)) == 2

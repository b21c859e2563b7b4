"""Refusals, skipped actions and concurrent changes in a resource's reconcile."""

import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.memory_kube import Asked, Refusal
from tests.operator.resource_stage import NS, URL, Stage, resource_stage

from magnetar_operator.admin import client as admin_client
from magnetar_operator.engine.reconciler import CHANGED_S
from magnetar_operator.kube.events import SERIES_ENDS_S, SERIES_INTERVAL_S, Events
from magnetar_operator.kube.kinds import EVENT, NAMESPACE, TENANT

A = "/persistent/t1/n1/a"
NAME = "t1/n1/a"
HOUR = {"messageTTL": "1h"}


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


def applied(on: Stage, kind: str = "Topic", name: str = "a") -> dict[str, Any]:
    return dict(on.status(kind, name).get("applied") or {})


# -- refusals


async def test_a_refused_policy_is_reported_and_the_others_are_set(on: Stage) -> None:
    on.rest.refuse = lambda method, path: (
        (412, "not so") if method == "POST" and path.endswith("/maxProducers") else None
    )
    policies = {"maxProducersPerTopic": 3, **HOUR}
    spec = {"name": NAME, "policies": policies, "properties": {"team": "red"}}
    on.apply("Topic", "a", spec)
    assert await on.look("Topic", "a") is not None
    for type_ in ("Ready", "PolicyReady"):
        condition = on.condition("Topic", "a", type_)
        assert (condition["status"], condition["reason"]) == ("False", "Refused")
        assert condition["message"] == "set maxProducersPerTopic to 3: not so"
    assert await on.say("GET", f"{A}/messageTTL") == 3600
    assert applied(on) == {
        "exists": True,
        "fields": {"policies.messageTTL": 3600, "properties.team": "red", "partitions": 0},
        "pending": ["policies.maxProducersPerTopic"],
    }
    on.watches.woken.clear()
    on.rest.refuse = lambda _method, _path: None
    assert await on.look("Topic", "a") is None
    assert await on.say("GET", f"{A}/maxProducers") == 3


@pytest.mark.parametrize(("status", "default"), [(403, False), (405, True)])
async def test_a_policy_that_cannot_be_unset_gets_its_default(
    on: Stage, status: int, default: bool
) -> None:
    """405 means that the policy always has a value."""
    await on.ready("Topic", "a", {"name": NAME, "policies": HOUR})
    on.rest.refuse = lambda method, path: (
        (status, "no") if method == "DELETE" and path.endswith("/messageTTL") else None
    )
    on.apply("Topic", "a", {"name": NAME})
    assert (await on.look("Topic", "a") is None) is default
    assert await on.say("GET", f"{A}/messageTTL") == (0 if default else 3600)
    assert on.reason("Topic", "a") == ("AsSpecified" if default else "Refused")


async def test_nothing_is_set_on_a_target_that_cannot_be_created(on: Stage) -> None:
    on.rest.refuse = lambda method, path: (412, "full") if (method, path) == ("PUT", A) else None
    on.apply("Topic", "a", {"name": NAME, "policies": HOUR, "properties": {"team": "red"}})
    assert await on.look("Topic", "a") is not None
    assert on.condition("Topic", "a")["message"] == "the target cannot be created: full"
    assert on.rest.writes == [("PUT", A)]


async def test_impossible_changes_are_refused_without_requests_and_retries(
    on: Stage,
) -> None:
    await on.say("PUT", A)
    on.apply("Topic", "a", {"name": NAME, "partitions": 2, "policies": HOUR})
    assert await on.look("Topic", "a") is None
    ready = on.condition("Topic", "a")
    assert ready["reason"] == "Refused"
    assert "create a new topic" in ready["message"]
    assert on.reason("Topic", "a", "PolicyReady") == "AsSpecified"
    assert "create a new topic" in on.notes("Refused")[0]
    on.apply("Topic", "bad", {"name": "no-namespace"})
    assert await on.look("Topic", "bad") is None
    assert on.reason("Topic", "bad") == "InvalidSpec"
    on.kube.put({**on.get("Topic", "bad"), "spec": {"adminUrl": URL, "partitions": "many"}})
    assert await on.look("Topic", "bad") is None
    assert "partitions" in on.condition("Topic", "bad")["message"]


async def test_unsupported_policies_are_refused_before_any_action(on: Stage) -> None:
    on.kube.put(
        {"apiVersion": TENANT.api_version, "kind": "MagnetarCluster",
         "metadata": {"name": "c", "namespace": NS}, "spec": {"adminUrl": URL}}
    )  # fmt: skip
    on.apply("Tenant", "far", {"clusterRef": {"name": "c"}, "allowedClusters": ["elsewhere"]})
    assert await on.look("Tenant", "far") is None
    ready = on.condition("Tenant", "far")
    assert ready["reason"] == "Unsupported"
    assert "name the local cluster only" in ready["message"]
    assert on.rest.asked == []
    assert on.finalizers("Tenant", "far") == []


async def test_a_refusal_during_the_observation_is_reported(on: Stage) -> None:
    on.rest.refuse = lambda _, path: (403, "you may not") if path == "/tenants" else None
    on.apply("Tenant", "x", {})
    assert await on.look("Tenant", "x") is not None
    ready = on.condition("Tenant", "x")
    assert ready["reason"] == "Refused"
    assert ready["message"].startswith("the cluster refuses it: you may not")


# -- annotations


async def test_a_paused_resource_is_not_observed_and_a_plan_changes_nothing(on: Stage) -> None:
    on.apply("Topic", "a", {"name": NAME}, paused="true")
    assert await on.look("Topic", "a") is None
    ready, paused = on.condition("Topic", "a"), on.condition("Topic", "a", "Paused")
    assert (ready["status"], ready["reason"], paused["status"]) == ("Unknown", "Paused", "True")
    assert on.rest.asked == []
    on.apply("Topic", "a", {"name": NAME, "policies": HOUR}, plan="true")
    assert await on.look("Topic", "a") is None
    assert on.condition("Topic", "a")["status"] == "Unknown"
    assert on.reason("Topic", "a") == "PlanOnly"
    texts = [step["text"] for step in on.status("Topic", "a")["plan"]]
    assert f"create topic persistent://{NAME}" in texts
    assert on.rest.writes == []
    assert on.finalizers("Topic", "a") == []
    assert "applied" not in on.status("Topic", "a")
    await on.ready("Topic", "a", {"name": NAME})
    assert "plan" not in on.status("Topic", "a")
    assert on.condition("Topic", "a", "Paused") == {}


# -- concurrent changes


async def test_an_object_that_changed_meanwhile_is_reconciled_again_at_once(on: Stage) -> None:
    obj = on.apply("Topic", "a", {"name": NAME})
    on.apply("Topic", "a", {"name": NAME, "policies": HOUR})
    assert await on.reconciler.reconcile(obj) == CHANGED_S
    assert on.rest.writes == [], "nothing is made of a manifest that is older"


async def test_a_status_is_never_written_to_another_resource_of_the_same_name(on: Stage) -> None:
    await on.ready("Namespace", "n", {"tenant": "t1"})
    old = on.get("Namespace", "n")
    on.kube.drop(NAMESPACE, "n")
    on.apply("Namespace", "n", {"tenant": "t1"})
    old["status"] = {}
    on.restart()
    assert await on.reconciler.reconcile(old) is None
    assert on.status("Namespace", "n") == {}


async def test_a_failed_write_of_an_event_delays_nothing(on: Stage) -> None:
    def no_events(asked: Asked) -> Refusal | None:
        return Refusal(403, "Forbidden") if "/events" in asked.path else None

    on.kube.refuse = no_events
    await on.say("PUT", A)
    await on.ready("Topic", "a", {"name": NAME})


async def test_remembered_events_are_bounded_and_the_oldest_are_dropped(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar_operator.kube.events.RECENT_MAX", 2)
    events = Events(on.client, lambda: on.now)
    obj = on.apply("Topic", "a", {"name": NAME})

    def created() -> list[str]:
        return [write.body["note"] for write in on.kube.writes_of(EVENT) if write.method == "POST"]

    for note in ("x", "y", "x", "z", "x", "y"):
        await events.record(obj, "Told", note)
    assert created() == ["x", "y", "z", "y"], "what is told again is no older than its last time"


@pytest.mark.parametrize(
    ("after_s", "made", "counted"),
    [
        (SERIES_INTERVAL_S - 1, 1, 0),
        (SERIES_INTERVAL_S, 1, 1),
        (SERIES_ENDS_S - 1, 1, 1),
        (SERIES_ENDS_S, 2, 0),
    ],
)
async def test_equal_events_are_counted_within_an_interval(
    on: Stage, after_s: float, made: int, counted: int
) -> None:
    """Kubernetes deletes Events after an hour: one that is never written again would be lost."""
    events = Events(on.client, lambda: on.now)
    obj = on.apply("Topic", "a", {"name": NAME})
    await events.record(obj, "Told", "x")
    on.now += datetime.timedelta(seconds=after_s)
    await events.record(obj, "Told", "x")
    methods = [write.method for write in on.kube.writes_of(EVENT)]
    assert (methods.count("POST"), methods.count("PATCH")) == (made, counted)


async def test_repeated_events_are_counted_and_written_at_intervals(on: Stage) -> None:
    await on.say("PUT", A)
    on.apply("Topic", "a", {"name": NAME, "partitions": 2})
    for after_s in (0, SERIES_INTERVAL_S - 1, 1):
        on.now = on.now.fromtimestamp(on.now.timestamp() + after_s, on.now.tzinfo)
        await on.look("Topic", "a")
    written = [write.method for write in on.kube.writes_of(EVENT)]
    assert written.count("PATCH") == 1
    (event,) = [event for event in on.kube.all_of(EVENT) if event["reason"] == "Refused"]
    assert event["series"]["count"] == 3

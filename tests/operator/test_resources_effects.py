"""The effects of a plan: the requests to the cluster, and their meaning."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.resource_stage import NS, URL, Stage, resource_stage

from magnetar_operator.admin import client as admin_client
from magnetar_operator.admin.client import Refused
from magnetar_operator.admin.target import NAMESPACE, SUBSCRIPTION, TENANT, TOPIC, Target
from magnetar_operator.catalog.effects import Effect, effect_of, read
from magnetar_operator.catalog.plan import Action, plan
from magnetar_operator.catalog.references import parse_spec
from magnetar_operator.catalog.state import Observed, desired_of
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, Object
from magnetar_operator.plan_manifests import (
    CHANGES,
    FAILED,
    LOSES_DATA,
    NOTHING,
    CannotPlan,
    Findings,
    PlanFiles,
)

A = Target(TOPIC, "persistent://t1/n1/a")
N1 = Target(NAMESPACE, "t1/n1")
OF_A = "/magnetar/persistent/t1/n1/a/effect"
OF_N1 = "/magnetar/namespaces/t1/n1/effect"
DAY = {"retentionTimeInMinutes": 1_440, "retentionSizeInMB": 100}
EVICTS = "consumer_backlog_eviction"
HOLDS = "producer_exception"


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


def quota(limit: Any, policy: str, *, size: bool) -> dict[str, Any]:
    sizes = {"limitSize": limit, "limitTime": -1} if size else {"limitSize": -1, "limitTime": limit}
    return {**sizes, "policy": policy}


def steps(
    policies: dict[str, Any], there: dict[str, Any] | None = None, was: tuple[str, ...] = (),
    target: Target = A,
) -> tuple[Action, ...]:  # fmt: skip
    """The steps from these fields to the manifest; `was`: the manifest before."""
    obj = {"kind": target.kind, "metadata": {"name": "x"}}
    name = target.name.removeprefix("persistent://")
    desired = desired_of(parse_spec({**obj, "spec": {"name": name, "policies": policies}}))
    fields = {"partitions": 0, **{f"policies.{key}": v for key, v in (there or {}).items()}}
    fields["policies.inactiveTopicPolicies"] = {"deleteWhileInactive": False}
    applied = {"exists": True, "fields": {f"policies.{key}": None for key in was}}
    applied["unset"] = [f"policies.{key}" for key in was]
    return plan(target, desired, Observed(fields), applied).steps


async def effect(
    on: Stage, made: tuple[Action, ...], above: dict[str, Any] | None = None, target: Target = A
) -> tuple[Effect | None, dict[str, str]]:
    """Also returns the requests."""
    on.rest.answers |= {OF_A: {}, OF_N1: {}}
    before = len(on.rest.asked)
    answered = await effect_of(on.clusters.at(URL), target, made, above or {})
    paths, queries = on.rest.asked[before:], on.rest.queries[before:]
    assert len(paths) <= 1
    if not paths:
        return answered, {}
    assert paths == [("GET", OF_A if target is A else OF_N1)]
    return answered, dict(pair.split("=") for pair in queries[0].split("&"))


async def test_the_effects_of_all_changed_limits_are_requested_together(on: Stage) -> None:
    policies = {
        "retention": {"time": "1h", "size": "10Mi"},
        "messageTTL": "1m",
        "maxProducersPerTopic": 3,
    }
    found, asked = await effect(on, steps(policies, {"retention": DAY}))
    assert found == Effect()
    assert asked == {
        "retentionTimeInMinutes": "60", "retentionSizeInMB": "10", "messageTTL": "60",
    }  # fmt: skip
    _, asked = await effect(on, steps(policies, {"retention": DAY}, target=N1), target=N1)
    assert asked["messageTTL"] == "60"


@pytest.mark.parametrize(
    ("size_policy", "time_policy", "for_older"),
    [(EVICTS, HOLDS, EVICTS), (HOLDS, EVICTS, EVICTS), (HOLDS, HOLDS, HOLDS)],
)
async def test_each_quota_is_sent_with_its_limit_and_action(
    on: Stage, size_policy: str, time_policy: str, for_older: str
) -> None:
    """A broker of an older release knows one action for both: the one that deletes."""
    policies = {
        "messageTTL": "1m",
        "backlogQuota": {
            "destination_storage": {"size": "1Mi", "policy": size_policy},
            "message_age": {"time": "60s", "policy": time_policy},
        },
    }
    _, asked = await effect(on, steps(policies))
    assert asked == {
        "backlogQuotaSize": str(1 << 20), "backlogQuotaSizePolicy": size_policy,
        "backlogQuotaTime": "60", "backlogQuotaTimePolicy": time_policy,
        "backlogQuotaPolicy": for_older, "messageTTL": "60",
    }  # fmt: skip


async def test_an_unset_limit_of_a_topic_falls_back_to_the_namespace(on: Stage) -> None:
    current = {"retention": DAY, "messageTTL": 0,
             "backlogQuota.destination_storage": quota(10, EVICTS, size=True)}  # fmt: skip
    planned_steps = steps({}, current, (*current,))
    above = {
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 1},
        "message_ttl_in_seconds": 7,
        "backlog_quota_map": {
            "destination_storage": quota(20, EVICTS, size=True),
            "message_age": quota(30, EVICTS, size=False),
        },
    }
    _, asked = await effect(on, planned_steps, above)
    assert asked["retentionTimeInMinutes"] == "5"
    assert asked["messageTTL"] == "7"
    assert asked["backlogQuotaSize"] == "20"
    assert "backlogQuotaTime" not in asked


async def test_the_effect_is_unknown_if_the_next_limit_is(
    on: Stage,
) -> None:
    planned_steps = steps({}, {"retention": DAY}, ("retention",))
    assert await effect(on, planned_steps) == (Effect(is_certain=False), {})
    of_namespace = steps({}, {"retention": DAY}, ("retention",), target=N1)
    above = {"retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 1}}
    assert await effect(on, of_namespace, above, N1) == (Effect(is_certain=False), {})
    assert Effect(is_certain=False).loses


async def test_a_harmless_removal_does_not_hide_the_effect_of_another_limit(
    on: Stage,
) -> None:
    """A removed quota deletes nothing, whatever replaces it."""
    current = {"backlogQuota.destination_storage": quota(10, EVICTS, size=True)}
    for target in (A, N1):
        planned_steps = steps({"messageTTL": "1m"}, current, (*current,), target=target)
        assert await effect(on, planned_steps, {}, target) == (Effect(), {"messageTTL": "60"})


async def test_a_quota_without_a_limit_is_unlimited(on: Stage) -> None:
    current = {f"backlogQuota.{kind}": quota(1, EVICTS, size=kind == "destination_storage")
             for kind in ("destination_storage", "message_age")}  # fmt: skip
    bare = {"policy": EVICTS}
    above = {"backlog_quota_map": {"destination_storage": bare, "message_age": bare}}
    planned_steps = steps({"messageTTL": "1m"}, current, (*current,))
    _, asked = await effect(on, planned_steps, above)
    assert (asked["backlogQuotaSize"], asked["backlogQuotaTime"]) == ("-1", "-1")


async def test_the_effect_of_a_policy_that_the_cluster_cannot_predict_is_unknown(
    on: Stage,
) -> None:
    planned_steps = steps({"subscriptionExpirationTime": "1h"}, target=N1)
    assert await effect(on, planned_steps, target=N1) == (Effect(is_certain=False), {})


async def test_no_effect_is_requested_for_harmless_changes(on: Stage) -> None:
    more = {"retention": {"time": "7d", "size": "1Gi"}, "maxProducersPerTopic": 3}
    assert await effect(on, steps(more, {"retention": DAY})) == (None, {})
    risky = steps({"messageTTL": "1m"})
    for target in (Target(TENANT, "t1"), Target(SUBSCRIPTION, A.name, "s")):
        assert await effect_of(on.clusters.at(URL), target, risky, {}) is None


@pytest.mark.parametrize(("status", "known"), [(404, False), (405, False), (403, None)])
async def test_another_broker_implementation_predicts_no_effect(
    on: Stage, status: int, known: bool | None
) -> None:
    on.rest.refuse = lambda _, path: (status, "no") if path == OF_A else None
    if known is None:
        with pytest.raises(Refused):
            await effect(on, steps({"messageTTL": "1m"}))
    else:
        found, _ = await effect(on, steps({"messageTTL": "1m"}))
        assert found == Effect(is_certain=False)


async def test_a_plan_names_the_effect_once_and_first(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": "t1/n1/a", "policies": {"messageTTL": "7d"}})
    on.rest.answers[OF_A] = {
        "deletes": {"bytes": 2_500_000, "ledgers": 1, "entries": 3}, "expires": {"s": 2},
    }  # fmt: skip
    policies = {"retention": {"time": "1h", "size": "1Mi"}, "messageTTL": "1h"}
    spec = {"name": "t1/n1/a", "policies": policies, "properties": {"a": "b"}}
    on.apply("Topic", "a", spec, plan="true")
    await on.look("Topic", "a")
    first, second, third = on.status("Topic", "a")["plan"]
    text = "deletes 2.5 MB in 1 topic (1 ledger, 3 entries), expires 2 entries of subscriptions"
    assert first["text"].endswith(text)
    assert (first["losesData"], first["bytes"], first["topics"]) == (True, 2_500_000, 1)
    assert (second["losesData"], second["bytes"]) == (True, 0)
    assert "deletes" not in second["text"]
    assert (third["losesData"], third["text"].startswith("properties.a")) == (False, True)


async def test_a_plan_marks_changes_that_may_delete_data_later(
    on: Stage,
) -> None:
    await on.ready("Topic", "a", {"name": "t1/n1/a"})
    inactive = {"deleteWhileInactive": True, "deleteMode": "delete_when_no_subscriptions",
                "maxInactiveDuration": "1h"}  # fmt: skip
    spec = {"name": "t1/n1/a", "policies": {"inactiveTopicPolicies": inactive}}
    on.apply("Topic", "a", spec, plan="true")
    await on.look("Topic", "a")
    (step,) = on.status("Topic", "a")["plan"]
    assert step["losesData"] is True
    assert step["text"].endswith("may delete data when it is applied")
    assert (step["bytes"], step["topics"]) == (0, 0)


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        ({}, Effect()),
        ({"deletes": {"ledgers": 2, "bytes": 5}}, Effect(bytes=5, ledgers=2, topics=1)),
        ({"expires": {"a": 0, "b": 3}}, Effect(expires=3, topics=1)),
        ({"evicts": {"a": 4}, "expires": {"b": 1}}, Effect(expires=5, topics=1)),
        ({"expires": {"a": 0}}, Effect()),
        ({"topics_affected": 7, "expires": {"a": 1}}, Effect(expires=1, topics=7)),
        ({"blocks_producers": True}, Effect(blocks_producers=True)),
        (
            {"deletes": {"entries": 3, "ledgers": 1}, "estimated": True},
            Effect(entries=3, ledgers=1, topics=1, estimated=True),
        ),
    ],
)
def test_an_answer_is_read_for_one_topic_and_for_several(answer: Object, meant: Effect) -> None:
    effects = read(answer)
    assert effects == meant
    assert effects.loses == bool(meant.ledgers or meant.expires)


# -- plans of files


def step(action: str = "set", *, loses: bool = False, size: int = 0, topics: int = 0) -> Object:
    return {
        "action": action, "target": "topic t", "text": "text", "losesData": loses, "bytes": size,
        "topics": topics,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([], NOTHING, "Nothing to do: 2 resources as specified."),
        ([step()], CHANGES, "Plan: 1 change for 2 resources."),
        ([step(), step("refuse")], FAILED, "Plan: 1 change for 2 resources, 1 refused."),
        ([step(loses=True)], LOSES_DATA, "Plan: 1 change for 2 resources; deletes data."),
        (
            [step(loses=True, size=3_000, topics=2), step(loses=True, size=2_000), step("refuse")],
            LOSES_DATA,
            "Plan: 2 changes for 2 resources, 1 refused; deletes 5 kB.",
        ),
    ],
)
def test_a_plan_of_files_ends_with_the_most_important_steps(
    found: list[Object], code: int, said: str
) -> None:
    findings = Findings(found, 2)
    assert (findings.code, findings.summary()) == (code, said)
    document = findings.document()
    assert (document["exitCode"], document["resources"]) == (code, 2)
    assert document["deletes"]["bytes"] == sum(item["bytes"] for item in found)
    assert document["deletes"]["topics"] == sum(item["topics"] for item in found)
    assert [*findings.lines()][-1] == said


def test_a_plan_for_people_is_in_groups_with_marks() -> None:
    steps = [step(loses=True), step("refuse"), step("create"), step("remove"), step()]
    assert [*Findings(steps, 1).lines()][:-1] == [
        "Deletes data:",
        "  ! topic t: text",
        "Refused, and not done:",
        "  x topic t: text",
        "Changes:",
        "  + topic t: text",
        "  - topic t: text",
        "  ~ topic t: text",
    ]


def document(kind: str, name: str, spec: dict[str, Any]) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


async def planned(on: Stage, *given: Object, url: str = "", kube: bool = True) -> Findings:
    planning = PlanFiles(on.client if kube else None, url, NS)
    await planning.close()
    planning._clusters = on.clusters
    return await planning.run(given)


async def test_files_are_planned_in_order_as_if_each_were_applied(on: Stage) -> None:
    given = [
        document("Subscription", "s", {"topicRef": {"name": "a"}}),
        document("Topic", "a", {"namespaceRef": {"name": "m"}, "partitions": 2}),
        document("Namespace", "m", {"tenant": "new"}),
        document("Tenant", "new", {}),
    ]
    new_plan = await planned(on, *given, url=URL, kube=False)
    texts = [action["text"] for action in new_plan.steps if action["action"] == "create"]
    assert texts == [
        "create tenant new",
        "create namespace new/m",
        "create topic persistent://new/m/a with 2 partitions",
        "create subscription persistent://new/m/a/subscription/s",
    ]
    assert (new_plan.resources, new_plan.code) == (4, CHANGES)
    assert on.rest.writes == []


async def test_applied_fields_count_and_a_moved_manifest_cannot_be_planned(
    on: Stage,
) -> None:
    policies = {"messageTTL": "1h"}
    await on.ready("Topic", "a", {"name": "t1/n1/a", "policies": policies})
    same = {"adminUrl": URL, "name": "t1/n1/a", "policies": policies}
    new_plan = await planned(on, document("Topic", "a", same))
    assert (new_plan.steps, new_plan.code) == ([], NOTHING)
    new_plan = await planned(on, document("Topic", "a", {"adminUrl": URL, "name": "t1/n1/a"}))
    assert [action["action"] for action in new_plan.steps] == ["remove"]
    moved = document("Topic", "a", {"adminUrl": URL, "name": "t1/n1/b"})
    with pytest.raises(CannotPlan, match="Topic ns/a: it was created or adopted as"):
        await planned(on, moved)
    new_plan = await planned(on, moved, url=URL)
    texts = [action["text"] for action in new_plan.steps if action["action"] == "create"]
    assert texts == ["create topic persistent://t1/n1/b"], "what is recorded is of another topic"


async def test_a_document_without_a_namespace_is_in_the_default_namespace() -> None:
    planning = PlanFiles(None, URL)
    try:
        with pytest.raises(CannotPlan, match="Topic default/x"):
            await planning.run([document("Topic", "x", {})])
    finally:
        await planning.close()


async def test_an_error_names_the_document_that_cannot_be_planned(on: Stage) -> None:
    with pytest.raises(CannotPlan, match=r"Topic ns/x: write spec\.name"):
        await planned(on, document("Topic", "x", {"adminUrl": URL}))
    on.apply(CLUSTER.kind, "c", {"adminUrl": URL})
    with pytest.raises(CannotPlan, match="name the local cluster only"):
        await planned(on, document("Tenant", "x", {"allowedClusters": ["far"]}))
    with pytest.raises(CannotPlan, match="only be planned with Kubernetes"):
        await planned(on, document(CLUSTER.kind, "c", {}), kube=False)

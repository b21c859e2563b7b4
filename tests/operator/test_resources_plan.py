"""The planner of resources: it converges, changes only fields of manifests, explains refusals."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.policies.policy import Level
from magnetar.policies.registry import BY_MANIFEST
from magnetar_operator.admin.target import TOPIC, Target
from magnetar_operator.catalog.plan import (
    Action,
    Plan,
    Risk,
    Verb,
    applied_after,
    applied_before,
    is_ignored,
    may_delete,
    not_created,
    plan,
    remembered,
)
from magnetar_operator.catalog.references import BadSpec
from magnetar_operator.catalog.state import (
    INACTIVE,
    KEPT_WHILE_INACTIVE,
    PARTITIONS,
    POLICIES,
    PROPERTIES,
    SCHEMA,
    Desired,
    Observed,
    desired_of,
    namespace,
    policy_fields,
    policy_of,
    unsupported,
)
from magnetar_operator.models.resources import NamespaceSpec, Placed, TenantSpec, TopicSpec

TARGET = Target(TOPIC, "persistent://shop/orders/created")
HOUR = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
DAY = {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 100}
FOREVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
RETENTION = f"{POLICIES}retention"
TTL = f"{POLICIES}messageTTL"
HELD = f"{POLICIES}backlogQuota.destination_storage"

VALUES: dict[str, list[Any]] = {
    RETENTION: [HOUR, DAY, FOREVER],
    TTL: [0, 60, 3600],
    HELD: [{"limitSize": 10, "limitTime": -1, "policy": "producer_exception"}],
    f"{POLICIES}backlogQuota.message_age": [
        {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    ],
    f"{POLICIES}encryptionRequired": [True, None],
    f"{POLICIES}subscriptionTypesEnabled": [["Exclusive"], ["Exclusive", "Shared"], None],
    f"{PROPERTIES}team": ["red", "blue"],
    f"{PROPERTIES}a.b": ["1"],
    SCHEMA: ["digest-1", "digest-2"],
    INACTIVE: [{**KEPT_WHILE_INACTIVE, "deleteWhileInactive": True}],
}


@st.composite
def some_fields(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(VALUES))))
    return {name: draw(st.sampled_from(VALUES[name])) for name in sorted(names)}


@st.composite
def some_desired(draw: st.DrawFn) -> Desired:
    fields = {PARTITIONS: draw(st.integers(0, 4)), **draw(some_fields())}
    implied = {} if INACTIVE in fields else {INACTIVE: KEPT_WHILE_INACTIVE}
    return Desired(fields, {}, None, draw(st.sampled_from([{}, implied])))


class Server:
    """What a cluster makes of actions."""

    def __init__(self, fields: dict[str, Any] | None) -> None:
        self.fields = fields

    @property
    def observed(self) -> Observed | None:
        if self.fields is None:
            return None
        return Observed({k: v for k, v in self.fields.items() if v is not None})

    def do(self, action: Action, desired: Desired) -> None:
        if action.verb is Verb.CREATE:
            assert self.fields is None
            self.fields = {PARTITIONS: desired.fields[PARTITIONS]}
            return
        assert self.fields is not None
        if action.verb is Verb.GROW:
            assert action.after > self.fields[PARTITIONS] > 0
            self.fields[PARTITIONS] = action.after
        elif action.verb is Verb.REMOVE or action.after is None:
            self.fields.pop(action.field)
        else:
            self.fields[action.field] = action.after


existing = st.none() | st.builds(
    lambda partitions, fields: {PARTITIONS: partitions, **fields}, st.integers(0, 4), some_fields()
)


@given(some_desired(), existing, st.none() | some_desired())
def test_a_plan_that_was_carried_out_leaves_no_action(
    desired: Desired, there: dict[str, Any] | None, before: Desired | None
) -> None:
    server = Server(there)
    applied = None if before is None else applied_after(before)
    planned = plan(TARGET, desired, server.observed, applied)
    for action in planned.steps:
        server.do(action, desired)
    again = plan(TARGET, desired, server.observed, applied_after(desired, applied))
    assert again.steps == ()
    # What is refused is refused as long as it is asked for.
    assert [item.text for item in again.refused] == [document.text for document in planned.refused]


@given(some_desired(), existing, st.none() | some_desired())
def test_fields_without_a_manifest_are_not_changed(
    desired: Desired, there: dict[str, Any] | None, before: Desired | None
) -> None:
    applied = None if before is None else applied_after(before)
    named = {*desired.fields, *remembered(applied)}
    for action in plan(TARGET, desired, Server(there).observed, applied).actions:
        if action.implied:
            assert action.before is None or action.field in named
            continue
        assert action.verb is Verb.CREATE or action.field in named
        if action.verb is Verb.REMOVE and action.field not in desired.fields:
            assert before is not None
            assert action.field in before.fields
        assert action.field != PARTITIONS or action.verb is not Verb.REMOVE
        assert action.field != SCHEMA or action.verb is not Verb.REMOVE


@given(some_desired(), existing, st.data())
def test_a_plan_interrupted_anywhere_continues(
    desired: Desired, there: dict[str, Any] | None, data: st.DataObject
) -> None:
    """... and a field taken out of the manifest after that is removed all the same."""
    server = Server(there)
    planned = plan(TARGET, desired, server.observed, None)
    applied = applied_before(None, planned.steps)
    done = planned.steps[: data.draw(st.integers(0, len(planned.steps)))]
    for action in done:
        server.do(action, desired)
    without = Desired({PARTITIONS: desired.fields[PARTITIONS]}, {})
    for action in plan(TARGET, without, server.observed, applied).steps:
        server.do(action, without)
    assert server.fields is not None
    for action in done:
        if action.verb is Verb.SET and action.field != SCHEMA and not action.implied:
            assert action.field not in server.fields


@given(some_desired(), some_fields())
def test_drift_is_a_difference_under_an_unchanged_manifest(
    desired: Desired, changed: dict[str, Any]
) -> None:
    applied = applied_after(desired)
    current = {k: v for k, v in {**desired.fields, **changed}.items() if v is not None}
    planned = plan(TARGET, desired, Observed(current), applied)
    assert all(action.drift or action.implied for action in planned.steps)
    names = [action.field.removeprefix(POLICIES) for action in planned.steps]
    new_plan = plan(TARGET, desired, Observed(current), applied, names).steps
    assert all(item.implied for item in new_plan)


def one(planned: Plan) -> Action:
    (action,) = planned.actions
    return action


def test_a_new_value_is_not_drift_even_if_drift_is_ignored() -> None:
    before = applied_after(Desired({RETENTION: HOUR}, {}))
    planned = plan(
        TARGET, Desired({RETENTION: DAY}, {}), Observed({RETENTION: HOUR}), before, ["retention"]
    )
    assert not one(planned).drift
    assert one(planned).text == "retention: time 1h, size 100Mi → time 1d, size 100Mi"


@pytest.mark.parametrize(
    ("there", "wanted", "why"),
    [(4, 2, "only grow"), (0, 3, "create a new topic"), (3, 0, "set spec.partitions")],
)
def test_partitions_only_grow(there: int, wanted: int, why: str) -> None:
    planned = plan(TARGET, Desired({PARTITIONS: wanted}, {}), Observed({PARTITIONS: there}), {})
    assert one(planned).verb is Verb.REFUSE
    assert one(planned).risk is Risk.REFUSED
    assert why in one(planned).text


def test_bundles_stay_unchanged() -> None:
    applied = applied_after(Desired({}, {"bundles": 4}))
    planned = plan(TARGET, Desired({}, {"bundles": 8}), Observed({}), applied)
    assert "brokers split bundles" in one(planned).text
    assert applied_after(Desired({}, {"bundles": 8}), applied)["bundles"] == 4


def test_a_target_deleted_by_hand_is_created_again_or_left_deleted() -> None:
    desired = Desired({PARTITIONS: 2}, {})
    planned = plan(TARGET, desired, None, applied_after(desired))
    assert one(planned).drift
    assert one(planned).text.endswith("create it again with 2 partitions, empty")
    new_plan = plan(TARGET, desired, None, applied_after(desired), ["deleted"])
    assert one(new_plan).verb is Verb.REFUSE
    first = plan(TARGET, desired, None, None)
    assert not one(first).drift


def test_a_creation_is_recorded_before_it_starts() -> None:
    """Deletion after a crash acts on the record: without one the topic would stay for ever."""
    created = plan(TARGET, Desired({PARTITIONS: 0}, {}), None).steps
    before = applied_before(None, created)
    assert before
    assert not_created(before) is None, "the cluster refused it"
    applied = applied_after(Desired({PARTITIONS: 0}, {}))
    assert applied_before(applied, created) == not_created(applied) == applied


def test_failed_actions_are_retried_and_are_not_drift() -> None:
    desired = Desired({RETENTION: HOUR}, {})
    applied = applied_after(desired, None, failed=[RETENTION])
    action = one(plan(TARGET, desired, Observed({}), applied))
    assert action.verb is Verb.SET
    assert not action.drift
    new_plan = plan(TARGET, Desired({}, {}), Observed({RETENTION: HOUR}), applied)
    assert one(new_plan).verb is Verb.REMOVE


@pytest.mark.parametrize(
    ("field", "before", "after", "loses"),
    [
        (RETENTION, DAY, HOUR, True),
        (RETENTION, HOUR, DAY, False),
        (RETENTION, HOUR, FOREVER, False),
        (RETENTION, FOREVER, DAY, True),
        (RETENTION, None, FOREVER, True),
        (RETENTION, DAY, None, True),
        (TTL, None, 60, True),
        (TTL, 60, 3600, False),
        (TTL, 3600, 60, True),
        (TTL, 60, 0, False),
        (HELD, None, VALUES[HELD][0], False),
        (f"{PROPERTIES}team", "red", "blue", False),
    ],
)
def test_changes_that_may_delete_messages(field: str, before: Any, after: Any, loses: bool) -> None:
    assert may_delete(field, before, after) is loses


def test_ignored_by_name_or_by_group() -> None:
    assert is_ignored(RETENTION, ["retention"])
    assert is_ignored(f"{POLICIES}backlogQuota.message_age", ["backlogQuota"])
    assert not is_ignored(f"{POLICIES}retention", ["retentionX", "ret"])
    assert is_ignored(f"{PROPERTIES}team", ["properties"])


# -- from manifests and documents ------------------------------------------------------------------


def test_a_manifests_policies_become_those_of_rest() -> None:
    spec = TopicSpec.parse(
        {
            "name": "shop/orders/created",
            "partitions": 3,
            "properties": {"team": "red"},
            "policies": {
                "retention": {"time": "7d", "size": "10Gi"},
                "backlogQuota": {"message_age": {"time": "1d", "policy": "producer_request_hold"}},
            },
        }
    )
    assert dict(desired_of(spec).fields) == {
        PARTITIONS: 3,
        f"{PROPERTIES}team": "red",
        RETENTION: {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": 10_240},
        f"{POLICIES}backlogQuota.message_age": {
            "limitSize": -1,
            "limitTime": 86_400,
            "policy": "producer_request_hold",
        },
    }


@pytest.mark.parametrize(
    ("spec", "cluster", "named"),
    [
        (
            NamespaceSpec.parse({"policies": {"antiAffinityGroup": "apart"}}),
            "",
            "",
        ),
        (TopicSpec.parse({"policies": {"deduplication": True}}), "", ""),
        (NamespaceSpec.parse({"policies": {"replicationClusters": ["here"]}}), "here", ""),
        (NamespaceSpec.parse({"policies": {"replicationClusters": ["here"]}}), "", ""),
        (
            NamespaceSpec.parse({"policies": {"replicationClusters": ["there"]}}),
            "here",
            "policies.replicationClusters",
        ),
        (TenantSpec.parse({"allowedClusters": ["here"]}), "here", ""),
        (TenantSpec.parse({"allowedClusters": ["here", "there"]}), "", "allowedClusters"),
        (TenantSpec.parse({"allowedClusters": ["there"]}), "here", "allowedClusters"),
    ],
)
def test_unsupported_policies_are_named_with_the_remedy(
    spec: Placed, cluster: str, named: str
) -> None:
    refusals = unsupported(desired_of(spec), cluster)
    assert [item.partition(":")[0] for item in refusals] == ([f"spec.{named}"] if named else [])
    assert all("not supported" in item and "leave it out" in item for item in refusals)


def test_a_bad_value_is_named() -> None:
    spec = NamespaceSpec.parse({"name": "a/b", "policies": {"messageTTL": "1 day"}})
    with pytest.raises(BadSpec, match=r"spec.policies.messageTTL"):
        desired_of(spec)


def test_a_namespace_s_document() -> None:
    document = {
        "bundles": {"numBundles": 4},
        "retention_policies": HOUR,
        "publishMaxMessageRate": {
            "c1": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
        },
        "topicDispatchRate": {},
        "encryption_required": False,
        "properties": {"team": "red"},
        "backlog_quota_map": {"message_age": {"limitSize": -1, "limitTime": 9, "policy": "x"}},
    }
    observed_fields = namespace(document, 7, "c1")
    assert observed_fields.facts == {"topics": 7, "bundles": 4}
    set_ = {name: value for name, value in observed_fields.fields.items() if value is not None}
    assert set_ == {
        f"{PROPERTIES}team": "red",
        RETENTION: HOUR,
        f"{POLICIES}publishRate": {
            "publishThrottlingRateInMsg": 5,
            "publishThrottlingRateInByte": -1,
        },
        f"{POLICIES}backlogQuota.message_age": {"limitSize": -1, "limitTime": 9, "policy": "x"},
    }


def test_every_policy_s_field_leads_back_to_it() -> None:
    for policy in BY_MANIFEST.values():
        value: object = {"destination_storage": {}} if policy.keyed else None
        (field,) = policy_fields(policy, value, Level.NAMESPACE)
        field_policy = policy_of(field)
        assert field_policy is not None
        assert field_policy[0] is policy


def test_false_precedes_the_namespace_s_value_on_a_topic_only() -> None:
    policy = BY_MANIFEST["schemaValidationEnforced"]
    field = f"{POLICIES}schemaValidationEnforced"
    assert policy_fields(policy, value=False, level=Level.TOPIC) == {field: False}
    assert policy_fields(policy, value=False, level=Level.NAMESPACE) == {field: None}


def test_a_tenant_without_clusters_in_its_manifest_does_not_change_them() -> None:
    assert dict(desired_of(TenantSpec.parse({})).fields) == {}

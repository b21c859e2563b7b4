"""Tables of decisions about resources: steps, recorded fields, effects, facts, names."""

from typing import Any

import pytest

from magnetar_operator.admin.target import NAMESPACE, TOPIC, Target
from magnetar_operator.catalog.effects import Effect, count, human_bytes, read
from magnetar_operator.catalog.plan import (
    APPLIED_CREATING,
    APPLIED_EXISTS,
    APPLIED_FIELDS,
    APPLIED_PENDING,
    APPLIED_UNSET,
    BUNDLES,
    PENDING,
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
    shown,
)
from magnetar_operator.catalog.state import (
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PARTITIONS,
    POLICIES,
    PROPERTIES,
    SCHEMA,
    Desired,
    Observed,
    namespace,
    subscription_facts,
    tenant,
    topic_facts,
    topic_fields,
)

TARGET = Target(TOPIC, "persistent://shop/orders/created")
TTL = f"{POLICIES}messageTTL"
TEAM = f"{PROPERTIES}team"


def desired(at_birth: dict[str, Any] | None = None, **how: Any) -> Desired:
    fields = how.pop("fields", {})
    return Desired({PARTITIONS: 0, **fields}, at_birth or {}, None, how.pop("implied", {}))


def steps(planned: Plan) -> list[tuple[Verb, str, Any, Any]]:
    return [(action.verb, action.field, action.before, action.after) for action in planned.actions]


# -- steps


@pytest.mark.parametrize(
    ("wanted", "there", "verb", "why"),
    [
        (3, 3, None, ""),
        (4, 3, Verb.GROW, "partitions: 3 → 4"),
        (2, 3, Verb.REFUSE, "can only grow"),
        (0, 3, Verb.REFUSE, "set spec.partitions"),
        (1, 0, Verb.REFUSE, "exists without partitions"),
    ],
)
def test_partitions_only_grow(wanted: int, there: int, verb: Verb | None, why: str) -> None:
    planned = plan(TARGET, desired(fields={PARTITIONS: wanted}), Observed({PARTITIONS: there}))
    assert [action.verb for action in planned.actions] == ([verb] if verb else [])
    if verb is Verb.REFUSE:
        assert planned.refused == planned.actions
        assert planned.steps == ()
        assert planned.actions[0].risk is Risk.REFUSED
    assert all(why in action.text for action in planned.actions)
    grows = plan(
        TARGET,
        desired(fields={PARTITIONS: 4}),
        Observed({PARTITIONS: 3}),
        {APPLIED_FIELDS: {PARTITIONS: 4}},
    )
    assert grows.actions[0].drift


def test_only_changes_by_hand_are_drift_unless_ignored() -> None:
    wanted = desired(fields={TTL: 60})
    observed = Observed({PARTITIONS: 0, TTL: 30})
    for applied, drift in (({TTL: 60}, True), ({TTL: 20}, False), ({}, False)):
        (action,) = plan(TARGET, wanted, observed, {APPLIED_FIELDS: applied}).actions
        assert (action.drift, action.verb) == (drift, Verb.SET)
        ignored = plan(TARGET, wanted, observed, {APPLIED_FIELDS: applied}, ["messageTTL"])
        assert (ignored.actions == ()) is drift
    unset = desired(fields={TTL: None})
    (action,) = plan(TARGET, unset, observed, {APPLIED_UNSET: [TTL]}).actions
    assert (action.verb, action.drift) == (Verb.REMOVE, True)


def test_only_fields_that_the_manifest_dropped_are_removed() -> None:
    former = {TTL: 60, TEAM: "red", SCHEMA: "x", PARTITIONS: 3, ALLOWED_CLUSTERS: ["c"]}
    observed = Observed({**former, f"{PROPERTIES}other": "kept", ADMIN_ROLES: ["a"]})
    wanted = Desired({}, {})
    applied = {APPLIED_FIELDS: former}
    assert steps(plan(TARGET, wanted, observed, applied)) == [
        (Verb.REMOVE, TEAM, "red", None),
        (Verb.REMOVE, TTL, 60, None),
    ]
    assert steps(plan(TARGET, wanted, observed, applied, ["properties"])) == [
        (Verb.REMOVE, TTL, 60, None)
    ]
    roles = plan(TARGET, wanted, observed, {APPLIED_FIELDS: {ADMIN_ROLES: ["a"]}})
    assert steps(roles) == [(Verb.REMOVE, ADMIN_ROLES, ["a"], [])]
    observed = Observed({ADMIN_ROLES: []})
    assert (
        plan(TARGET, wanted, observed, {APPLIED_FIELDS: {ADMIN_ROLES: ["a"], TTL: 60}}).actions
        == ()
    )
    implied = Desired({}, {}, None, {TTL: 5})
    assert steps(plan(TARGET, implied, Observed({TTL: 60}), applied)) == [(Verb.SET, TTL, 60, 5)]


def test_implied_fields_are_set_if_unset_or_set_by_the_manifest_before() -> None:
    wanted = desired(implied={TTL: 5})
    for there, applied, sets in (
        (None, {}, True),
        (7, {}, False),
        (7, {TTL: 7}, True),
        (5, {TTL: 7}, False),
    ):
        planned = plan(
            TARGET, wanted, Observed({PARTITIONS: 0, TTL: there}), {APPLIED_FIELDS: applied}
        )
        assert [action.implied for action in planned.actions] == ([True] if sets else []), (
            there,
            applied,
        )


def test_a_target_is_created_before_its_fields_are_set() -> None:
    wanted = desired(
        {"bundles": 4}, fields={PARTITIONS: 3, TTL: 60, TEAM: "red", f"{PROPERTIES}a": None}
    )
    planned = plan(TARGET, wanted, None)
    assert steps(planned) == [
        (Verb.CREATE, "", None, {"bundles": 4}),
        (Verb.SET, TEAM, None, "red"),
        (Verb.SET, TTL, None, 60),
    ]
    assert planned.actions[0].text.startswith(
        "create topic persistent://shop/orders/created with 3"
    )
    assert not planned.actions[0].drift
    again = plan(TARGET, wanted, None, {APPLIED_EXISTS: True})
    assert again.actions[0].drift
    assert "create it again with 3 partitions, empty" in again.actions[0].text
    new_plan = plan(TARGET, wanted, None, {APPLIED_EXISTS: True}, ["deleted"])
    assert [action.verb for action in new_plan.actions] == [Verb.REFUSE]
    assert plan(TARGET, wanted, None, {}, ["deleted"]).actions[0].verb is Verb.CREATE
    light = Target(TOPIC, "non-persistent://shop/orders/x")
    assert not plan(light, desired(), None, {APPLIED_EXISTS: True}).actions[0].drift


def test_bundles_are_set_only_at_creation() -> None:
    target = Target(NAMESPACE, "shop/orders")
    for was, wanted, refused in ((4, 8, True), (4, 4, False), (None, 8, False), (4, None, False)):
        planned = plan(
            target,
            Desired({}, {BUNDLES: wanted}),
            Observed({}),
            {APPLIED_EXISTS: True, **({BUNDLES: was} if was else {})},
        )
        assert bool(planned.refused) is refused


# -- recorded fields


def set_step(field: str, verb: Verb = Verb.SET, *, implied: bool = False) -> Action:
    return Action(verb, TARGET, "x", field, implied=implied)


def test_planned_fields_are_recorded_before_they_are_set() -> None:
    applied = {APPLIED_EXISTS: True, APPLIED_FIELDS: {TTL: 60}, APPLIED_PENDING: ["z"]}
    fresh = [set_step(TEAM), set_step(TTL), set_step("i", implied=True), set_step("r", Verb.REMOVE)]
    assert applied_before(applied, fresh) == {**applied, APPLIED_PENDING: [TEAM, "z"]}
    assert applied_before(applied, [set_step(TTL)]) == applied
    create = [set_step("", Verb.CREATE)]
    assert applied_before(None, create) == {APPLIED_CREATING: True}
    assert applied_before(applied, create) == applied
    assert applied_before(None, [set_step("r", Verb.REMOVE)]) == {}
    assert not_created(None) is None
    assert not_created({APPLIED_CREATING: True}) is None
    assert not_created(applied) == applied
    assert remembered({**applied, APPLIED_UNSET: ["u"]}) == {"z": PENDING, "u": None, TTL: 60}
    assert remembered(None) == {}


def test_failed_fields_keep_their_recorded_value() -> None:
    wanted = Desired({TTL: 60, TEAM: "red", "n": None}, {BUNDLES: 4, "x": None}, None, {"i": 1})
    assert applied_after(wanted) == {
        BUNDLES: 4,
        APPLIED_EXISTS: True,
        APPLIED_FIELDS: {TTL: 60, TEAM: "red"},
        APPLIED_UNSET: ["n"],
    }
    before = {APPLIED_FIELDS: {TTL: 30, "i": 7}, BUNDLES: 8}
    after = applied_after(wanted, before, [TTL, TEAM, "i", "j"])
    assert after[APPLIED_FIELDS] == {TTL: 30, "i": 7}
    assert after[APPLIED_PENDING] == ["j", TEAM]
    assert after[BUNDLES] == 8
    assert applied_after(wanted, {}, ["i"])[APPLIED_FIELDS] == {TTL: 60, TEAM: "red"}
    assert APPLIED_PENDING not in applied_after(wanted, {}, ["i"])


def test_an_annotation_ignores_a_field_or_its_group() -> None:
    assert is_ignored(TTL, ["messageTTL"])
    assert is_ignored(TEAM, ["properties"])
    assert is_ignored(TEAM, ["x", "properties.team"])
    assert not is_ignored(TEAM, ["properties.tea"])
    assert not is_ignored(TTL, ["message"])
    assert not is_ignored(TTL, [])


# -- changes that may delete


def retention(minutes: int, size: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size}


def quota(size: int, policy: str = "consumer_backlog_eviction") -> dict[str, Any]:
    return {"limitSize": size, "limitTime": -1, "policy": policy}


@pytest.mark.parametrize(
    ("field", "before", "after", "may"),
    [
        ("retention", retention(60, 100), retention(60, 101), False),
        ("retention", retention(60, 100), retention(59, 200), True),
        ("retention", retention(60, 100), retention(90, 99), True),
        ("retention", retention(60, 100), retention(-1, -1), False),
        ("retention", retention(-1, -1), retention(60, -1), True),
        ("retention", None, retention(60, 100), True),
        ("retention", retention(60, 100), None, True),
        ("messageTTL", 60, 60, False),
        ("messageTTL", 60, 61, False),
        ("messageTTL", 60, 59, True),
        ("messageTTL", None, 60, True),
        ("messageTTL", 0, 60, True),
        ("messageTTL", 60, 0, False),
        ("messageTTL", 60, None, True),
        ("backlogQuota.destination_storage", quota(10), quota(10), False),
        ("backlogQuota.destination_storage", quota(10), quota(11), False),
        ("backlogQuota.destination_storage", quota(10), quota(9), True),
        ("backlogQuota.destination_storage", quota(10), quota(-1), False),
        ("backlogQuota.destination_storage", None, quota(9), True),
        ("backlogQuota.destination_storage", quota(10, "producer_exception"), quota(11), True),
        ("backlogQuota.destination_storage", quota(10), quota(9, "producer_exception"), False),
        ("backlogQuota.destination_storage", quota(10), None, False),
        ("encryptionRequired", False, True, False),
        ("subscriptionExpirationTime", 60, 59, True),
        ("subscriptionExpirationTime", 60, 61, False),
        ("subscriptionExpirationTime", 60, 0, False),
        ("subscriptionExpirationTime", 60, None, True),
        ("inactiveTopicPolicies", None, {"deleteWhileInactive": True}, True),
        ("inactiveTopicPolicies", {"deleteWhileInactive": True}, {"deleteWhileInactive": False},
         False),
        ("inactiveTopicPolicies", {"deleteWhileInactive": False}, None, True),
    ],
)  # fmt: skip
def test_lower_limits_may_delete(field: str, before: Any, after: Any, may: bool) -> None:
    assert may_delete(f"{POLICIES}{field}", before, after) is may
    assert not may_delete(TEAM, before, after)


def test_values_are_shown_in_the_form_of_manifests() -> None:
    assert shown(TEAM, None) == shown(ADMIN_ROLES, []) == "not set"
    assert shown(SCHEMA, "digest") == "the given schema"
    assert shown(ADMIN_ROLES, ["a", "b"]) == "a, b"
    assert shown(TEAM, "red") == "red"
    assert shown(f"{POLICIES}encryptionRequired", True) == "true"


# -- effects


def test_an_effect_is_parsed_and_described() -> None:
    deletes = {"ledgers": 2, "bytes": 1_500_000, "entries": 1_000}
    full = read({"deletes": deletes, "expires": {"a": 3}, "evicts": {"b": 4}, "estimated": True})
    assert full == Effect(True, 1_500_000, 2, 1_000, 1, 7, False, True)
    assert full.loses
    assert full.text == (
        "deletes 1.5 MB in 1 topic (2 ledgers, 1,000 entries), "
        "expires 7 entries of subscriptions (estimated)"
    )
    assert read({"deletes": deletes, "topics_affected": 5}).topics == 5
    assert read({"expires": {"a": 1}}).topics == 1
    assert read({"evicts": {"a": 1}}).expires == 1
    nothing = read({"evicts": {"a": 0}})
    assert nothing == Effect()
    assert (nothing.loses, nothing.text) == (False, "deletes nothing now")
    blocked = read({"blocks_producers": True})
    assert (blocked.loses, blocked.text) == (False, "blocks producers")
    assert Effect(is_certain=False).loses
    assert "is unknown" in Effect(is_certain=False).text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1_000, "1 kB"), (1_234, "1.23 kB"),
        (10**6, "1 MB"), (10**9, "1 GB"), (10**12, "1 TB"), (10**15, "1 PB"),
    ],
)  # fmt: skip
def test_sizes_are_shown_in_the_largest_unit(size: int, text: str) -> None:
    assert human_bytes(size) == text
    assert [count(item, "entry", "entries") for item in (1, 2)] == ["1 entry", "2 entries"]


# -- facts


def test_the_facts_of_a_topic_sum_its_partitions() -> None:
    stats = {
        "partitions": {"0": {"ownerBroker": "b"}, "1": {"ownerBroker": "a"}, "2": {}},
        "subscriptions": {"s": {"msgBacklog": 5}, "t": {"msgBacklog": 9}, "u": {}},
        "publishers": [{}, {}],
        "storageSize": 70,
        "backlogSize": 30,
        "oldestBacklogMessageAgeSeconds": 12,
    }
    assert topic_facts(3, stats) == {
        "partitions": 3,
        "brokers": ["a", "b"],
        "subscriptions": 3,
        "producers": 2,
        "storageBytes": 70,
        "backlog": {"messages": 9, "bytes": 30, "oldestAgeSeconds": 12},
    }
    behind = {"backlogSize": 30, "oldestBacklogMessageAgeSeconds": 12}
    empty = topic_facts(0, {"ownerBroker": "c", **behind})
    assert empty["brokers"] == ["c"]
    assert empty["backlog"] == {"messages": 0, "bytes": 0, "oldestAgeSeconds": 0}
    for age_s, told_s in ((-1, 0), (0, 0), (1, 1), ("x", 0)):
        stats["oldestBacklogMessageAgeSeconds"] = age_s
        assert topic_facts(3, stats)["backlog"]["oldestAgeSeconds"] == told_s
    bare = topic_facts(0, {"subscriptions": {"s": {}}, "publishers": None, "partitions": None})
    assert (bare["backlog"]["messages"], bare["producers"], bare["storageBytes"]) == (0, 0, 0)
    assert bare["subscriptions"] == 1
    assert subscription_facts({"type": "None"}) == {
        "type": "",
        "consumers": 0,
        "backlog": {"messages": 0, "bytes": 0, "oldestAgeSeconds": 0},
    }
    facts = subscription_facts(
        {"type": "Shared", "consumers": [{}], "msgBacklog": 2, "backlogSize": 7}
    )
    assert facts == {
        "type": "Shared",
        "consumers": 1,
        "backlog": {"messages": 2, "bytes": 7, "oldestAgeSeconds": 0},
    }


def test_policies_per_cluster_are_read_by_the_clusters_own_name() -> None:
    observed_fields = tenant({"adminRoles": ["b", "a"], "allowedClusters": None}, 3)
    assert observed_fields == Observed(
        {ADMIN_ROLES: ["a", "b"], ALLOWED_CLUSTERS: []}, {"namespaces": 3}
    )
    rates = {
        "other": {"dispatchThrottlingRateInMsg": 1},
        "mine": {"dispatchThrottlingRateInMsg": 2},
    }
    document = {"topicDispatchRate": rates, "bundles": {"numBundles": 4}, "properties": {"a": "1"}}
    observed_fields = namespace(document, 5, "mine")
    assert observed_fields.facts == {"topics": 5, "bundles": 4}
    assert observed_fields.fields[f"{PROPERTIES}a"] == "1"
    (rate,) = [value for name, value in observed_fields.fields.items() if name.startswith(POLICIES)]
    assert rate["dispatchThrottlingRateInMsg"] == 2
    assert not [name for name in namespace(document, 5, "x").fields if name.startswith(POLICIES)]
    single = {"topicDispatchRate": {"other": rates["other"]}}
    assert len(namespace(single, 5, "x").fields) == 1
    assert namespace({}, 0, "x") == Observed({}, {"topics": 0, "bundles": 0})
    fields = topic_fields(2, None, {"message_ttl": 5, "retention": None, "no such": 1})
    assert fields == {PARTITIONS: 2, TTL: 5}

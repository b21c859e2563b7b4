"""Rules between policies, limits of the broker, and the document of a namespace."""

import copy
from typing import Any

import msgspec
import pytest

from magnetar.admin.routers.policies import documents, forms, rules
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.core.errors import PreconditionFailed
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION
from magnetar.policies.policy import Level
from magnetar.policies.rates import DISPATCH_RATE
from magnetar.policies.registry import BY_NAME, at
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.settings.subscriptions import SubscriptionSettings
from magnetar.settings.topics import ProducerSettings

from .support import Admin

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
MIB = 1 << 20
RATE = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": 6}


async def refused(admin: Admin, method: str, path: str, body: object) -> tuple[int, str]:
    answer = await admin.call(method, path, body)
    assert answer.status_code >= 400, f"{method} {path}: {answer.status_code}"
    return answer.status_code, answer.json()["reason"]


def quota(size: int = -1, seconds: int = -1) -> dict[str, Any]:
    return {"limitSize": size, "limitTime": seconds, "policy": "producer_exception"}


def retention(minutes: int, size_mb: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size_mb}


def held(kept: dict[str, int] | None, quotas: dict[str, Any] | None) -> rules.InForce:
    values: dict[str, Any] = {RETENTION.name: kept, BACKLOG_QUOTA.name: quotas}
    return lambda policy: values[policy.name]


@pytest.mark.parametrize(
    ("kept", "limit", "contradict"),
    [
        (retention(-1, 10), quota(10 * MIB - 1), False),
        (retention(-1, 10), quota(10 * MIB), True),
        (retention(-1, 1), quota(MIB), True),
        (retention(-1, -1), quota(1 << 50), False),
        (retention(0, 0), quota(1 << 50), False),
        (retention(10, -1), quota(seconds=599), False),
        (retention(10, -1), quota(seconds=600), True),
        (retention(1, -1), quota(seconds=60), True),
        (retention(-1, -1), quota(seconds=1 << 30), False),
        (retention(10, 10), quota(10 * MIB - 1, 599), False),
        (retention(10, 10), quota(10 * MIB - 1, 600), True),
        (retention(10, 10), quota(10 * MIB, 599), True),
    ],
)
@pytest.mark.parametrize("changed", [RETENTION, BACKLOG_QUOTA])
def test_a_retention_exceeds_every_limit_of_the_quota(
    kept: dict[str, int], limit: dict[str, Any], contradict: bool, changed: Any
) -> None:
    quotas = {"message_age": quota(), rules.SIZE_QUOTA: limit}
    for level in Level:
        if contradict:
            with pytest.raises(PreconditionFailed, match=f"for {level.value}"):
                rules.check_together(changed, held(kept, quotas), level)
        else:
            rules.check_together(changed, held(kept, quotas), level)
        rules.check_together(MESSAGE_TTL, held(kept, quotas), level)
    for missing in (held(None, quotas), held(kept, None), held(kept, {})):
        rules.check_together(changed, missing, Level.TOPIC)


def test_an_age_quota_counts_against_a_topics_retention_and_not_a_namespaces() -> None:
    both = held(retention(10, 10), {"message_age": quota(seconds=600)})
    rules.check_together(RETENTION, both, Level.NAMESPACE)
    with pytest.raises(PreconditionFailed):
        rules.check_together(RETENTION, both, Level.TOPIC)


@pytest.mark.parametrize("over", [0, 1])
async def test_a_topics_messages_are_no_larger_than_the_brokers(admin: Admin, over: int) -> None:
    await admin.topic()
    most = ProducerSettings().message_bytes_max
    answer = await admin.call("POST", TOPIC + "/maxMessageSize", most + over)
    assert answer.status_code == (412 if over else 204)


@pytest.mark.parametrize(
    ("level", "clusters", "status", "reason"),
    [
        ("namespace", [], 412, "ClusterIds should not be null or empty"),
        ("topic", [], 412, "ClusterIds should not be null or empty"),
        ("topic", ["c2"], 412, "Can not remove local cluster from the local topic-level"),
        ("namespace", ["standalone", "none"], 403, "Invalid cluster id: none"),
        (
            *("namespace", ["standalone", "c2"], 403),
            "Cluster [c2] is not in the list of allowed clusters list for tenant [t1]",
        ),
        ("topic", ["standalone", "c2"], 403, "Cluster [c2] is not in the list of allowed"),
        ("namespace", ["standalone", "c3"], 405, "not supported beyond the local cluster"),
        ("topic", ["standalone", "c3"], 405, "not supported beyond the local cluster"),
    ],
)
async def test_a_topic_is_replicated_to_clusters_that_its_tenant_may_use(
    admin: Admin, level: str, clusters: list[str], status: int, reason: str
) -> None:
    await admin.topic()
    for cluster in ("c2", "c3"):
        await admin.done("PUT", f"~/clusters/{cluster}", {"serviceUrl": "http://x"})
    allowed = {"adminRoles": [], "allowedClusters": ["standalone", "c3"]}
    await admin.done("POST", "~/tenants/t1", allowed)
    base = NAMESPACE if level == "namespace" else TOPIC
    before = (await admin.done("GET", base + "/replication")).text
    actual = await refused(admin, "POST", base + "/replication", clusters)
    assert actual[0] == status
    assert reason in actual[1]
    assert (await admin.done("GET", base + "/replication")).text == before
    await admin.done("POST", base + "/replication", ["standalone"])


async def test_a_missing_namespace_precedes_an_invalid_value(
    admin: Admin,
) -> None:
    for path in ("~/namespaces/t1/nope", "~/persistent/t1/n1/nope", "~/persistent/t1/nope/a"):
        for body in (60, -1):
            assert (await refused(admin, "POST", path + "/messageTTL", body))[0] in (404, 412)
        assert (await refused(admin, "POST", path + "/messageTTL", 60))[0] == 404
        assert (await admin.call("DELETE", path + "/messageTTL")).status_code == 404
        assert (await admin.call("GET", path + "/messageTTL")).status_code == 404


async def test_a_namespace_has_the_brokers_schema_update_until_it_sets_its_own(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = NAMESPACE + "/isAllowAutoUpdateSchema"
    for default in (False, True):
        settings = compose(BrokerSettings, schema_auto_update=default)
        monkeypatch.setattr(admin.service, "settings", settings)
        assert (await admin.done("GET", path)).json() is default
        assert (await admin.done("GET", NAMESPACE)).json()["is_allow_auto_update_schema"] is default
    for value in (False, True):
        await admin.done("POST", path, value)
        assert (await admin.done("GET", path)).json() is value
        assert (await admin.done("GET", NAMESPACE)).json()["is_allow_auto_update_schema"] is value


async def test_a_namespaces_own_value_differs_from_the_value_in_force(admin: Admin) -> None:
    path = NAMESPACE + "/maxUnackedMessagesPerConsumer"
    default = SubscriptionSettings().unacked_per_consumer_max
    for suffix in ("", "?applied=false"):
        assert (await admin.done("GET", path + suffix)).text == ""
    assert (await admin.done("GET", path + "?applied=true")).json() == default
    await admin.done("POST", path, 7)
    for suffix in ("", "?applied=false", "?applied=true"):
        assert (await admin.done("GET", path + suffix)).json() == 7
    await admin.topic()
    topic = TOPIC + "/maxUnackedMessagesOnConsumer"
    for suffix in ("", "?applied=false"):
        assert (await admin.done("GET", topic + suffix)).text == ""
    assert (await admin.done("GET", topic + "?applied=true")).json() == 7


async def test_a_policy_for_all_clusters_is_changed_and_removed_separately(
    admin: Admin,
) -> None:
    await admin.topic()
    path = TOPIC + "/dispatchRate"
    here, everywhere = {**RATE, "ratePeriodInSecond": 1}, {**RATE, "ratePeriodInSecond": 2}
    await admin.done("POST", path + "?isGlobal=false", here)
    await admin.done("POST", path + "?isGlobal=true", everywhere)

    async def periods() -> tuple[int | None, ...]:
        actual = [
            (await admin.done("GET", path + query)).text
            for query in ("", "?isGlobal=true", "?applied=true")
        ]
        return tuple(
            msgspec.json.decode(item)["ratePeriodInSecond"] if item else None for item in actual
        )

    assert await periods() == (1, 2, 1)
    await admin.done("DELETE", path)
    assert await periods() == (None, 2, 2)
    await admin.done("POST", path, here)
    await admin.done("DELETE", path + "?isGlobal=true")
    assert await periods() == (1, None, 1)


def test_the_value_of_a_cluster_does_not_change_those_of_others() -> None:
    field = DISPATCH_RATE.document
    before = {**default_policies("here"), field: {"there": {"a": 1}}}
    kept = copy.deepcopy(before)
    changed = documents.with_value(before, DISPATCH_RATE, {"b": 2}, "here", "")
    assert changed[field] == {"there": {"a": 1}, "here": {"b": 2}}
    assert documents.value_in(changed, DISPATCH_RATE, "here") == {"b": 2}
    assert documents.value_in(changed, DISPATCH_RATE, "elsewhere") is None
    gone = documents.with_value(changed, DISPATCH_RATE, None, "here", "")
    assert gone == before == kept
    again = documents.with_value(gone, DISPATCH_RATE, None, "here", "")
    assert again == before


def test_setting_or_removing_an_entry_does_not_change_the_others() -> None:
    field = BACKLOG_QUOTA.document
    before = {"other": 1, field: {"a": 1, "b": 2}}
    assert documents.with_value(before, BACKLOG_QUOTA, 3, "here", "b") == {
        "other": 1,
        field: {"a": 1, "b": 3},
    }
    assert documents.with_value(before, BACKLOG_QUOTA, None, "here", "a")[field] == {"b": 2}
    assert before[field] == {"a": 1, "b": 2}


@pytest.mark.parametrize("policy", at(Level.NAMESPACE), ids=lambda policy: policy.name)
def test_a_removed_policy_has_the_value_of_a_new_namespace(policy: Any) -> None:
    fresh = default_policies("here")
    value: Any = {"here": 5} if policy.by_cluster else 5
    changed = documents.with_value({**fresh, policy.document: value}, policy, None, "here", "")
    assert changed == fresh
    # Changes of the document do not change the defaults.
    value = changed.get(policy.document)
    if isinstance(value, dict | list):
        value.clear()
    assert default_policies("here") == fresh


def test_a_new_namespaces_policies_are_checked_by_their_types() -> None:
    given = {
        "message_ttl_in_seconds": "60",
        "retention_policies": {"retentionTimeInMinutes": "5", "retentionSizeInMB": 7, "x": None},
        "backlog_quota_map": {
            "destination_storage": {"limit": "9", "policy": "producer_exception"},
            "message_age": None,
        },
        "topicDispatchRate": {"here": {"dispatchThrottlingRateInMsg": "5"}, "there": None},
        "subscription_types_enabled": ["Shared", "Shared"],
        "no policy": {"is": "left"},
        "max_consumers_per_topic": None,
        "replication_clusters": [],
        "persistence": {},
    }
    before = copy.deepcopy(given)
    assert documents.checked_document(given) == {
        **before,
        "message_ttl_in_seconds": 60,
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7},
        "backlog_quota_map": {
            "destination_storage": {
                "limitSize": 9,
                "limitTime": -1,
                "policy": "producer_exception",
            }
        },
        "topicDispatchRate": {
            "here": {
                "dispatchThrottlingRateInMsg": 5,
                "dispatchThrottlingRateInByte": -1,
                "relativeToPublishRate": False,
                "ratePeriodInSecond": 1,
            }
        },
        "subscription_types_enabled": ["Shared"],
    }
    assert given == before
    wrongs: list[dict[str, Any]] = [
        {"topicDispatchRate": 5},
        {"topicDispatchRate": {"here": 5}},
        {"backlog_quota_map": 5},
        {"backlog_quota_map": {"other": {}}},
    ]
    for wrong in wrongs:
        with pytest.raises(PreconditionFailed):
            documents.checked_document(wrong)


def test_policies_of_pulsars_other_document_are_not_shown() -> None:
    stored = {"antiAffinityGroup": "g", "bookieAffinityGroup": {"a": 1}, "deleted": False}
    shown = documents.shown_document(stored, auto_update=False)
    assert shown == {"deleted": False, "is_allow_auto_update_schema": False}
    said = {"is_allow_auto_update_schema": True}
    assert documents.shown_document(said, auto_update=False) == said


@pytest.mark.parametrize(
    ("path", "value", "request_"),
    [
        ("messageTTL", 5, ("POST", "messageTTL?messageTTL=")),
        ("messageTTL", 5, ("POST", "messageTTL", "")),
        ("messageTTL", 5, ("POST", "messageTTL", b" ")),
        ("maxUnackedMessagesOnConsumer", 5, ("POST", "maxUnackedMessagesOnConsumer", None)),
        ("dispatchRate", RATE, ("POST", "dispatchRate", b"")),
        ("schemaCompatibilityStrategy", "FULL", ("PUT", "schemaCompatibilityStrategy", "")),
    ],
)
async def test_an_empty_value_removes_a_policy_if_pulsars_clients_do_so(
    admin: Admin, path: str, value: object, request_: tuple[Any, ...]
) -> None:
    await admin.topic()
    unset = (await admin.done("GET", f"{TOPIC}/{path}")).text
    await admin.done(request_[0], f"{TOPIC}/{path}", value)
    assert (await admin.done("GET", f"{TOPIC}/{path}")).text != unset
    verb, named, *body = request_
    await admin.done(verb, f"{TOPIC}/{named}", *body)
    assert (await admin.done("GET", f"{TOPIC}/{path}")).text == unset


@pytest.mark.parametrize("body", [b"", b"null", b'""'])
async def test_an_empty_value_is_refused_otherwise(admin: Admin, body: bytes) -> None:
    await admin.topic()
    for path in (f"{TOPIC}/maxProducers", f"{NAMESPACE}/messageTTL", f"{TOPIC}/offloadPolicies"):
        answer = await admin.call("POST", path, body)
        assert (answer.status_code, answer.json()) == (400, {"reason": forms.EMPTY})


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("message_ttl", "5", 5),
        ("message_ttl", " 5 ", 5),
        ("message_ttl", "-5", -5),
        ("message_ttl", "9" * 19, int("9" * 19)),
        ("message_ttl", "9" * 20, "9" * 20),
        ("message_ttl", "5s", "5s"),
        ("message_ttl", 5.0, 5),
        ("message_ttl", 5.5, 5.5),
        ("deduplication", "true", True),
        ("deduplication", " FALSE ", False),
        ("deduplication", "yes", "yes"),
        ("deduplication", 1, True),
        ("deduplication", 0, False),
        ("deduplication", 2, 2),
        ("subscription_types", ["Shared", "Failover", "Shared"], ["Shared", "Failover"]),
        ("subscription_types", "Shared", "Shared"),
        ("retention", {"retentionTimeInMinutes": "5", "retentionSizeInMB": None, "x": None},
         {"retentionTimeInMinutes": 5}),
        ("backlog_quota", {"a": {"limit": "5", "policy": "x"}, "b": None},
         {"a": {"limit": 5, "policy": "x"}}),
        ("persistence", {"managedLedgerMaxMarkDeleteRate": "1.5", "bookkeeperEnsemble": "2"},
         {"managedLedgerMaxMarkDeleteRate": 1.5, "bookkeeperEnsemble": 2}),
        ("persistence", {"managedLedgerMaxMarkDeleteRate": "x"},
         {"managedLedgerMaxMarkDeleteRate": "x"}),
    ],
)  # fmt: skip
def test_texts_are_converted_to_numbers_if_the_type_requires_it(
    name: str, given: Any, taken: Any
) -> None:
    actual = forms.coerced(BY_NAME[name].type, given)
    assert (actual, type(actual)) == (taken, type(taken))


def test_a_quota_is_shown_under_both_names_of_its_size() -> None:
    shown = forms.shown(BACKLOG_QUOTA, {"a": {"limitSize": 5}, "b": {"limitTime": 3}})
    assert shown == {"a": {"limit": 5, "limitSize": 5}, "b": {"limit": -1, "limitTime": 3}}
    assert forms.shown(BACKLOG_QUOTA, None) is None
    assert forms.shown(MESSAGE_TTL, 5) == 5

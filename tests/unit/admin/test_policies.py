"""Policies over REST: valid values are stored unchanged, others are refused, rules are enforced."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from tests.support.policy_values import values, wrong

from magnetar.admin.routers.policies.forms import coerced
from magnetar.core.names import parse_topic
from magnetar.policies.admission import BOOKIE_AFFINITY, REPLICATION, SUBSCRIPTION_AUTH_MODE
from magnetar.policies.caps import MAX_MESSAGE_SIZE
from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.policies.lifecycle import BACKLOG_QUOTA, OFFLOAD, RETENTION
from magnetar.policies.policy import Level, Policy, Rest
from magnetar.policies.registry import at, rest_of
from magnetar.policies.types import MapOf, Text, Type
from magnetar.settings.topics import ProducerSettings

from .support import NO_BODY, Admin

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
EACH = [(level, policy) for level in Level for policy in at(level)]
IDS = [f"{level.value}-{policy.name}" for level, policy in EACH]
FEW = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def base(level: Level) -> str:
    return NAMESPACE if level is Level.NAMESPACE else TOPIC


def rest(level: Level, policy: Policy) -> Rest:
    actual = rest_of(policy, level)
    assert actual is not None
    return actual


def one_value(policy: Policy) -> Type:
    """Returns the type of the value that one request sets."""
    return policy.type.value if policy.keyed and isinstance(policy.type, MapOf) else policy.type


def allowed(policy: Policy, value: Any) -> bool:
    """Whether no rule between policies refuses the value."""
    if policy is REPLICATION:
        return bool(value == ["standalone"])
    if policy is BACKLOG_QUOTA:  # of the type destination_storage, whose limit is the size
        quota: Any = one_value(policy).check(value)
        return not quota["limitSize"] < 0 <= quota["limitTime"]
    return policy is not MAX_MESSAGE_SIZE or value <= ProducerSettings().message_bytes_max


async def stored(admin: Admin, level: Level, policy: Policy) -> Any:
    """Returns the status and the value of a GET."""
    answer = await admin.call("GET", f"{base(level)}/{rest(level, policy).path}")
    if isinstance(policy.type, Text):
        return answer.status_code, answer.text
    return answer.status_code, answer.json() if answer.content else None


@pytest.mark.parametrize(("level", "policy"), EACH, ids=IDS)
@FEW
@given(data=st.data())
async def test_a_valid_value_is_stored_and_removed(
    admin: Admin, level: Level, policy: Policy, data: st.DataObject
) -> None:
    await admin.topic()
    kind, rest_ = one_value(policy), rest(level, policy)
    drawn = st.just(["standalone"]) if policy is REPLICATION else values(kind)
    if policy is ENTRY_FILTERS:
        drawn = st.just({"entryFilterNames": "expression"})
    if rest_.implied is not None:
        drawn = st.just(rest_.implied)
    if policy is SUBSCRIPTION_AUTH_MODE:
        drawn = st.just("None")  # Prefix needs authorization: tests/security
    value = data.draw(drawn.filter(lambda value: allowed(policy, value)))
    unset = await stored(admin, level, policy)
    path = f"{base(level)}/{rest_.setting_path}"
    wanted = kind.check(value)
    if (reason := policy.unsupported(wanted, "standalone")) is not None:
        refused = await admin.call(rest_.set_verb, path, value)
        assert (refused.status_code, refused.json()) == (405, {"reason": reason})
        assert await stored(admin, level, policy) == unset
        return
    if policy is BOOKIE_AFFINITY:
        refused = await admin.call(rest_.set_verb, path, value)
        assert refused.status_code == 405
        assert "a standalone has one bookie" in refused.json()["reason"]
        return
    await admin.done(rest_.set_verb, path, value)
    _, actual = await stored(admin, level, policy)
    if policy is BACKLOG_QUOTA:
        actual = {
            key: limit for key, limit in actual["destination_storage"].items() if key != "limit"
        }
    if policy is OFFLOAD:  # also with the driver's names, which no manifest has
        assert isinstance(wanted, dict)
        actual = {key: part for key, part in actual.items() if key in wanted}
        wanted = {key: part for key, part in wanted.items() if part != ""}
    assert actual == wanted
    # Some clients send numbers and booleans as texts.
    assert kind.check(coerced(kind, str(value))) == wanted if isinstance(value, int) else True
    applied = await admin.call("GET", f"{base(level)}/{rest_.path}?applied=true")
    assert applied.status_code == 200
    await admin.done(rest_.remove_verb, f"{base(level)}/{rest_.removing_path}")
    assert await stored(admin, level, policy) == unset


WITH_VALUE = [(level, policy) for level, policy in EACH if rest(level, policy).implied is None]


@pytest.mark.parametrize(("level", "policy"), WITH_VALUE, ids=lambda one: getattr(one, "name", one))
@FEW
@given(data=st.data())
async def test_invalid_values_are_refused(
    admin: Admin, level: Level, policy: Policy, data: st.DataObject
) -> None:
    await admin.topic()
    kind, rest_ = one_value(policy), rest(level, policy)
    value = data.draw(wrong(kind).filter(lambda one: not taken(kind, one)))
    before = await stored(admin, level, policy)
    refused = await admin.call(rest_.set_verb, f"{base(level)}/{rest_.setting_path}", value)
    assert refused.status_code in (400, 412), refused.text
    assert refused.json()["reason"]
    assert await stored(admin, level, policy) == before


def taken(kind: Type, value: Any) -> bool:
    """Whether REST converts the value to a valid one."""
    try:
        kind.check(coerced(kind, value))
    except (ValueError, HTTPException):
        return False
    return True


@pytest.mark.parametrize("level", Level)
async def test_a_retention_exceeds_the_backlog_quota(admin: Admin, level: Level) -> None:
    await admin.topic()
    path, where = base(level), level.value
    quota = {"limitSize": 10 << 20, "policy": "producer_exception"}
    await admin.done("POST", f"{path}/backlogQuota", quota)
    small = await admin.call("POST", f"{path}/retention", retention(60, 10))
    assert small.status_code == 412
    assert small.json()["reason"].startswith(
        f"Retention Quota must exceed configured backlog quota for {where}"
    )
    assert (await stored(admin, level, RETENTION))[1] is None
    await admin.done("POST", f"{path}/retention", retention(60, 11))
    large = await admin.call(
        "POST", f"{path}/backlogQuota", {"limitSize": 11 << 20, "policy": "producer_exception"}
    )
    assert large.status_code == 412
    assert large.json()["reason"].startswith(
        f"Backlog Quota exceeds configured retention quota for {where}"
    )
    actual = await stored(admin, level, BACKLOG_QUOTA)
    assert actual[1]["destination_storage"]["limitSize"] == 10 << 20
    for unbounded in (retention(-1, -1), retention(0, 0)):
        await admin.done("POST", f"{path}/retention", unbounded)


async def test_a_topics_retention_exceeds_its_namespaces_quota(admin: Admin) -> None:
    await admin.topic()
    quota = {"limitTime": 3600, "policy": "producer_exception"}
    await admin.done("POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType=message_age", quota)
    short = await admin.call("POST", f"{TOPIC}/retention", retention(60, 100))
    assert short.status_code == 412
    await admin.done("POST", f"{TOPIC}/retention", retention(61, 100))


def retention(minutes: int, size_mb: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size_mb}


async def test_each_quota_is_set_and_removed_by_its_type(admin: Admin) -> None:
    for path in (NAMESPACE, TOPIC):
        await admin.topic()
        await admin.done(
            "POST", f"{path}/backlogQuota", {"limit": 5, "policy": "producer_request_hold"}
        )
        await admin.done(
            "POST",
            f"{path}/backlogQuota?backlogQuotaType=message_age",
            {"limitTime": 6, "policy": "consumer_backlog_eviction"},
        )
        assert (await admin.call("GET", f"{path}/backlogQuotaMap")).json() == {
            "destination_storage": {
                "limit": 5, "limitSize": 5, "limitTime": -1, "policy": "producer_request_hold"
            },
            "message_age": {
                "limit": -1, "limitSize": -1, "limitTime": 6, "policy": "consumer_backlog_eviction"
            },
        }  # fmt: skip
        await admin.done("DELETE", f"{path}/backlogQuota")
        left = (await admin.call("GET", f"{path}/backlogQuotaMap")).json()
        assert list(left) == ["message_age"]
        await admin.done("DELETE", f"{path}/backlogQuota?backlogQuotaType=message_age")
        assert (await admin.call("GET", f"{path}/backlogQuotaMap")).json() == {}
        bad = await admin.call("DELETE", f"{path}/backlogQuota?backlogQuotaType=other")
        assert bad.status_code == 404


async def test_the_value_for_all_clusters_is_stored_separately(admin: Admin) -> None:
    await admin.topic()
    await admin.done("POST", f"{TOPIC}/maxProducers?isGlobal=true", 3)
    assert (await admin.call("GET", f"{TOPIC}/maxProducers")).content == b""
    assert (await admin.call("GET", f"{TOPIC}/maxProducers?isGlobal=true")).json() == 3
    assert (await admin.call("GET", f"{TOPIC}/maxProducers?applied=true")).json() == 3
    await admin.done("POST", f"{TOPIC}/maxProducers", 2)
    assert (await admin.call("GET", f"{TOPIC}/maxProducers?applied=true")).json() == 2
    await admin.done("DELETE", f"{TOPIC}/maxProducers?isGlobal=true")
    assert (await admin.call("GET", f"{TOPIC}/maxProducers")).json() == 2


async def test_a_partition_has_the_policies_of_its_topic(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 2)
    await admin.done("POST", "~/persistent/t1/n1/p/messageTTL?messageTTL=5")
    part = await admin.service.topics.get_or_open(
        parse_topic("persistent://t1/n1/p-partition-1"), create=True
    )
    assert (await admin.call("GET", "~/persistent/t1/n1/p/messageTTL")).json() == 5
    for method in ("GET", "POST", "DELETE"):
        refused = await admin.call(method, "~/persistent/t1/n1/p-partition-1/messageTTL", 7)
        assert refused.status_code == 412
        assert "Not allowed to set/get topic policy for a partition" in refused.text
    await admin.done("DELETE", "~/persistent/t1/n1/p/partitions")
    assert part is not None
    assert (await admin.service.policies.documents.read(part.name)).empty


async def test_policies_of_non_persistent_topics(admin: Admin) -> None:
    path = "~/non-persistent/t1/n1/np/maxConsumers"
    assert (await admin.call("POST", path, 2)).status_code == 404
    name = parse_topic("non-persistent://t1/n1/np")
    topic = await admin.service.topics.get_or_open(name, create=True)
    await admin.done("POST", path, 2)
    assert (await admin.call("GET", path)).json() == 2
    assert topic.policies.value(at_name("max_consumers")) == 2


@pytest.mark.parametrize("domain", ["non-persistent", "persistent"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
        ("backlogQuota", {"limitSize": 1_000, "policy": "producer_exception"}),
        ("compactionThreshold", 1_000),
        ("deduplicationEnabled", True),
        ("delayedDelivery", {"active": True, "tickTime": 10}),
        ("messageTTL?messageTTL=5", NO_BODY),
        ("maxUnackedMessagesOnConsumer", 5),
        ("dispatchRate", {"dispatchThrottlingRateInMsg": 5}),
        ("subscriptionDispatchRate?isGlobal=true", {"dispatchThrottlingRateInMsg": 5}),
    ],
)
async def test_what_cannot_act_on_a_non_persistent_topic_is_refused(
    admin: Admin, domain: str, path: str, value: object
) -> None:
    for topic, made, count in (("a", "", NO_BODY), ("p", "/partitions", 2)):
        await admin.done("PUT", f"~/{domain}/t1/n1/{topic}{made}", count)
        of_topic = f"~/{domain}/t1/n1/{topic}/{path}"
        answer = await admin.call("POST", of_topic, value)
        if domain == "persistent":
            assert answer.status_code == 204
            continue
        named = f"{path.partition('?')[0]} is not supported on non-persistent://t1/n1/{topic}"
        assert (answer.status_code, named in answer.json()["reason"]) == (412, True)
        # As for everything that is not offered, the removal succeeds.
        await admin.done("DELETE", of_topic)


def at_name(name: str) -> Policy:
    return next(policy for policy in at(Level.TOPIC) if policy.name == name)


@pytest.mark.parametrize(
    "body", [b"[" * 2_000 + b"]" * 2_000, b'{"a":' * 2_000 + b"1" + b"}" * 2_000]
)
@pytest.mark.parametrize(
    "path", [f"{NAMESPACE}/retention", f"{NAMESPACE}/messageTTL", "~/namespaces/t1/n2"]
)
async def test_a_deeply_nested_value_is_refused(admin: Admin, body: bytes, path: str) -> None:
    method = "PUT" if path.endswith("n2") else "POST"
    assert (await admin.call(method, path, body)).status_code == 400


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [("bundles", 5, 412), ("auth_policies", 5, 400), ("properties", "x", 400)],
)
async def test_a_document_with_fields_of_another_type_is_refused(
    admin: Admin, field: str, value: object, status: int
) -> None:
    answer = await admin.call("PUT", "~/namespaces/t1/n2", {field: value})
    assert answer.status_code == status
    assert field in answer.json()["reason"]
    assert (await admin.call("GET", "~/namespaces/t1/n2")).status_code == 404


async def test_a_new_namespace_is_never_marked_deleted(admin: Admin) -> None:
    assert (await admin.call("PUT", "~/namespaces/t1/n2", {"deleted": True})).status_code == 405
    await admin.done("PUT", "~/namespaces/t1/n2", {"deleted": False, "migrated": False})
    document = (await admin.call("GET", "~/namespaces/t1/n2")).json()
    assert (document["deleted"], document["migrated"]) == (False, False)

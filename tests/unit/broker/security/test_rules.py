"""The rights of a role: super users, tenant admins, and the grants of a namespace."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.security.grants import NONE, Action, Grants
from magnetar.broker.security.needs import (
    AnyRoleNeed,
    NamespaceNeed,
    NamespaceOperation,
    Need,
    PolicyName,
    PolicyNeed,
    PolicyOperation,
    PublicNeed,
    SuperUserNeed,
    TenantAdminNeed,
    TenantNeed,
    TenantOperation,
    TopicNeed,
    TopicOperation,
    namespace_of,
    tenant_of,
)
from magnetar.broker.security.principal import Principal
from magnetar.broker.security.rules import Rules, SubscriptionPrefixRequired
from magnetar.core.names import NamespaceName, parse_topic

NAMESPACE = NamespaceName("t1", "n1")
TOPIC = parse_topic("persistent://t1/n1/a")
OTHER = parse_topic("persistent://t1/n1/b")
PARTITION = parse_topic("persistent://t1/n1/a-partition-7")
RULES = Rules(frozenset({"super"}))
ADMINS = frozenset({"admin"})

ROLES = st.sampled_from(["super", "admin", "app", "other", "*", ""])
TOPICS = st.sampled_from([TOPIC, OTHER, PARTITION])
NEEDS: st.SearchStrategy[Need] = st.one_of(
    st.builds(
        TopicNeed, TOPICS, st.sampled_from(TopicOperation), st.sampled_from([None, "s", "app-s"])
    ),
    st.builds(NamespaceNeed, st.just(NAMESPACE), st.sampled_from(NamespaceOperation)),
    st.builds(TenantNeed, st.just("t1"), st.sampled_from(TenantOperation)),
    st.builds(
        PolicyNeed,
        st.sampled_from([NAMESPACE, TOPIC]),
        st.sampled_from(PolicyName),
        st.sampled_from(PolicyOperation),
    ),
    st.just(TenantAdminNeed("t1")),
    st.just(SuperUserNeed()),
)
ACTIONS = st.frozensets(st.sampled_from(list(Action)))
GRANTED = st.dictionaries(st.sampled_from(["app", "other", "ap*", "*p"]), ACTIONS, max_size=3)
GRANTS = st.builds(
    Grants,
    GRANTED,
    st.dictionaries(TOPICS.map(str), GRANTED, max_size=3),
    st.dictionaries(
        st.sampled_from(["s", "app-s"]), st.frozensets(st.sampled_from(["app", "other"]))
    ),
    st.just(False),
)


def granted(namespace: dict[str, list[str]] | None = None, **auth: Any) -> Grants:
    """Returns grants as a namespace's document has them."""
    mode = auth.pop("mode", "None")
    document = default_policies("c")
    document["auth_policies"] |= {"namespace_auth": namespace or {}, **auth}
    return Grants.of(document | {"subscription_auth_mode": mode})


def on_topic(
    grants: Grants, operation: TopicOperation, subscription: str | None = None, topic=TOPIC
) -> bool:
    return RULES.allowed("app", TopicNeed(topic, operation, subscription), ADMINS, grants)


def on_namespace(grants: Grants, operation: NamespaceOperation) -> bool:
    return RULES.allowed("app", NamespaceNeed(NAMESPACE, operation), ADMINS, grants)


@given(NEEDS, GRANTS)
def test_a_super_user_may_do_everything(need: Need, grants: Grants) -> None:
    assert RULES.allowed("super", need, ADMINS, grants)


@given(NEEDS, GRANTS)
def test_a_tenant_admin_may_do_all_but_what_super_users_may(need: Need, grants: Grants) -> None:
    forbidden = isinstance(need, SuperUserNeed) or (
        isinstance(need, TenantNeed)
        and need.operation in (TenantOperation.UPDATE_TENANT, TenantOperation.DELETE_TENANT)
    )
    assert RULES.allowed("admin", need, ADMINS, grants) is not forbidden


@given(NEEDS, ROLES)
def test_without_a_grant_a_role_may_do_nothing(need: Need, role: str) -> None:
    expected = role == "super" or (role == "admin" and RULES.allowed(role, need, ADMINS, NONE))
    assert RULES.allowed(role, need, ADMINS, NONE) is expected


@given(NEEDS, GRANTS)
def test_no_grant_gives_the_rights_of_admins(need: Need, grants: Grants) -> None:
    """CVE-2024-28098, CVE-2024-29834: policies and topics' administration by produce or consume."""
    if not isinstance(need, TopicNeed | NamespaceNeed):
        assert not RULES.allowed("app", need, ADMINS, grants)


@given(NEEDS, GRANTS, st.booleans())
def test_a_grant_to_another_role_gives_nothing(need: Need, grants: Grants, wildcards: bool) -> None:
    rules = Rules(frozenset({"super"}), wildcards=wildcards)
    assert not rules.allowed("nobody", need, ADMINS, grants)


@pytest.mark.parametrize("need", [AnyRoleNeed(), PublicNeed()])
def test_some_routes_need_no_right(need: Need) -> None:
    assert RULES.allowed("app", need, frozenset(), NONE)
    assert tenant_of(need) is None
    assert namespace_of(need) is None


def test_the_right_to_change_a_tenant_can_be_given_to_its_admins_as_in_pulsar() -> None:
    rules = Rules(frozenset(), tenant_admins_update_tenants=True)
    for operation in TenantOperation:
        assert rules.allowed("admin", TenantNeed("t1", operation), ADMINS, NONE)


PRODUCERS = {"PRODUCE", "LOOKUP", "GET_STATS", "GET_METADATA"}
CONSUMERS = {
    "CONSUME",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "GET_SUBSCRIPTIONS",
    "SKIP",
    "EXPIRE_MESSAGES",
    "PEEK_MESSAGES",
    "RESET_CURSOR",
    "GET_BACKLOG_SIZE",
    "SET_REPLICATED_SUBSCRIPTION_STATUS",
    "GET_REPLICATED_SUBSCRIPTION_STATUS",
    "LOOKUP",
    "GET_STATS",
    "GET_METADATA",
}


@pytest.mark.parametrize("operation", TopicOperation)
def test_what_produce_and_consume_permit_on_a_topic(operation: TopicOperation) -> None:
    producer, consumer = granted({"app": ["produce"]}), granted({"app": ["consume"]})
    others = granted({"app": ["functions", "sources", "sinks", "packages"]})
    assert on_topic(producer, operation) is (operation.value in PRODUCERS)
    assert on_topic(consumer, operation) is (operation.value in CONSUMERS)
    assert not on_topic(others, operation)


@pytest.mark.parametrize("operation", NamespaceOperation)
def test_what_grants_permit_on_a_namespace(operation: NamespaceOperation) -> None:
    expected = {
        "GET_TOPIC": {"produce", "consume"},
        "GET_TOPICS": {"produce", "consume"},
        "GET_BUNDLE": {"produce", "consume"},
        "UNSUBSCRIBE": {"consume"},
        "CLEAR_BACKLOG": {"consume"},
        "TRIM_TOPIC": {"consume"},
        "PACKAGES": {"packages"},
        "FUNCTIONS": {"functions"},
        "SOURCES": {"sources"},
        "SINKS": {"sinks"},
    }.get(operation.value, set())
    permitting = {
        action.value for action in Action if on_namespace(granted({"app": [action]}), operation)
    }
    assert permitting == expected


def test_a_grant_on_a_topic_is_for_that_topic_only() -> None:
    grants = granted(destination_auth={str(TOPIC): {"app": ["produce"]}})
    assert on_topic(grants, TopicOperation.PRODUCE)
    assert not on_topic(grants, TopicOperation.PRODUCE, topic=OTHER)
    assert not on_namespace(grants, NamespaceOperation.GET_TOPICS)


def test_a_grant_on_a_partitioned_topic_is_for_all_its_partitions() -> None:
    grants = granted(destination_auth={str(TOPIC): {"app": ["consume"]}})
    assert on_topic(grants, TopicOperation.CONSUME, topic=PARTITION)
    of_partition = granted(destination_auth={str(PARTITION): {"app": ["consume"]}})
    assert on_topic(of_partition, TopicOperation.CONSUME, topic=PARTITION)
    assert not on_topic(of_partition, TopicOperation.CONSUME)


@pytest.mark.parametrize(
    ("pattern", "role", "matches"),
    [
        ("app.*", "app.one", True),
        ("app.*", "app.", True),
        ("app.*", "app", False),
        ("app.*", "my.app.one", False),
        ("*.app", "one.app", True),
        ("*.app", "one.app.two", False),
        ("*", "anything", True),
        ("a*b", "axb", False),
        ("a*b", "a*b", True),
    ],
)
@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_a_wildcard_is_the_first_or_last_character(
    pattern: str, role: str, matches: bool, level: str
) -> None:
    roles = {pattern: ["produce"]}
    grants = (
        granted(roles) if level == "namespace" else granted(destination_auth={str(TOPIC): roles})
    )
    need = TopicNeed(TOPIC, TopicOperation.PRODUCE)
    rules = Rules(frozenset(), wildcards=True)
    assert rules.allowed(role, need, frozenset(), grants) is matches
    assert rules.allowed(role, need, frozenset(), granted({pattern: ["consume"]})) is False
    literal = pattern == role
    assert Rules(frozenset()).allowed(role, need, frozenset(), grants) is literal


def test_a_subscription_with_roles_is_closed_to_all_others() -> None:
    grants = granted({"app": ["consume"]}, subscription_auth_roles={"s": ["other"], "open": []})
    assert not on_topic(grants, TopicOperation.CONSUME, "s")
    assert on_topic(grants, TopicOperation.CONSUME, "open")
    assert on_topic(grants, TopicOperation.CONSUME, "t")
    assert on_topic(grants, TopicOperation.CONSUME)
    own = granted(subscription_auth_roles={"s": ["app"]})
    assert not on_topic(own, TopicOperation.CONSUME, "s"), "consume is needed as well"


def test_the_prefix_mode_requires_the_role_as_a_prefix_of_the_subscription() -> None:
    grants = granted({"app": ["consume"]}, mode="Prefix")
    assert on_topic(grants, TopicOperation.CONSUME, "app-s")
    with pytest.raises(SubscriptionPrefixRequired) as refused:
        on_topic(grants, TopicOperation.SUBSCRIBE, "s")
    assert refused.value.message == (
        "Failed to create consumer - The subscription name needs to be prefixed by the "
        "authentication role, like app-xxxx for topic: persistent://t1/n1/a"
    )
    assert not on_topic(granted(mode="Prefix"), TopicOperation.CONSUME, "s"), "reveals no mode"
    assert RULES.allowed("admin", TopicNeed(TOPIC, TopicOperation.CONSUME, "s"), ADMINS, grants)


def test_a_principal_behind_a_proxy_has_two_roles() -> None:
    assert Principal("proxy", "app").roles == ("proxy", "app")
    assert Principal("app", "app").roles == ("app",)
    assert Principal("app").roles == ("app",)
    assert (str(Principal("app")), str(Principal("p", "app"))) == ("app", "app (through p)")


@given(need=NEEDS)
def test_an_observer_reads_statistics_and_has_no_other_right(need: Need) -> None:
    rules = Rules(frozenset({"super"}), observers=frozenset({"watcher"}))
    reads = isinstance(need, TopicNeed) and need.operation is TopicOperation.GET_STATS
    assert rules.allowed("watcher", need, ADMINS, Grants()) is reads
    assert not RULES.allowed("watcher", need, ADMINS, Grants())


def test_an_observer_reads_the_settings_of_brokers() -> None:
    rules = Rules(frozenset(), observers=frozenset({"watcher"}))
    for operation, allowed in (
        ("LIST_RUNTIME_CONFIGURATIONS", True),
        ("LIST_DYNAMIC_CONFIGURATIONS", False),
        ("", False),
    ):
        need = SuperUserNeed("validateSuperUserAccess", operation)
        assert rules.allowed("watcher", need, frozenset(), Grants()) is allowed

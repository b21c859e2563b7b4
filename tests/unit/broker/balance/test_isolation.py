"""Isolation policies: which brokers may own which namespaces, and what must move."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.balance.isolation import (
    EXPRESSION_CHARACTERS_MAX,
    EXPRESSIONS_MAX,
    POLICIES_MAX,
    AutoFailover,
    Isolation,
    IsolationPolicies,
    IsolationPolicy,
    check_policy,
    normalized,
    with_policy,
    without_policy,
)
from magnetar.core.errors import MetadataError, PreconditionFailed

BROKERS = ["a1:8080", "a2:8080", "b1:8080", "c1:8080"]


def policy(
    namespaces: str = "own/.*",
    primary: str = "a.*",
    secondary: str = "b.*",
    min_limit: int = 1,
    threshold: int = 80,
    scope: str | None = None,
) -> IsolationPolicy:
    parameters: dict[str, str | int] = {
        "min_limit": str(min_limit),
        "usage_threshold": str(threshold),
    }
    return IsolationPolicy(
        [namespaces], [primary], [secondary], AutoFailover(parameters, "min_available"), scope
    )


def idle(_broker: str) -> float:
    return 0.0


def test_primary_brokers_serve_their_namespaces_and_no_others() -> None:
    isolation = Isolation({"p": policy()})
    assert isolation.allowed("own/n", BROKERS, idle) == ["a1:8080", "a2:8080"]
    assert isolation.allowed("other/n", BROKERS, idle) == ["b1:8080", "c1:8080"]
    assert isolation.allowed("xown/n", BROKERS, idle) == ["b1:8080", "c1:8080"], "whole names"
    assert Isolation({}).allowed("own/n", BROKERS, idle) == BROKERS


def test_a_broker_is_matched_by_its_host_or_with_its_port() -> None:
    for primary in ("a1", "a1:8080", "a1.*"):
        isolation = Isolation({"p": policy(primary=primary)})
        assert isolation.allowed("own/n", BROKERS, idle) == ["a1:8080"]
    assert Isolation({"p": policy(primary="a")}).allowed("own/n", BROKERS, idle) == ["b1:8080"]


def test_secondary_brokers_help_while_too_few_primary_ones_are_available() -> None:
    isolation = Isolation({"p": policy(min_limit=2)})
    both = ["a1:8080", "a2:8080"]
    assert isolation.allowed("own/n", BROKERS, idle) == both
    assert isolation.allowed("own/n", BROKERS[1:], idle) == ["a2:8080", "b1:8080"]
    usage = {"a2:8080": 80.0}
    assert isolation.allowed("own/n", BROKERS, lambda b: usage.get(b, 79.9)) == [*both, "b1:8080"]
    assert isolation.allowed("own/n", ["c1:8080"], idle) == [], "it is served nowhere else"
    # min_limit 0: no number of primary brokers is too small.
    assert Isolation({"p": policy(min_limit=0)}).allowed("own/n", ["b1:8080"], idle) == []


def test_others_use_dedicated_brokers_only_if_all_are_dedicated() -> None:
    isolation = Isolation({"p": policy(primary=".*")})
    assert isolation.allowed("other/n", BROKERS, idle) == BROKERS
    assert not isolation.misplaced("other/n", "a1:8080", BROKERS, idle)


def test_the_first_policy_by_name_governs() -> None:
    isolation = Isolation({"q": policy(primary="c.*"), "p": policy(), "r": policy("own/n")})
    governing = isolation.governing("own/n")
    assert governing is not None
    assert governing.name == "p"
    assert isolation.governing("other/n") is None
    assert [each.name for each in isolation.dedicating("a1:8080")] == ["p", "r"]


def test_misplaced_bundles_move_as_the_scope_says() -> None:
    for scope, moves in ((None, True), ("changed", True), ("all_matching", True), ("none", False)):
        isolation = Isolation({"p": policy(scope=scope)})
        assert isolation.misplaced("own/n", "c1:8080", BROKERS, idle) is moves
        assert isolation.misplaced("other/n", "a1:8080", BROKERS, idle) is moves
        assert not isolation.misplaced("own/n", "a1:8080", BROKERS, idle)
        assert not isolation.misplaced("other/n", "b1:8080", BROKERS, idle)
    isolation = Isolation({"p": policy()})
    assert not isolation.misplaced("own/n", "c1:8080", ["c1:8080"], idle), "there is no other"
    assert not Isolation({}).misplaced("own/n", "c1:8080", BROKERS, idle)


def test_a_bundle_returns_from_a_secondary_broker_once_there_is_room_to_spare() -> None:
    isolation = Isolation({"p": policy(min_limit=1)})
    for usage, returns in ((85.0, False), (75.0, False), (70.0, False), (69.9, True)):

        def same(_broker: str, usage: float = usage) -> float:
            return usage

        assert isolation.misplaced("own/n", "b1:8080", BROKERS, same) is returns
        assert not isolation.misplaced("own/n", "a1:8080", BROKERS, same)


@given(
    namespace=st.sampled_from(["own/n", "other/n", "third/n"]),
    brokers=st.lists(st.sampled_from(BROKERS), min_size=1, unique=True),
    busy=st.sets(st.sampled_from(BROKERS)),
    min_limit=st.integers(-1, 4),
    second=st.booleans(),
)
def test_what_is_moved_is_moved_to_where_it_stays(
    namespace: str, brokers: list[str], busy: set[str], min_limit: int, second: bool
) -> None:
    policies = {"p": policy(min_limit=min_limit)}
    if second:
        policies["q"] = policy("third/.*", "b.*", "c.*")
    isolation = Isolation(policies)

    def usage(broker: str) -> float:
        return 95.0 if broker in busy else 5.0

    allowed = isolation.allowed(namespace, brokers, usage)
    assert set(allowed) <= set(brokers)
    for own in brokers:
        if isolation.misplaced(namespace, own, brokers, usage):
            assert own not in allowed
            assert allowed, "a bundle never leaves for no broker"
            assert not any(isolation.misplaced(namespace, to, brokers, usage) for to in allowed)
        if namespace == "other/n" and own in allowed and len(allowed) < len(brokers):
            assert not isolation.dedicating(own)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"namespaces": None}, "required"),
        ({"namespaces": []}, "required"),
        ({"primary": []}, "required"),
        ({"secondary": None}, "required"),
        ({"auto_failover_policy": None}, "required"),
        ({"auto_failover_policy": AutoFailover({}, "other")}, "policy_type"),
        ({"auto_failover_policy": AutoFailover({}, "min_available")}, "min_limit"),
        (
            {"auto_failover_policy": AutoFailover({"min_limit": "1"}, "min_available")},
            "usage_threshold",
        ),
        ({"unload_scope": "some"}, "unload_scope"),
        ({"primary": ["["]}, "primary"),
        ({"namespaces": ["x" * (EXPRESSION_CHARACTERS_MAX + 1)]}, "namespaces"),
        ({"secondary": ["x"] * (EXPRESSIONS_MAX + 1)}, "secondary"),
    ],
)
def test_an_unusable_policy_is_refused(changes: dict[str, Any], named: str) -> None:
    whole = {field: getattr(policy(), field) for field in policy().__struct_fields__}
    with pytest.raises(MetadataError, match=re.escape(named)) as refused:
        check_policy("p", IsolationPolicy(**(whole | changes)))
    assert refused.value.http_status == 400
    check_policy("p", IsolationPolicy(**(whole | {"secondary": []})))


def test_numbers_are_stored_as_texts() -> None:
    failover = AutoFailover({"min_limit": 1, "usage_threshold": 80}, "min_available")
    whole = IsolationPolicy(["a"], ["b"], [], failover)
    stored = normalized(whole).auto_failover_policy
    assert stored is not None
    assert stored.parameters == {"min_limit": "1", "usage_threshold": "80"}
    assert normalized(IsolationPolicy()) == IsolationPolicy()


def test_policies_are_added_up_to_a_bound_and_removed() -> None:
    full = IsolationPolicies(1, {f"p{number}": policy() for number in range(POLICIES_MAX)})
    assert len(with_policy(full, "p0", policy(scope="none")).policies) == POLICIES_MAX
    with pytest.raises(PreconditionFailed, match=str(POLICIES_MAX)):
        with_policy(full, "another", policy())
    added = with_policy(None, "p", policy())
    assert without_policy(added, "p") == IsolationPolicies(1, {})
    assert without_policy(added, "q") is None
    assert without_policy(None, "p") is None


def test_no_name_of_a_namespace_stalls_a_broker() -> None:
    """An expression with nested repetitions takes a backtracking matcher 2^60 steps here."""
    isolation = Isolation({"p": policy("t/(a+)+")})
    own = ["a1:8080", "a2:8080"]
    assert isolation.allowed("t/" + 60 * "a" + "b", BROKERS, idle) != own
    assert isolation.allowed("t/aa", BROKERS, idle) == own

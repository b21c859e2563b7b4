"""Anti-affinity groups and failure domains: where a bundle spreads its group best."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.balance.failure_domains import (
    BROKERS_MAX,
    FailureDomain,
    FailureDomains,
    domains_of,
    with_domain,
    without_domain,
)
from magnetar.broker.balance.spread import preferred
from magnetar.core.errors import Conflict, PreconditionFailed

DOMAINS = FailureDomains(
    1, {"x": FailureDomain(["a:1", "b:1"]), "y": FailureDomain(["c"]), "z": FailureDomain()}
)
BROKERS = ["a:1", "b:1", "c:1"]
DOMAIN_OF = domains_of(DOMAINS)


def best(namespace: str, owners: dict[str, set[str]], brokers: list[str] = BROKERS) -> list[str]:
    return preferred(namespace, brokers, owners, DOMAIN_OF)


def test_domains_come_first_then_brokers() -> None:
    assert best("n1", {}) == BROKERS
    assert best("n2", {"a:1": {"n1"}}) == ["c:1"], "the other domain"
    assert best("n3", {"a:1": {"n1"}, "c:1": {"n2"}}) == ["b:1"], "the other broker"
    assert best("n2", {"a:1": {"n1"}, "b:1": {"n1"}}) == ["c:1"]
    assert best("n3", {"a:1": {"n1"}, "b:1": {"n1"}, "c:1": {"n2"}}) == BROKERS
    assert best("n2", {"a:1": {"n1"}}, ["a:1", "b:1"]) == ["b:1"], "if no other domain lives"
    assert best("n2", {"a:1": {"n1"}}, ["a:1"]) == ["a:1"], "better there than nowhere"
    assert best("n1", {}, []) == []


def test_a_namespace_stays_in_its_domain() -> None:
    assert best("n1", {"a:1": {"n1"}}) == ["a:1", "b:1"]
    assert best("n1", {"c:1": {"n1"}}) == ["c:1"]
    assert best("n1", {"a:1": {"n1"}, "b:1": {"n2"}}) == ["c:1"], "unless it is crowded"


def test_brokers_without_domains_form_one() -> None:
    unknown = domains_of(None)
    assert preferred("n2", BROKERS, {"a:1": {"n1"}}, unknown) == ["b:1", "c:1"]
    assert [DOMAIN_OF(broker) for broker in ("a:1", "c:7", "a:2", "d:1")] == ["x", "y", "", ""]


@given(
    st.lists(st.sampled_from(["n1", "n2", "n3", "n4", "n5", "n6"]), unique=True),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sampled_from("xy")),
    st.data(),
)
def test_namespaces_placed_one_by_one_are_spread_evenly(
    namespaces: list[str], domains: dict[str, str], data: st.DataObject
) -> None:
    """One bundle each: no domain has two namespaces more than another, nor any of its brokers."""
    brokers = ["a:1", "b:1", "c:1", "d:1"]

    def domain_of(broker: str) -> str:
        return domains.get(broker[0], "")

    owners: dict[str, set[str]] = {}
    for namespace in namespaces:
        candidates = preferred(namespace, brokers, owners, domain_of)
        assert candidates
        owners.setdefault(data.draw(st.sampled_from(candidates)), set()).add(namespace)
        by_domain = Counter({domain_of(broker): 0 for broker in brokers})
        for broker, found in owners.items():
            by_domain[domain_of(broker)] += len(found)
        assert max(by_domain.values()) - min(by_domain.values()) <= 1
        for domain in by_domain:
            counts = [len(owners.get(b, ())) for b in brokers if domain_of(b) == domain]
            assert max(counts) - min(counts) <= 1


def test_a_broker_is_in_one_domain() -> None:
    stored = with_domain(None, "d1", ["b", "c", "b"])
    assert stored.domains["d1"].brokers == ["b", "c"]
    with pytest.raises(Conflict, match=r"^\[b\] already exists in d1$"):
        with_domain(stored, "d2", ["a", "b"])
    assert with_domain(stored, "d1", ["b", "x"]).domains["d1"].brokers == ["b", "x"]
    assert without_domain(stored, "d1") == FailureDomains(1)


def test_domains_are_bounded() -> None:
    for name, brokers in (("", ["b"]), ("d", [""]), ("d" * 257, ["b"]), ("d", ["b" * 257])):
        with pytest.raises(PreconditionFailed, match="256 characters"):
            with_domain(None, name, brokers)
    many = [f"b{number}" for number in range(BROKERS_MAX)]
    assert with_domain(None, "d", many[1:])
    with pytest.raises(PreconditionFailed, match="at most"):
        with_domain(None, "d", many)

"""Rules of placement on three brokers: isolation policies, failure domains, anti-affinity."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.support.rest_cluster import Member, RestCluster

from magnetar.broker.ownership.bundles import Bundle
from magnetar.core.names import NamespaceName

POLICIES = "~/clusters/c1/namespaceIsolationPolicies"
NAMESPACES = ("public/own", "public/other")
TOPICS = 8


@pytest.fixture
async def cluster() -> AsyncIterator[RestCluster]:
    started = RestCluster()
    await started.start(3)
    for namespace in NAMESPACES:
        await started.members[0].done("PUT", f"~/namespaces/{namespace}")
        await use(started, namespace)
    yield started
    await started.stop()


async def use(cluster: RestCluster, namespace: str) -> None:
    """Topics in all bundles of the namespace, each request sent to another broker."""
    for number in range(TOPICS):
        member = cluster.members[number % len(cluster.members)]
        await member.done("PUT", f"~/persistent/{namespace}/t{number}")


def owners(cluster: RestCluster, namespace: str) -> set[str]:
    """The brokers that own bundles of the namespace."""
    return {
        member.service.broker_id
        for member in cluster.members
        for bundle in member.ownership.owned()
        if bundle.namespace == NamespaceName.parse(namespace)
    }


def of(members: list[Member]) -> set[str]:
    return {member.service.broker_id for member in members}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not condition():  # noqa: ASYNC110 - three brokers, each with watches of its own
            await asyncio.sleep(0.01)


def policy(primary: list[str], secondary: list[str], scope: str = "changed") -> dict[str, object]:
    return {
        "namespaces": ["public/own"],
        "primary": primary,
        "secondary": secondary,
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100000"},
        },
        "unload_scope": scope,
    }


async def test_a_policy_moves_a_namespace_and_reserves_its_broker(cluster: RestCluster) -> None:
    first, second, third = cluster.members
    one, two, three = (member.service.broker_id for member in cluster.members)
    assert owners(cluster, "public/own") | owners(cluster, "public/other") == of(cluster.members)
    await second.done("POST", f"{POLICIES}/p", policy([one], [two]))
    await until(lambda: owners(cluster, "public/own") == {one})
    await until(lambda: owners(cluster, "public/other") <= {two, three})
    # New bundles, and the topics that moved: served where the policy wants them.
    for namespace in NAMESPACES:
        await use_again(cluster, namespace)
    assert owners(cluster, "public/own") == {one}
    assert owners(cluster, "public/other") <= {two, three}
    shown = (await third.done("GET", f"{POLICIES}/brokers")).json()
    assert {each["brokerName"]: each["primary"] for each in shown} == {
        one: True,
        two: False,
        three: False,
    }
    bundle = next(b for b in first.ownership.owned() if str(b.namespace) == "public/own")
    path = f"~/namespaces/public/own/{bundle.range}/unload?destinationBroker={three}"
    refused = await first.call("PUT", path)
    assert refused.status_code == 412
    assert "isolation policy" in refused.json()["reason"]
    # Without its primary broker, the namespace is served by the secondary one.
    cluster.members.remove(first)
    await first.stop()
    await use_again(cluster, "public/own")
    assert owners(cluster, "public/own") == {two}


async def use_again(cluster: RestCluster, namespace: str) -> None:
    for number in range(TOPICS):
        member = cluster.members[number % len(cluster.members)]
        await member.done("GET", f"~/persistent/{namespace}/t{number}/stats")


async def test_the_scope_none_moves_nothing_and_all_matching_everything(
    cluster: RestCluster,
) -> None:
    first = cluster.members[0]
    everywhere = [".*"]
    before = {
        bundle: member.service.broker_id
        for member in cluster.members
        for bundle in member.ownership.owned()
        if str(bundle.namespace) == "public/own"
    }
    misplaced = policy([first.service.broker_id], everywhere, scope="none")
    await first.done("POST", f"{POLICIES}/p", misplaced)
    await first.done("POST", f"{POLICIES}/p", policy(everywhere, [], scope="all_matching"))

    def all_moved() -> bool:
        after = {
            bundle: member.service.broker_id
            for member in cluster.members
            for bundle in member.ownership.owned()
        }
        return all(after.get(bundle) not in (None, owner) for bundle, owner in before.items())

    await until(all_moved)


async def test_a_group_is_spread_over_domains_then_over_brokers(cluster: RestCluster) -> None:
    first = cluster.members[0]
    one, two, three = (member.service.broker_id for member in cluster.members)
    domains = "~/clusters/c1/failureDomains"
    await first.done("POST", f"{domains}/x", {"brokers": [one, two]})
    await first.done("POST", f"{domains}/y", {"brokers": [three]})
    await until(lambda: all(_knows_domains(member, one) for member in cluster.members))
    placed: list[str] = []
    for namespace in ("public/g1", "public/g2", "public/g3"):
        await first.done("PUT", f"~/namespaces/{namespace}", {"bundles": {"numBundles": 1}})
        await first.done("POST", f"~/namespaces/{namespace}/antiAffinity", "group")
        await first.done("PUT", f"~/persistent/{namespace}/t")
        (owner,) = owners(cluster, namespace)
        bundle = next(b for b in _owned(cluster) if str(b.namespace) == namespace)
        # Any broker may choose the next owner: each must know this one.
        await until(
            lambda bundle=bundle: all(  # type: ignore[misc]
                member.ownership.owner_of(bundle) for member in cluster.members
            )
        )
        placed.append(owner)
    assert three in placed[:2], "one of the first two is in the other domain"
    assert sorted(placed) == sorted([one, two, three])


def _knows_domains(member: Member, broker_id: str) -> bool:
    rules = member.service.rules
    return rules is not None and rules.domain_of(broker_id) == "x"


def _owned(cluster: RestCluster) -> list[Bundle]:
    return [bundle for member in cluster.members for bundle in member.ownership.owned()]

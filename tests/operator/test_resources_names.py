"""Names of resources' targets, their parents, and references."""

from typing import Any

import pytest

from magnetar_operator.admin.target import NAMESPACE, SUBSCRIPTION, TENANT, TOPIC, Target
from magnetar_operator.catalog.references import (
    BadSpec,
    NotYet,
    Place,
    References,
    placed_by,
    resource_token,
    target_of,
)
from magnetar_operator.engine.queue import ObjectKey, ReconcileQueue
from magnetar_operator.kube.kinds import CLUSTER


@pytest.mark.parametrize(
    ("target", "full", "above", "path"),
    [
        (Target(TENANT, "a/b"), "a/b", None, "/tenants/a%2Fb"),
        (Target(NAMESPACE, "t/n"), "t/n", Target(TENANT, "t"), "/namespaces/t/n"),
        (
            Target(TOPIC, "persistent://t/n/x"),
            "persistent://t/n/x",
            Target(NAMESPACE, "t/n"),
            "/persistent/t/n/x",
        ),
    ],
)
def test_a_target_has_a_name_a_path_and_a_parent(
    target: Target, full: str, above: Target | None, path: str
) -> None:
    assert target.full_name == full
    assert target.above == above
    assert target.path.endswith(path)
    assert Target.parse(target.kind, full) == target
    assert str(target) == f"{target.kind.lower()} {full}"


def test_a_subscription_is_named_by_its_topic_and_itself() -> None:
    target = Target(SUBSCRIPTION, "persistent://t/n/x", "a/b")
    assert Target.parse(SUBSCRIPTION, target.full_name) == target
    assert target.full_name != target.name
    assert target.above == Target(TOPIC, "persistent://t/n/x")
    assert target.path.endswith("/persistent/t/n/x/subscription/a%2Fb")
    assert (target.tenant, target.namespace) == ("t", "t/n")
    assert (Target(TENANT, "t").tenant, Target(TENANT, "t").namespace) == ("t", "")


def made(kind: str, own: str, /, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": own, "namespace": "k"}, "spec": spec}


def test_names_follow_references_and_errors_name_the_missing_object() -> None:
    known = {
        (NAMESPACE, "ns"): made(NAMESPACE, "ns", tenant="t", name="n"),
        (TOPIC, "x"): made(TOPIC, "x", namespaceRef={"name": "ns"}),
        (TOPIC, "placed"): made(TOPIC, "placed", name="t/n/p", adminUrl="http://b:8080"),
    }

    def find(kind: str, name: str) -> Any:
        return known.get((kind, name))

    assert target_of(known[NAMESPACE, "ns"], find) == Target(NAMESPACE, "t/n")
    assert target_of(known[TOPIC, "x"], find).name == "persistent://t/n/x"
    subscription = made(SUBSCRIPTION, "s", topicRef={"name": "x"})
    assert target_of(subscription, find) == Target(SUBSCRIPTION, "persistent://t/n/x", "s")
    light = made(TOPIC, "y", name="t/n/y", persistent=False)
    assert target_of(light, find).name == "non-persistent://t/n/y"
    assert target_of(made(TENANT, "t"), find) == Target(TENANT, "t")
    assert target_of(made(NAMESPACE, "x", name="t/n"), find) == Target(NAMESPACE, "t/n")
    for bad in (made(NAMESPACE, "n"), made(TOPIC, "y"), made(SUBSCRIPTION, "s")):
        with pytest.raises(BadSpec, match="spec"):
            target_of(bad, find)
    with pytest.raises(NotYet) as missing:
        target_of(made(SUBSCRIPTION, "s", topicRef={"name": "no"}), find)
    assert (missing.value.reason, missing.value.token) == ("WaitingForTopic", "Topic k/no")
    assert "there is no Topic resource 'no'" in missing.value.message
    assert placed_by(subscription, find) is subscription
    placed = made(SUBSCRIPTION, "s", topicRef={"name": "placed"})
    assert placed_by(placed, find) is known[TOPIC, "placed"]
    own = made(SUBSCRIPTION, "s", topicRef={"name": "placed"}, clusterRef={"name": "c"})
    assert placed_by(own, find) is own
    known[NAMESPACE, "ns"]["spec"]["clusterRef"] = {"name": "c"}
    assert placed_by(subscription, find) is known[NAMESPACE, "ns"]


# -- addresses


def cluster(own: str = "c", namespace: str = "k", **spec: Any) -> dict[str, Any]:
    obj = made(CLUSTER.kind, own, **spec)
    obj["metadata"]["namespace"] = namespace
    return obj


def known(*given: dict[str, Any]) -> ReconcileQueue:
    """What the watches have shown."""
    work = ReconcileQueue(1, 60.0)
    for item in given:
        metadata = item["metadata"]
        work.changed(ObjectKey(item["kind"], metadata["namespace"], metadata["name"]), item)
    return work


NAMED = {"clusterRef": {"name": "c"}}
FAR = {"clusterRef": {"name": "c", "namespace": "far"}}
BROKER = "http://c-broker.k.svc:8080"


@pytest.mark.parametrize(
    ("spec", "clusters", "place"),
    [
        ({"adminUrl": "http://a/"}, [cluster()], ("http://a", "http://a", "", "")),
        ({}, [cluster()], (BROKER, "c", "k", "c")),
        ({}, [cluster(clusterName="west")], (BROKER, "c", "k", "west")),
        ({}, [cluster(adminUrl="http://a/")], ("http://a", "c", "k", "c")),
        ({}, [cluster(), cluster("d", "far")], (BROKER, "c", "k", "c")),
        ({}, [{**cluster(), "spec": None}], (BROKER, "c", "k", "c")),
        (NAMED, [cluster(), cluster("d")], (BROKER, "c", "k", "c")),
        (NAMED, [cluster(), cluster(namespace="far")], (BROKER, "c", "k", "c")),
        (FAR, [cluster(), cluster(namespace="far")], (BROKER.replace(".k.", ".far."), "c", "far",
                                                      "c")),
    ],
)  # fmt: skip
async def test_a_place_is_an_address_or_a_cluster_with_its_namespace_and_its_own_name(
    spec: dict[str, Any], clusters: list[dict[str, Any]], place: tuple[str, str, str, str]
) -> None:
    resolved = await References(None, known(*clusters)).place(made(TENANT, "t", **spec))
    assert resolved == Place(*place[:2], Target(TENANT, "t"), *place[2:])
    assert resolved.status == {
        "resolvedName": "t",
        "cluster": place[1],
        "clusterNamespace": place[2],
        "adminUrl": place[0],
        "adminSecret": "",
    }


async def test_a_resource_inherits_the_cluster_of_its_references() -> None:
    """Of its own Kubernetes namespace, the nearest first."""
    others = [cluster(), cluster("d"), made(NAMESPACE, "n", tenant="t", clusterRef={"name": "d"})]
    topic = made(TOPIC, "x", namespaceRef={"name": "n"})
    obj = made(SUBSCRIPTION, "s", topicRef={"name": "x"})
    place = await References(None, known(*others, topic)).place(obj)
    assert (place.cluster, place.target.full_name) == ("d", "persistent://t/n/x/subscription/s")
    topic["spec"] |= NAMED
    assert (await References(None, known(*others, topic)).place(obj)).cluster == "c"
    elsewhere = {**topic, "metadata": {"name": "x", "namespace": "far"}}
    with pytest.raises(NotYet, match="no Topic resource 'x' in this Kubernetes namespace"):
        await References(None, known(*others, elsewhere)).place(obj)


@pytest.mark.parametrize(
    ("spec", "clusters", "error", "said"),
    [
        ({}, [], NotYet, "no MagnetarCluster in namespace k"),
        ({}, [cluster(namespace="far")], NotYet, "no MagnetarCluster in namespace k"),
        ({}, [cluster(), cluster("b")], BadSpec, r"several .* namespace k \(b, c\)"),
        (NAMED, [cluster("b")], NotYet, "no MagnetarCluster k/c: create it"),
        (FAR, [cluster()], NotYet, "no MagnetarCluster far/c: create it"),
    ],
)
async def test_a_missing_place_names_the_remedy(
    spec: dict[str, Any], clusters: list[dict[str, Any]], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        await References(None, known(*clusters)).place(made(TENANT, "t", **spec))
    if isinstance(raised.value, NotYet):
        named = "far" if spec == FAR else "k"
        wanted = resource_token(CLUSTER.kind, named, "c") if spec else ""
        assert (raised.value.reason, raised.value.token) == ("WaitingForCluster", wanted)

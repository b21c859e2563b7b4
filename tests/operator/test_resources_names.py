"""Names of resources' targets: what they are in, and what they refer to."""

from typing import Any

import pytest

from magnetar_operator.resources.targets import (
    NAMESPACE,
    SUBSCRIPTION,
    TENANT,
    TOPIC,
    BadSpec,
    NotYet,
    Target,
    placed_by,
    target_of,
)


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
def test_a_target_has_a_name_a_place_and_what_is_above_it(
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


def test_names_follow_references_and_say_what_is_missing() -> None:
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

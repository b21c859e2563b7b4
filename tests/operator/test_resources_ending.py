"""The deletion of a resource: deleted targets, targets that stay, and obstacles."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.memory_kube import Asked, Refusal
from tests.operator.resource_stage import NS, URL, Stage, resource_stage

from magnetar_operator.admin import client as admin_client
from magnetar_operator.catalog.deletion import FORCE, NAMED_MAX
from magnetar_operator.catalog.memory import OUTAGE_PAUSE_MAX_S, PAUSE_MAX_S
from magnetar_operator.kube.client import Forbidden
from magnetar_operator.kube.kinds import CLUSTER, TOPIC, Object

A = "/persistent/t1/n1/a"
NAME = "t1/n1/a"
IN_C = {"clusterRef": {"name": "c"}}
HELD = "DeletionBlocked"


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


def cluster(on: Stage, name: str = "c", namespace: str = NS, **spec: Any) -> Object:
    return on.kube.put(
        {
            "apiVersion": CLUSTER.api_version,
            "kind": CLUSTER.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"adminUrl": URL, **spec},
        }
    )


async def topics(on: Stage) -> list[str]:
    """That are in the cluster."""
    answer = await on.say("GET", "/persistent/t1/n1")
    return [item.rpartition("/")[2] for item in answer]


# -- deletions


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_topic_is_deleted_with_its_partitions_before_its_resource(
    on: Stage, partitions: int
) -> None:
    await on.ready("Topic", "a", {"name": NAME, "partitions": partitions})
    await on.ready("Topic", "b", {"name": "t1/n1/b"})
    assert await on.delete("Topic", "a") is None
    assert on.get("Topic", "a") == {}
    assert await topics(on) == ["b"]
    (gone,) = [request for request in on.rest.writes if request[0] == "DELETE"]
    assert gone[1] == (f"{A}/partitions" if partitions else A)
    assert await on.say("GET", "/persistent/t1/n1/partitioned") == []


async def test_a_subscription_is_deleted_and_its_topic_stays(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    await on.ready("Subscription", "s", {"topic": f"persistent://{NAME}"})
    assert await on.delete("Subscription", "s") is None
    assert await on.say("GET", f"{A}/subscriptions") == []
    assert await topics(on) == ["a"]


async def test_a_missing_target_counts_as_deleted(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    await on.say("DELETE", A)
    assert await on.delete("Topic", "a") is None
    assert on.get("Topic", "a") == {}


async def test_the_finalizer_is_removed_only_after_the_topic(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    held: list[bool] = []

    def noted(method: str, _: str) -> None:
        if method == "DELETE":
            held.append(bool(on.finalizers("Topic", "a")))

    on.rest.refuse = noted
    await on.delete("Topic", "a")
    assert held == [True]


# -- targets that stay


async def test_keep_after_deletion_applies_even_if_it_was_set_after_the_finalizer(
    on: Stage,
) -> None:
    spec = {"lifecyclePolicy": "KeepAfterDeletion"}
    await on.ready("Topic", "a", {"name": NAME, **spec})
    assert await on.delete("Topic", "a") is None
    await on.ready("Topic", "b", {"name": "t1/n1/b"})
    on.apply("Topic", "b", {"name": "t1/n1/b", **spec})
    assert await on.delete("Topic", "b") is None
    assert on.kube.all_of(TOPIC) == []
    assert await topics(on) == ["a", "b"]


async def test_a_resource_that_created_and_adopted_nothing_deletes_nothing(on: Stage) -> None:
    """Its creation was refused; another client has created a topic of that name since."""
    on.rest.refuse = lambda method, _: (412, "full") if method == "PUT" else None
    on.apply("Topic", "a", {"name": NAME})
    await on.look("Topic", "a")
    on.rest.refuse = lambda _method, _path: None
    await on.say("PUT", A)
    assert await on.delete("Topic", "a") is None
    assert await topics(on) == ["a"]


async def test_a_resource_without_our_finalizer_is_not_finalized(on: Stage) -> None:
    """Another client removed our finalizer; a foreign one still blocks the deletion."""
    await on.ready("Topic", "a", {"name": NAME})
    obj = on.get("Topic", "a")
    obj["metadata"]["finalizers"] = ["theirs"]
    on.kube.put(obj)
    before = on.rest.writes
    assert await on.delete("Topic", "a") is None
    assert on.rest.writes == before


async def test_an_interrupted_creation_is_deleted(on: Stage) -> None:
    """The operator ended between the creation and the write of the status."""
    writes = 0

    def cut(asked: Asked) -> Refusal | None:
        nonlocal writes
        writes += asked.path.endswith("/status")
        return Refusal(403, "Forbidden") if writes == 2 else None

    on.kube.refuse = cut
    on.apply("Topic", "a", {"name": NAME})
    with pytest.raises(Forbidden):
        await on.look("Topic", "a")
    on.kube.refuse = lambda _: None
    assert await topics(on) == ["a"]
    on.restart()
    assert await on.delete("Topic", "a") is None
    assert await topics(on) == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_of_two_resources_of_a_topic_only_the_older_one_deletes_it(
    on: Stage, restarts: bool
) -> None:
    await on.ready("Topic", "one", {"name": NAME, "partitions": 2})
    on.apply("Topic", "two", {"name": NAME, "partitions": 4})
    assert await on.look("Topic", "two") is not None
    ready = on.condition("Topic", "two")
    assert ready["reason"] == "Duplicate"
    assert "Topic ns/one is older" in ready["message"]
    assert "applied" not in on.status("Topic", "two")
    if restarts:
        on.restart()
    assert await on.delete("Topic", "two") is None
    assert (await on.say("GET", f"{A}/partitions"))["partitions"] == 2
    assert await on.delete("Topic", "one") is None
    assert await topics(on) == []


async def test_a_younger_resource_takes_over_once_the_older_one_is_deleted(on: Stage) -> None:
    spec = {"name": NAME, "lifecyclePolicy": "KeepAfterDeletion"}
    await on.ready("Topic", "one", {"name": NAME})
    on.apply("Topic", "two", spec)
    await on.look("Topic", "two")
    assert on.reason("Topic", "two") == "Duplicate"
    on.watches.woken.clear()
    await on.delete("Topic", "one")
    assert "two" in on.watches.woken
    assert await on.look("Topic", "two") is None
    assert await topics(on) == ["a"]


@pytest.mark.parametrize("seen", [True, False])
async def test_an_older_resource_with_a_recorded_topic_counts_before_its_next_reconcile(
    on: Stage, seen: bool
) -> None:
    """After a restart the younger one is looked at first, or deleted at once."""
    await on.ready("Topic", "one", {"name": NAME})
    on.apply("Topic", "two", {"name": NAME})
    two = on.get("Topic", "two")
    two["metadata"]["finalizers"] = ["magnetar.io/cleanup"]
    on.kube.put(two)
    await on.client.patch_status(TOPIC, NS, "two", on.status("Topic", "one"))
    on.restart()
    if seen:
        on.apply("Topic", "one", {"name": NAME}, paused="true")
        await on.look("Topic", "one")
        await on.look("Topic", "two")
        assert on.reason("Topic", "two") == "Duplicate"
        assert "applied" not in on.status("Topic", "two")
    assert await on.delete("Topic", "two") is None
    assert await topics(on) == ["a"]


# -- obstacles


async def test_a_tenant_and_a_namespace_are_deleted_once_they_are_empty(on: Stage) -> None:
    await on.ready("Tenant", "m", {})
    await on.ready("Namespace", "m", {"tenant": "m"})
    await on.ready("Topic", "mine", {"namespaceRef": {"name": "m"}, "partitions": 2})
    await on.say("PUT", "/persistent/m/m/theirs")
    await on.say("PUT", "/non-persistent/m/m/passing/partitions", 1)
    assert await on.delete("Tenant", "m") is not None
    assert await on.delete("Namespace", "m") is not None
    held, ready = on.condition("Namespace", "m", HELD), on.condition("Namespace", "m")
    assert (held["status"], held["reason"]) == ("True", "NotEmpty")
    assert (ready["status"], ready["reason"]) == ("False", "Deleting")
    assert held["message"] == (
        "namespace m/m still has 3 topics, which are not deleted with it; delete the resources of "
        "persistent://m/m/mine; delete by hand, they have no resources: "
        "non-persistent://m/m/passing, persistent://m/m/theirs"
    )
    assert on.condition("Tenant", "m", HELD)["message"] == (
        "tenant m still has 1 namespace, which is not deleted with it; delete the resources of m/m"
    )
    await on.say("DELETE", "/persistent/m/m/theirs")
    await on.say("DELETE", "/non-persistent/m/m/passing/partitions")
    on.watches.woken.clear()
    assert await on.delete("Topic", "mine") is None
    assert on.watches.woken == ["m"]
    on.watches.woken.clear()
    assert await on.look("Namespace", "m") is None
    assert on.watches.woken == ["m"]
    assert await on.look("Tenant", "m") is None
    assert "m" not in await on.say("GET", "/tenants")
    assert len(on.notes(HELD)) == 2


async def test_a_topic_created_after_the_list_was_read_blocks_its_namespaces_deletion(
    on: Stage,
) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.look("Namespace", "m")
    await on.say("PUT", "/persistent/t1/m/new")
    await on.delete("Namespace", "m")
    assert "persistent://t1/m/new" in on.condition("Namespace", "m", HELD)["message"]


async def test_of_many_topics_the_first_are_named(on: Stage) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    for number in range(NAMED_MAX + 1):
        await on.say("PUT", f"/persistent/t1/m/t{number:02}")
    await on.delete("Namespace", "m")
    message = on.condition("Namespace", "m", HELD)["message"]
    assert message.endswith("persistent://t1/m/t09 and 1 more")
    await on.say("DELETE", "/persistent/t1/m/t10")
    await on.look("Namespace", "m")
    assert on.condition("Namespace", "m", HELD)["message"].endswith("persistent://t1/m/t09")


async def test_a_paused_resource_deletes_nothing_unless_forced(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    on.apply("Topic", "a", {"name": NAME}, paused="true")
    assert await on.delete("Topic", "a") is not None
    assert on.reason("Topic", "a", HELD) == "Paused"
    assert await topics(on) == ["a"]
    on.apply("Topic", "a", {"name": NAME}, paused="true", force_delete="true")
    assert await on.look("Topic", "a") is None
    assert on.get("Topic", "a") == {}
    assert await topics(on) == []
    assert on.notes("LetGo") == []


async def test_a_refusal_blocks_the_deletion_and_is_reported_once(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    on.rest.refuse = lambda method, _: (412, "in use") if method == "DELETE" else None
    await on.ready("Topic", "a", {"name": NAME})
    await on.delete("Topic", "a")
    pauses = [await on.look("Topic", "a") for _ in range(6)]
    assert pauses[-1] == PAUSE_MAX_S
    held = on.condition("Topic", "a", HELD)
    assert (held["reason"], held["message"]) == ("Refused", "the cluster refuses it: in use")
    assert on.notes(HELD) == [held["message"]]
    (event,) = [write for write in on.kube.writes if write.path.endswith("/events")]
    assert (event.body["action"], event.body["type"]) == ("Delete", "Warning")


async def test_a_silent_cluster_blocks_the_deletion_unless_forced(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    await on.ready("Topic", "a", {"name": NAME})
    await on.ready("Topic", "b", {"name": "t1/n1/b"})
    on.rest.down = True
    await on.delete("Topic", "a")
    pauses = [await on.look("Topic", "a") for _ in range(6)]
    assert pauses[-1] == OUTAGE_PAUSE_MAX_S
    held = on.condition("Topic", "a", HELD)
    assert held["reason"] == "ClusterUnreachable"
    assert f'{FORCE}="true"' in held["message"]
    on.watches.woken.clear()
    on.rest.down, on.time_s = False, on.time_s + 60
    await on.look("Topic", "b")
    assert on.watches.woken == ["a"]
    on.rest.down = True
    on.apply("Topic", "a", {"name": NAME}, force_delete="true")
    assert await on.look("Topic", "a") is None
    (note,) = on.notes("LetGo")
    assert note.startswith(f"Released because of {FORCE}")
    assert "may still be in the cluster" in note
    on.rest.down = False
    assert await topics(on) == ["a", "b"]


async def test_the_first_deletion_that_succeeds_wakes_all_that_wait_for_the_cluster(
    on: Stage,
) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    on.rest.down = True
    on.apply("Topic", "b", {"name": "t1/n1/b"})
    await on.look("Topic", "b")
    assert await on.delete("Topic", "a") is not None
    on.watches.woken.clear()
    on.rest.down, on.time_s = False, on.time_s + 60
    assert await on.look("Topic", "a") is None
    assert "b" in on.watches.woken


async def test_a_forced_deletion_deletes_no_contents(on: Stage) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.say("PUT", "/persistent/t1/m/theirs")
    on.apply("Namespace", "m", {"tenant": "t1"}, force_delete="true")
    assert await on.delete("Namespace", "m") is None
    assert await on.say("GET", "/persistent/t1/m") == ["persistent://t1/m/theirs"]
    assert "theirs" in on.notes("LetGo")[0]


# -- clusters that go, and that take another's place


@pytest.mark.parametrize("how", ["gone", "ending", "staying"])
async def test_targets_in_a_deleted_cluster_are_left_to_it(on: Stage, how: str) -> None:
    cluster_name = cluster(on)
    await on.ready("Topic", "a", {**IN_C, "name": NAME})
    assert (on.status("Topic", "a")["cluster"], on.status("Topic", "a")["clusterNamespace"]) == (
        "c", NS,
    )  # fmt: skip
    on.rest.down = True
    if how == "gone":
        on.kube.remove(CLUSTER, "c")
    elif how == "ending":
        on.kube.put(
            {**cluster_name, "metadata": {**cluster_name["metadata"], "finalizers": ["theirs"]}}
        )
        on.kube.remove(CLUSTER, "c")
    after_s = await on.delete("Topic", "a")
    if how == "staying":
        assert after_s is not None
        assert on.reason("Topic", "a", HELD) == "ClusterUnreachable"
        assert on.notes("LetGo") == []
    else:
        assert after_s is None
        assert on.notes("LetGo") == [
            f"topic persistent://{NAME} is left to its cluster, which is deleted, too."
        ]
        assert on.get("Topic", "a") == {}


async def test_an_address_never_counts_as_a_deleted_cluster(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    on.rest.down = True
    assert await on.delete("Topic", "a") is not None
    assert on.reason("Topic", "a", HELD) == "ClusterUnreachable"


@pytest.mark.parametrize(("shown", "named"), [(True, False), (False, False), (True, True)])
async def test_another_cluster_at_the_same_address_keeps_its_topics(
    on: Stage, shown: bool, named: bool
) -> None:
    """The old one is deleted; the new one has the old one's address."""
    cluster(on)
    await on.ready("Topic", "a", {"name": NAME, "clusterRef": {"name": "c"}})
    if not named:
        on.kube.put({**on.get("Topic", "a"), "spec": {"name": NAME}})
    on.kube.remove(CLUSTER, "c")
    if not shown:
        on.kube.seen = lambda _one, _gone: None
    cluster(on, "other")
    assert await on.delete("Topic", "a") is None
    (note,) = on.notes("LetGo")
    assert "is another cluster's" in note
    assert await topics(on) == ["a"]


async def test_a_deleted_cluster_that_still_answers_is_cleaned_up(on: Stage) -> None:
    """Another one elsewhere has nothing to do with it."""
    cluster(on)
    await on.ready("Topic", "a", {**IN_C, "name": NAME})
    on.kube.remove(CLUSTER, "c")
    cluster(on, "other", adminUrl="http://other:8080")
    assert await on.delete("Topic", "a") is None
    assert on.notes("LetGo") == []
    assert await topics(on) == []


async def test_a_cluster_with_a_new_address_is_found_by_name(on: Stage) -> None:
    cluster(on, adminUrl="http://old:8080")
    await on.ready("Topic", "a", {**IN_C, "name": NAME})
    assert on.status("Topic", "a")["adminUrl"] == "http://old:8080"
    obj = on.kube.get(CLUSTER, "c")
    on.kube.put({**obj, "spec": {"adminUrl": "http://new:8080"}})
    on.apply("Topic", "a", {**IN_C, "name": NAME, "policies": {"messageTTL": "1h"}})
    assert await on.look("Topic", "a") is None
    assert on.status("Topic", "a")["adminUrl"] == "http://new:8080"
    assert on.notes("Adopted") == []
    assert await on.delete("Topic", "a") is None
    assert await topics(on) == []


async def test_a_manifest_that_now_means_another_topic_changes_nothing_there(
    on: Stage,
) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    await on.say("PUT", "/persistent/t1/n1/b")
    moved = {"name": "t1/n1/b", "policies": {"messageTTL": "1h"}}
    on.apply("Topic", "a", moved)
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "Moved"
    assert on.status("Topic", "a")["resolvedName"] == f"persistent://{NAME}"
    assert await on.say("GET", "/persistent/t1/n1/b/messageTTL") in (None, {})
    assert await on.delete("Topic", "a") is None
    assert await topics(on) == ["b"]


async def test_a_deletion_happens_in_the_cluster_of_the_status(
    on: Stage,
) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    on.kube.put({**on.get("Topic", "a"), "spec": {"adminUrl": "http://x:1", "name": NAME}})
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "Moved"
    on.restart()
    assert await on.delete("Topic", "a") is None
    assert [url for url, *_ in on.opened[-1]._clients] == [URL]

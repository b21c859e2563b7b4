"""Memory between reconciles: statuses, pauses, waiting resources, and owners of targets."""

from typing import Any

import pytest

from magnetar_operator.admin.target import TOPIC, Target, target_token
from magnetar_operator.catalog import memory as memory_module
from magnetar_operator.catalog.memory import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    Memory,
    age,
    version_of,
)
from magnetar_operator.engine.queue import ObjectKey

URL = "http://b:8080"
TARGET = Target(TOPIC, "persistent://t/n/x")
TOKEN = target_token(URL, TARGET)


class Siblings:
    """The other resources, and which of them are looked at soon."""

    def __init__(self) -> None:
        self.known: dict[ObjectKey, Any] = {}
        self.looked: list[ObjectKey] = []

    def latest(self, key: ObjectKey) -> Any:
        return self.known.get(key)

    def enqueue(self, key: ObjectKey, *_: Any, **__: Any) -> None:
        self.looked.append(key)


def key(name: str) -> ObjectKey:
    return ObjectKey(TOPIC, "k", name)


def resource(name: str, created: str = "1", **status: Any) -> Any:
    metadata = {"name": name, "namespace": "k", "uid": f"u-{name}", "resourceVersion": "5"}
    metadata["creationTimestamp"] = created
    return {"kind": TOPIC, "metadata": metadata, "status": status}


def made() -> tuple[Memory, Siblings]:
    siblings = Siblings()
    return Memory(siblings), siblings  # type: ignore[arg-type]


def test_the_last_written_status_counts_until_the_watch_has_a_newer_one() -> None:
    memory, _ = made()
    obj = resource("a", phase="old")
    assert memory.status(key("a"), obj) == {"phase": "old"}
    after = resource("a", phase="new")
    after["metadata"]["resourceVersion"] = "7"
    memory.wrote(key("a"), after)
    assert memory.status(key("a"), obj) == {"phase": "new"}
    obj["metadata"]["resourceVersion"] = "7"
    assert memory.status(key("a"), obj) == {"phase": "new"}
    other = resource("a", phase="another's")
    other["metadata"]["uid"] = "another"
    assert memory.status(key("a"), other) == {"phase": "another's"}
    obj["metadata"]["resourceVersion"] = "8"
    assert memory.status(key("a"), obj) == {"phase": "old"}
    obj["metadata"]["resourceVersion"] = "7"
    assert memory.status(key("a"), obj) == {"phase": "old"}, "it is forgotten"
    assert version_of({"metadata": {"resourceVersion": "x"}}) == 0
    assert version_of({"metadata": {}}) == 0


def test_pauses_double_up_to_a_bound_and_restart_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)
    memory, _ = made()
    pauses = [memory.pause_s(key("a")) for _ in range(8)]
    assert pauses[:5] == [PAUSE_FIRST_S * factor for factor in (1, 2, 4, 8, 16)]
    assert pauses[-1] == PAUSE_MAX_S
    assert memory.pause_s(key("a"), 10) == 10
    assert memory.pause_s(key("b")) == PAUSE_FIRST_S
    memory.succeeded(key("a"))
    memory.succeeded(key("c"))
    assert memory.pause_s(key("a")) == PAUSE_FIRST_S


def test_a_waiting_resource_is_woken_once_without_its_pause() -> None:
    memory, siblings = made()
    memory.wait("", key("none"))
    memory.wake("", "x")
    memory.pause_s(key("a"))
    memory.wait("x", key("a"))
    memory.wait("x", key("b"))
    memory.wait("y", key("c"))
    memory.wake("x", "z")
    assert set(siblings.looked) == {key("a"), key("b")}
    assert memory.pause_s(key("a")) <= PAUSE_FIRST_S
    memory.wake("x")
    assert len(siblings.looked) == 2
    memory.wait_for_cluster(URL, key("d"))
    memory.wait_for_cluster(URL, key("e"))
    memory.answered("http://other", key("d"))
    assert len(siblings.looked) == 2
    memory.answered(URL, key("d"))
    assert siblings.looked[2:] == [key("e")]


def test_the_oldest_of_several_resources_owns_the_target() -> None:
    memory, siblings = made()
    old, new = resource("old", "1"), resource("new", "2")
    siblings.known = {key("old"): old, key("new"): new}
    assert memory.elder(key("new"), new, TOKEN) is None
    assert memory.elder(key("new"), new, TOKEN) is None
    assert memory.elder(key("old"), old, TOKEN) is None, "the elder takes it over"
    assert siblings.looked == [key("new")]
    assert memory.elder(key("new"), new, TOKEN) == key("old")
    memory.release(key("new"), TOKEN)
    assert memory.elder(key("new"), new, TOKEN) == key("old"), "only its holder lets it go"
    siblings.looked.clear()
    memory.release(key("old"), TOKEN)
    assert siblings.looked == [key("new")]
    assert memory.elder(key("new"), new, TOKEN) is None


@pytest.mark.parametrize(
    ("status", "holds"),
    [
        ({}, True),
        ({"resolvedName": TARGET.full_name, "adminUrl": URL}, True),
        ({"resolvedName": TARGET.full_name, "adminUrl": "http://other"}, False),
        ({"resolvedName": "persistent://t/n/y", "adminUrl": URL}, False),
        (None, False),
    ],
)
def test_a_claim_holds_while_its_resource_exists_and_means_the_target(
    status: dict[str, str] | None, holds: bool
) -> None:
    memory, siblings = made()
    old, new = resource("old", "1", **(status or {})), resource("new", "2")
    siblings.known = {key("new"): new, **({} if status is None else {key("old"): old})}
    assert memory.elder(key("old"), old, TOKEN) is None
    assert memory.elder(key("new"), new, TOKEN) == (key("old") if holds else None)


def test_deleted_resources_are_dropped_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "FORGET_EVERY_RECONCILES", 2)
    memory, siblings = made()
    there, gone = resource("there"), resource("gone")
    siblings.known = {key("there"): there, key("gone"): gone}
    for name, one in (("there", there), ("gone", gone)):
        memory.wrote(key(name), one)
        memory.pause_s(key(name))
        memory.wait(name, key(name))
        memory.elder(key(name), one, name)
    del siblings.known[key("gone")]
    memory.forget_deleted()
    assert key("gone") in memory._written
    memory.forget_deleted()
    for item in (memory._written, memory._failures):
        assert set(item) == {key("there")}
    assert set(memory._waiting) == {"there"}
    assert memory._owners == {"there": key("there")}


def test_age_is_ordered_by_creation_then_name() -> None:
    ordered = [resource("b", "1"), resource("a", "2"), resource("b", "2")]
    assert sorted(ordered, key=age) == ordered

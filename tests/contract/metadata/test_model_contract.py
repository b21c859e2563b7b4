"""Contract of every metadata store: random histories against a dictionary.

A history is a list of steps over few keys, so that they collide. After each step the store, the
model and what a watch from the beginning saw must tell the same story.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.etcd import EtcdMember, open_on

from magnetar.core.clock import SystemClock
from magnetar.metadata.embedded import open_embedded
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    EventKind,
    MetadataStore,
    Operation,
    Put,
)

KEYS = ["/a", "/a/b", "/a/b/c", "/a/c", "/ab", "/b/a"]
PREFIXES = ["", "/", "/a", "/a/", "/a/b", "/b/"]
LEASE_TTL_S = 3_600.0

Opener = Callable[[], "AsyncIterator[MetadataStore]"]


@asynccontextmanager
async def memory_store() -> AsyncIterator[MetadataStore]:
    store = MemoryStore()
    yield store
    await store.close()


@asynccontextmanager
async def embedded_store() -> AsyncIterator[MetadataStore]:
    with TemporaryDirectory() as directory:
        store = await open_embedded(Path(directory), SystemClock())
        yield store
        await store.close()


class Model:
    """What a store must be: a dictionary of key → (value, revision, lease)."""

    def __init__(self, revision: int) -> None:
        self.records: dict[str, tuple[bytes, int, int | None]] = {}
        self.revision = revision
        self.events: list[tuple[EventKind, str, bytes, int]] = []

    def revision_of(self, key: str) -> int:
        return self.records[key][1] if key in self.records else ABSENT

    def misfit(self, operations: list[Operation]) -> str | None:
        for operation in operations:
            expected = operation.expected
            if expected is not None and expected != self.revision_of(operation.key):
                return operation.key
        return None

    def apply(self, operations: list[Operation]) -> None:
        revision = self.revision + 1
        for operation in operations:
            key = operation.key
            if isinstance(operation, Put):
                self.records[key] = (operation.value, revision, operation.lease_id)
                self.events.append((EventKind.PUT, key, operation.value, revision))
            elif isinstance(operation, Delete) and self.records.pop(key, None) is not None:
                self.events.append((EventKind.DELETE, key, b"", revision))
            else:
                continue
            self.revision = revision

    def end_lease(self, lease_id: int) -> None:
        leased = sorted(key for key, record in self.records.items() if record[2] == lease_id)
        self.apply([Delete(key) for key in leased])


# How a step picks its expected revision: any, the true one, none there, or a wrong one.
expectations = st.sampled_from(["any", "any", "true", "true", "absent", "wrong"])
operations = st.tuples(
    st.sampled_from(["put", "put", "leased", "delete", "check"]),
    expectations,
    st.binary(max_size=3),
)
transactions = st.dictionaries(st.sampled_from(KEYS), operations, min_size=1, max_size=4)
steps = st.one_of(transactions, transactions, transactions, st.just("revoke"))


def operation_of(model: Model, key: str, drawn: tuple[str, str, bytes], lease_id: int) -> Operation:
    kind, expectation, value = drawn
    true = model.revision_of(key)
    wrong = true + 1
    expected = {"any": None, "true": true, "absent": ABSENT, "wrong": wrong}[expectation]
    if kind == "delete":
        return Delete(key, expected)
    if kind == "check":
        return Check(key, true if expected is None else expected)
    return Put(key, value, expected, lease_id if kind == "leased" else None)


History = dict[str, tuple[str, str, bytes]] | str


async def compare(store: MetadataStore, model: Model) -> None:
    assert await store.revision() == model.revision
    for key in KEYS:
        record = await store.get(key)
        found = None if record is None else (record.value, record.revision)
        assert found == (model.records[key][:2] if key in model.records else None)
    for prefix in PREFIXES:
        listed = [record.key for record in await store.list(prefix)]
        assert listed == sorted(key for key in model.records if key.startswith(prefix))
    below_a = {key[3:].split("/")[0] for key in model.records if key.startswith("/a/")}
    assert await store.children("/a/") == sorted(below_a)


async def check_history(store: MetadataStore, history: list[History]) -> None:
    """Plays the history on the store and on the model, and compares."""
    model = Model(await store.revision())
    watch = store.watch("/")
    lease = await store.grant_lease(LEASE_TTL_S)
    for step in history:
        if isinstance(step, str):
            await lease.revoke()
            model.end_lease(lease.id)
            lease = await store.grant_lease(LEASE_TTL_S)
        else:
            drawn = [operation_of(model, key, what, lease.id) for key, what in step.items()]
            misfit = model.misfit(drawn)
            if misfit is None:
                model.apply(drawn)
                assert await store.transact(drawn) == model.revision
            else:
                with pytest.raises(BadRevision) as failure:
                    await store.transact(drawn)
                assert failure.value.key == misfit
        await compare(store, model)
    seen = []
    for _ in model.events:
        event = await anext(watch)
        seen.append((event.kind, event.record.key, event.record.value, event.record.revision))
    assert seen == model.events


@pytest.mark.parametrize("opened", [memory_store, embedded_store], ids=["memory", "embedded"])
@given(history=st.lists(steps, max_size=25))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_a_history_reads_as_the_model_says(opened, history) -> None:
    async with opened() as store:
        await check_history(store, history)


@given(history=st.lists(steps, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_a_history_reads_as_the_model_says_on_etcd(etcd: EtcdMember, history) -> None:
    store = await open_on(etcd)
    try:
        await check_history(store, history)
    finally:
        await store.close()

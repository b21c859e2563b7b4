"""The work queue: one reconcile of an object at a time, repeated after changes, and when."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.broker.ownership.stage import in_virtual_time

from magnetar_operator.engine.queue import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    RECONCILE_S_MAX,
    ObjectKey,
    ReconcileQueue,
)
from magnetar_operator.kube.client import Unreachable
from magnetar_operator.kube.kinds import Object

RESYNC_S = 1_000.0
A, B, C = (ObjectKey("Topic", "ns", name) for name in "abc")


def one(name: str = "a", generation: int = 1, **status: object) -> Object:
    metadata = {"name": name, "namespace": "ns", "uid": f"u-{name}", "generation": generation}
    return {"kind": "Topic", "metadata": metadata, "status": status}


class Looks:
    """A reconciler that records which object it reconciles when."""

    def __init__(self, workers: int = 4) -> None:
        self.work = ReconcileQueue(workers, RESYNC_S)
        self.seen: list[tuple[float, str, int]] = []
        self.under_way: list[str] = []
        self.most = 0
        self.answer: Callable[[Object], Awaitable[float | None]] = self._nothing
        self.work.register("Topic", self._look)
        self._began = asyncio.get_running_loop().time()

    async def _nothing(self, _: Object) -> float | None:
        return None

    async def _look(self, obj: Object) -> float | None:
        name = obj["metadata"]["name"]
        at = asyncio.get_running_loop().time() - self._began
        self.seen.append((round(at, 1), name, obj["metadata"]["generation"]))
        assert name not in self.under_way, "one look at an object at a time"
        self.under_way.append(name)
        self.most = max(self.most, len(self.under_way))
        try:
            return await self.answer(obj)
        finally:
            self.under_way.remove(name)

    @property
    def times(self) -> list[float]:
        return [at for at, _, _ in self.seen]

    async def __aenter__(self) -> "Looks":
        self.work.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.work.stop()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert tasks == []


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, high: high)


async def passed(seconds: float = 0.1) -> None:
    await asyncio.sleep(seconds)


@in_virtual_time
async def test_a_reported_object_is_reconciled_and_again_after_the_resync_interval() -> None:
    async with Looks() as on:
        on.work.changed(A, one())
        await passed(RESYNC_S * 2.5)
        assert on.times == [0.0, 1_100.0, 2_200.0]
        assert on.work.reconciles == {"Topic": 3}
        assert on.work.waiting == 0


@in_virtual_time
async def test_a_reconcile_is_repeated_when_it_requests_that() -> None:
    async with Looks() as on:
        asked = [5.0, 0.5, None]

        async def soon(_: Object) -> float | None:
            return asked.pop(0)

        on.answer = soon
        on.work.changed(A, one())
        await passed(10)
        assert on.times == [0.0, 5.0, 5.5]


@in_virtual_time
async def test_the_earliest_due_time_counts_and_a_later_one_adds_no_reconcile() -> None:
    async with Looks() as on:
        on.work.changed(A, one())
        await passed()
        on.work.enqueue(A, 50.0)
        on.work.enqueue(A, 20.0)
        on.work.enqueue(A, 60.0)
        await passed(100)
        assert on.times == [0.0, 20.1]


@in_virtual_time
async def test_only_a_change_of_spec_or_metadata_enqueues() -> None:
    async with Looks() as on:
        on.work.changed(A, one())
        await passed()
        on.work.changed(A, one(phase="Ready"))
        await passed()
        assert len(on.seen) == 1
        assert on.work.latest(A) == one(phase="Ready")
        for field in ("uid", "labels", "annotations", "deletionTimestamp", "finalizers"):
            changed = one()
            changed["metadata"][field] = ["new"]
            before = len(on.seen)
            on.work.changed(A, changed)
            await passed()
            assert len(on.seen) == before + 1, field
            on.work.changed(A, one())
            await passed()
        on.work.changed(A, one(generation=2))
        await passed()
        assert on.seen[-1][2] == 2


@in_virtual_time
async def test_an_object_that_changes_during_its_reconcile_is_reconciled_once_more() -> None:
    async with Looks() as on:
        ends = asyncio.Event()

        async def slow(_: Object) -> float | None:
            await ends.wait()
            return None

        on.answer = slow
        on.work.changed(A, one())
        await passed()
        on.work.changed(A, one(generation=2))
        on.work.changed(A, one(generation=3))
        on.work.enqueue(A, 5.0)
        await passed()
        assert len(on.seen) == 1
        ends.set()
        await passed(100)
        assert [generation for _, _, generation in on.seen] == [1, 3]


@in_virtual_time
async def test_objects_are_reconciled_in_parallel_up_to_the_number_of_workers() -> None:
    async with Looks(workers=2) as on:
        ends = asyncio.Event()

        async def slow(_: Object) -> float | None:
            await ends.wait()
            return None

        on.answer = slow
        for key in (A, B, C):
            on.work.changed(key, one(key.name))
        await passed()
        assert on.under_way == ["a", "b"]
        ends.set()
        await passed()
        assert (on.most, len(on.seen)) == (2, 3)


@in_virtual_time
async def test_failures_are_retried_with_growing_pauses_until_the_object_changes() -> None:
    logging.disable(logging.CRITICAL)
    async with Looks() as on:

        async def fails(_: Object) -> float | None:
            raise Unreachable(0, "", "away")

        on.answer = fails
        on.work.changed(A, one())
        await passed(PAUSE_FIRST_S * 15.5)
        assert on.times == [0.0, 1.0, 3.0, 7.0, 15.0]
        assert on.work.failures == {"Topic": 5}
        on.work.changed(A, one(generation=2))
        await passed(PAUSE_FIRST_S + 0.5)
        assert on.times[-2:] == [15.5, 16.5], "a change begins the pauses anew"
        await passed(20 * PAUSE_MAX_S)
        gaps = [later - at for at, later in zip(on.times, on.times[1:], strict=False)]
        assert gaps[-1] == pytest.approx(PAUSE_MAX_S)

        async def well(_: Object) -> float | None:
            return None

        on.answer = well
        await passed(PAUSE_MAX_S)
        on.answer = fails
        on.work.enqueue(A)
        await passed(PAUSE_FIRST_S + 0.5)
        assert on.times[-1] - on.times[-2] == pytest.approx(PAUSE_FIRST_S), "it went well between"
    logging.disable(logging.NOTSET)


@in_virtual_time
async def test_a_hanging_reconcile_is_cancelled_and_retried() -> None:
    logging.disable(logging.CRITICAL)
    async with Looks() as on:

        async def hangs(_: Object) -> float | None:
            await asyncio.Event().wait()
            return None

        on.answer = hangs
        on.work.changed(A, one())
        await passed(RECONCILE_S_MAX + PAUSE_FIRST_S + 1)
        assert on.times == [0.0, RECONCILE_S_MAX + PAUSE_FIRST_S]
        assert on.under_way == ["a"]
    assert on.under_way == [], "an end breaks it off, too"
    logging.disable(logging.NOTSET)


@in_virtual_time
async def test_a_deleted_object_is_not_reconciled() -> None:
    async with Looks() as on:

        async def again(obj: Object) -> float | None:
            if obj["metadata"]["name"] == "b":
                on.work.deleted(B)
            return 1.0

        on.answer = again
        on.work.changed(A, one())
        on.work.changed(B, one("b"))
        await passed(2.5)
        assert [name for _, name, _ in on.seen].count("b") == 1
        on.work.deleted(A)
        before = len(on.seen)
        on.work.enqueue(A)
        on.work.enqueue(C)
        await passed(RESYNC_S)
        assert len(on.seen) == before
        assert (on.work.latest(A), on.work.all_of("Topic")) == (None, [])


@in_virtual_time
async def test_an_object_that_was_deleted_and_created_again_is_reconciled_once() -> None:
    async with Looks() as on:
        on.work.changed(A, one())
        await passed()
        on.work.enqueue(A, 10.0)
        on.work.deleted(A)
        on.work.changed(A, one())
        await passed(50)
        assert on.times == [0.0, 0.1]


async def test_objects_are_listed_by_kind_and_namespace() -> None:
    work = ReconcileQueue(1, RESYNC_S)
    far = ObjectKey("Topic", "far", "a")
    work.changed(A, one())
    work.changed(far, one("far"))
    work.changed(ObjectKey("Tenant", "ns", "x"), one("x"))
    assert work.all_of("Topic") == [one(), one("far")]
    assert work.all_of("Topic", "far") == [one("far")]
    assert work.waiting == 3
    assert str(A) == "Topic ns/a"


@in_virtual_time
async def test_a_kind_without_a_reconciler_is_ignored() -> None:
    async with Looks() as on:
        on.work.changed(ObjectKey("Tenant", "ns", "x"), one("x"))
        await passed(10)
        assert on.work.reconciles == {}

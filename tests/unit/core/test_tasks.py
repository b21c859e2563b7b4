"""Tasks of one owner: their ends, and work that continues without its caller."""

import asyncio
import contextlib

import pytest

from magnetar.core.errors import ServiceNotReady
from magnetar.core.tasks import TaskScope, TaskSet


async def test_what_a_cancelled_caller_began_is_done_to_its_end() -> None:
    tasks, go, done = TaskSet("test"), asyncio.Event(), asyncio.Event()

    async def step() -> None:
        await go.wait()
        done.set()

    caller = asyncio.ensure_future(tasks.finish(step(), "step"))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    go.set()
    await asyncio.wait_for(done.wait(), 20)
    await tasks.stop()


async def test_a_failure_that_no_caller_hears_of_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, go = TaskSet("test"), asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise RuntimeError("the disk is full")

    heard = asyncio.ensure_future(tasks.finish(fail(), "heard"))
    unheard = asyncio.ensure_future(tasks.finish(fail(), "unheard"))
    await asyncio.sleep(0)
    unheard.cancel()
    await asyncio.wait([unheard])
    go.set()
    with pytest.raises(RuntimeError):
        await heard
    await asyncio.sleep(0)
    assert len(tasks) == 0
    assert [record.message for record in caplog.records] == ["task failed"]


async def test_nothing_is_begun_after_the_end() -> None:
    tasks = TaskSet("test")
    await tasks.stop()

    async def step() -> None:
        raise AssertionError("it is not run")

    with pytest.raises(ServiceNotReady, match="test is stopping"):
        await tasks.finish(step(), "step")


async def test_the_end_of_a_scope_cancels_its_tasks_and_waits_for_them() -> None:
    ended = asyncio.Event()

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async with TaskScope("test") as scope:
        task = scope.start(run(), "endless")
        assert await scope.start(asyncio.sleep(0, "the result"), "brief") == "the result"
        assert task.get_name() == "test/endless"
    assert ended.is_set()
    assert task.cancelled()


async def test_a_task_that_fails_at_the_end_of_its_scope_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("the disk is full")

    async with TaskScope("test") as scope:
        scope.start(run(), "failing")
        await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == ["task failed"]


async def test_a_failed_block_logs_the_failures_that_it_did_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(text: str) -> None:
        raise RuntimeError(text)

    async def block() -> None:
        async with TaskScope("test") as scope:
            first, second = (scope.start(fail(text), text) for text in ("first", "second"))
            await asyncio.wait([first, second])
            first.result()

    with pytest.raises(RuntimeError, match="first"):
        await block()
    assert [record.message for record in caplog.records] == ["task failed"]
    assert "second" in str(caplog.records[0].exc_info)


async def test_a_task_that_ignores_its_cancellation_is_left_after_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = asyncio.Event()

    async def run() -> None:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async with TaskScope("test", timeout_s=0.01) as scope:
        task = scope.start(run(), "stubborn")
        await asyncio.sleep(0)
    assert not task.done()
    assert [record.message for record in caplog.records] == ["task did not stop"]
    go.set()
    await task


async def test_a_set_without_tasks_holds_none_and_runs_others_later() -> None:
    tasks = TaskSet("test")
    for _ in range(2):
        task = tasks.start(asyncio.sleep(0), "nap")
        assert task is not None
        assert len(tasks) == 1
        await task
        await asyncio.sleep(0)
        assert len(tasks) == 0
        assert tasks._tasks is None
    await tasks.finish(asyncio.sleep(0), "nap")
    await asyncio.sleep(0)
    assert tasks._tasks is None
    await tasks.stop()
    assert tasks.start(asyncio.sleep(0), "late") is None

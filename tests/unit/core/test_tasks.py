"""Tasks of one owner: what is done to its end whatever happens to the caller."""

import asyncio

import pytest

from magnetar.core.errors import ServiceNotReady
from magnetar.core.tasks import TaskSet


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

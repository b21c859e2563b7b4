"""The tasks of a run of `magnetar perf`: what ends it, and that nothing of it stays behind."""

import asyncio

import pytest

from magnetar.cli.perf.tasks import until_over
from magnetar.client.errors import OperationTimeout


async def forever() -> None:
    await asyncio.Event().wait()


async def nothing() -> None:
    await asyncio.sleep(0)


async def timeout_of_the_client() -> None:
    raise OperationTimeout("x")


async def closed_pipe() -> None:
    raise BrokenPipeError


def left() -> int:
    return len(asyncio.all_tasks())


async def test_the_run_ends_with_all_works_or_the_first() -> None:
    before = left()
    assert await until_over([nothing(), nothing()], forever())
    assert await until_over([nothing(), forever()], forever(), first=True)
    assert left() == before


async def test_the_duration_ends_the_run() -> None:
    assert not await until_over([nothing(), forever()], forever(), duration_s=0.01)


async def test_a_signal_ends_the_run_with_its_totals() -> None:
    before, started = left(), asyncio.Event()

    async def work() -> None:
        started.set()
        await forever()

    running = asyncio.create_task(until_over([work()], forever()))
    await started.wait()
    running.cancel()
    assert not await running
    assert left() == before


async def test_failures_end_the_run() -> None:
    before = left()
    with pytest.raises(OperationTimeout):
        await until_over([forever(), timeout_of_the_client()], forever(), duration_s=100)
    with pytest.raises(BrokenPipeError):
        await until_over([forever()], closed_pipe())
    assert left() == before

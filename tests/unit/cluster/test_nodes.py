"""The start and the stop that all processes of a cluster share."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from magnetar.cluster.nodes import STOPPING, Node, Readiness, launch


async def test_a_node_closes_everything_in_the_reverse_order_of_its_start() -> None:
    closed: list[int] = []
    readiness = Readiness()

    async def start(opened: AsyncExitStack) -> Node:
        for number in (1, 2):
            opened.callback(closed.append, number)
        readiness.open()
        return Node(http_url="http://h:1", readiness=readiness, closing=opened)

    node = await launch(start)
    assert (closed, readiness()) == ([], "")
    await node.stop()
    assert (closed, readiness()) == ([2, 1], STOPPING)


async def test_a_failed_start_closes_what_it_opened() -> None:
    closed: list[int] = []

    async def start(opened: AsyncExitStack) -> Node:
        opened.callback(closed.append, 1)
        raise OSError("in use")

    with pytest.raises(OSError, match="in use"):
        await launch(start)
    assert closed == [1]


async def test_a_cancelled_start_closes_what_it_opened() -> None:
    closed: list[int] = []
    waits = asyncio.Event()

    async def start(opened: AsyncExitStack) -> Node:
        opened.callback(closed.append, 1)
        waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    starting = asyncio.create_task(launch(start))
    await waits.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert closed == [1]

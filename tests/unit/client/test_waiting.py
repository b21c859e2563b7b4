"""Permits and the receiver queue: order, cancellation, and what must not be lost."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.consumer.permits import ReceivePermits
from magnetar.client.consumer.queue import MessageQueue
from magnetar.client.limits import Permits
from magnetar.client.message import Message


async def test_permits_are_granted_in_order() -> None:
    permits = Permits(10)
    assert permits.try_take(8)
    order: list[int] = []

    async def take(count: int) -> None:
        await permits.take(count)
        order.append(count)

    tasks = [asyncio.create_task(take(count)) for count in (5, 1)]
    await asyncio.sleep(0)
    assert not permits.try_take(1), "it would overtake those that wait"
    permits.release(8)
    await asyncio.gather(*tasks)
    assert order == [5, 1]
    assert permits.taken == 6


async def test_more_than_the_limit_is_granted_alone() -> None:
    permits = Permits(10)
    assert permits.try_take(50)
    assert not permits.try_take(1)
    permits.release(50)
    assert permits.try_take(1)


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from("trcy")), max_size=60))
def test_cancelled_callers_hold_no_permits(steps: list[tuple[int, str]]) -> None:
    async def scenario() -> None:
        permits = Permits(8)
        tasks: list[tuple[int, asyncio.Task[None]]] = []
        held: list[int] = []

        async def take(count: int) -> None:
            await permits.take(count)
            held.append(count)

        for count, step in steps:
            if step == "t":
                tasks.append((count, asyncio.create_task(take(count))))
            elif step == "r" and held:
                permits.release(held.pop())
            elif step == "c" and tasks:
                tasks[count % len(tasks)][1].cancel()
            else:
                await asyncio.sleep(0)
        for _, task in tasks:
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        assert permits.taken == sum(held)
        assert not permits.waiting

    asyncio.run(scenario())


def message(number: int) -> Message[Any]:
    return Message(b"%d" % number, None)


async def test_a_cancelled_receiver_leaves_its_message() -> None:
    queue = MessageQueue(asyncio.get_running_loop())
    receiving = asyncio.create_task(queue.take(None))
    await asyncio.sleep(0)
    queue.put([message(1), message(2)])
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert [(await queue.take(None)).data for _ in range(2)] == [b"1", b"2"]
    assert queue.size_bytes == 0


@given(st.lists(st.sampled_from("tpcy"), max_size=80), st.randoms(use_true_random=False))
def test_every_message_has_one_receiver(steps: list[str], random: Any) -> None:
    async def scenario() -> None:
        queue = MessageQueue(asyncio.get_running_loop())
        tasks: list[asyncio.Task[Message[Any]]] = []
        sent = 0
        for step in steps:
            if step == "t":
                tasks.append(asyncio.create_task(queue.take(None)))
            elif step == "p":
                queue.put([message(sent)])
                sent += 1
            elif step == "c" and tasks:
                random.choice(tasks).cancel()
            else:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        got = [result.data for result in results if isinstance(result, Message)]
        got += [left.data for left in queue.messages]
        assert sorted(map(int, got)) == list(range(sent))
        assert not queue.waiting

    asyncio.run(scenario())


def test_permits_are_refilled_at_half() -> None:
    granted: list[int] = []
    permits = ReceivePermits(10, granted.append, auto_scale=False)
    permits.start()
    for _ in range(4):
        permits.consumed()
    assert granted == [10]
    permits.consumed()
    assert granted == [10, 5]
    permits.paused = True
    permits.consumed(7)
    assert granted == [10, 5]
    permits.resume()
    assert granted == [10, 5, 7]


def test_an_auto_scaled_queue_grows_while_memory_permits() -> None:
    granted: list[int] = []
    permits = ReceivePermits(8, granted.append, auto_scale=True)
    permits.start()
    permits.ran_empty(0, 100)
    permits.ran_empty(0, 100)
    permits.ran_empty(80, 100)
    assert (permits.size, granted) == (4, [1, 1, 2])
    permits.check_memory(96, 100)
    assert permits.size == 2
    permits.consumed(2)
    assert granted == [1, 1, 2], "two of the four are not granted again"

"""A session's link: its question whether the client is alive."""

import asyncio

import pytest

from magnetar.broker.session.budget import PublishBudget
from magnetar.broker.session.link import Disconnected, Link

FOR_EVER_S = 3_600.0
TURNS_MAX = 4
"""More turns than the answer takes from the event to the caller."""


class Connected(Disconnected):
    """A wire that is open and drops all frames."""

    closed = False
    writable = True

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("turns", range(TURNS_MAX))
async def test_a_cancellation_that_meets_the_pong_is_not_lost(turns: int) -> None:
    link = Link(Connected(), "client", PublishBudget(), FOR_EVER_S)

    async def ask_for_ever() -> None:
        while True:
            await link.is_alive()

    asking = asyncio.create_task(ask_for_ever())
    await asyncio.sleep(0.01)
    link.ponged()
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()
    done, _ = await asyncio.wait([asking], timeout=1)
    for _ in range(TURNS_MAX):
        asking.cancel()
        await asyncio.sleep(0)
    assert done


async def test_a_client_that_does_not_answer_in_time_is_disconnected() -> None:
    wire = Connected()
    link = Link(wire, "client", PublishBudget(), 0.01)
    assert not await link.is_alive()
    assert wire.closed


async def test_a_client_that_answers_is_alive() -> None:
    wire = Connected()
    link = Link(wire, "client", PublishBudget(), FOR_EVER_S)
    asking = asyncio.create_task(link.is_alive())
    await asyncio.sleep(0.01)
    link.ponged()
    assert await asking
    assert not wire.closed

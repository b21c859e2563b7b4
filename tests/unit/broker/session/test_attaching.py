"""Producers and consumers between their command and their attachment."""

import asyncio
from typing import Any

from magnetar.broker.session.attachment import Attaching, Key

KEY: Key = ("producer", 1)


async def test_an_ended_attaching_is_replaced_by_its_successor() -> None:
    among: dict[Any, Attaching] = {}
    never = asyncio.Event()
    first = Attaching(among, KEY)

    async def hang() -> None:
        await never.wait()

    attached = asyncio.create_task(first.run(hang))
    await asyncio.sleep(0)
    first.end()
    assert among == {}
    second = Attaching(among, KEY)
    await asyncio.wait([attached])
    assert attached.cancelled()
    assert among == {KEY: second}, "a third one still has to wait for the second"
    await second.run(lambda: asyncio.sleep(0))
    assert among == {}


async def test_an_attaching_that_ended_before_it_began_attaches_nothing() -> None:
    among: dict[Any, Attaching] = {}
    attaching, attached = Attaching(among, KEY), []

    async def attach() -> None:
        attached.append(1)

    attaching.end()
    await attaching.run(attach)
    assert (attached, among) == ([], {})

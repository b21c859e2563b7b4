"""Claims of bundles that their namespace does not have are released by their owner."""

import asyncio
from typing import Final

import pytest
from tests.unit.broker.ownership.stage import (
    FIRST,
    NAMESPACE,
    Broker,
    Stage,
    in_virtual_time,
    settle,
    topic_in,
)

from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import ATTEMPTS_MAX, ClaimState
from magnetar.broker.ownership.claims import RETRY_S as CLAIM_RETRY_S
from magnetar.broker.ownership.location import HERE
from magnetar.broker.ownership.records import ownership_key
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.ownership.strays import RETRY_S
from magnetar.core.errors import MetadataError

CUT: Final = [0x20000000]
HALVES: Final = [Bundle(NAMESPACE, 0, 0x20000000), Bundle(NAMESPACE, 0x20000000, 0x40000000)]
QUARTER_EDGES: Final = (0x40000000, 0x80000000, 0xC0000000)


async def nothing_claimed(stage: Stage, broker: Broker) -> None:
    """Asserts that this is so within a retry's pause."""
    async with asyncio.timeout(2 * RETRY_S):
        while await stage.store.owners() or broker.owned():  # noqa: ASYNC110 - no event
            await asyncio.sleep(RETRY_S / 10)


@pytest.mark.parametrize("again", [True, False], ids=["created again", "deleted"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered later", "never answered"])
@in_virtual_time
async def test_parts_of_an_unanswered_split_are_released_once_their_namespace_is_deleted(
    answered: bool, again: bool
) -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        claim = broker.ownership.claims.all[FIRST]
        broker.view.unanswered = [True, *([] if answered else [False] * ATTEMPTS_MAX)]
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        while HALVES[0].range not in await stage.store.owners():  # noqa: ASYNC110 - no event
            await asyncio.sleep(CLAIM_RETRY_S / 100)
        await stage.store.delete(namespace_key(NAMESPACE))
        if again:
            await stage.store.cut(*QUARTER_EDGES)
        try:
            assert await splitting == HALVES
        except MetadataError:
            assert not answered
        broker.view.unanswered.clear()
        await nothing_claimed(stage, broker)
        if again:
            assert await broker.ownership.locate(topic_in(FIRST), authoritative=True) == HERE
            assert broker.owned() == {FIRST}


@in_virtual_time
async def test_a_bundle_that_comes_after_its_namespace_was_cut_anew_is_released() -> None:
    """It was handed over when the namespace had it."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        await stage.store.own(HALVES[0], broker.record)
        await settle()
        await nothing_claimed(stage, broker)


@in_virtual_time
async def test_a_bundle_is_kept_whose_split_the_watch_has_not_reported() -> None:
    """The watches of claims and of namespaces are two, and one may be ahead."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        rings = broker.ownership.rings
        known = rings.get(NAMESPACE)
        assert known is not None
        await stage.store.cut(CUT[0], *QUARTER_EDGES)
        await settle()
        rings._rings[NAMESPACE] = known
        await stage.store.own(HALVES[0], broker.record)
        await asyncio.sleep(2 * RETRY_S)
        assert broker.owned() == {HALVES[0]}
        assert broker.topics.asked == []


@in_virtual_time
async def test_a_claim_is_released_when_the_store_is_back() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        await stage.store.delete(namespace_key(NAMESPACE))
        broker.view.cut_off = True
        await asyncio.sleep(3 * RETRY_S)
        assert broker.owned() == {FIRST}
        broker.view.cut_off = False
        await nothing_claimed(stage, broker)


@in_virtual_time
async def test_a_bundle_that_is_moving_is_released_after_its_move_has_failed() -> None:
    async with Stage() as stage:
        broker, other = await stage.pair()
        await broker.take(FIRST)
        broker.topics.closing.clear()
        moving = asyncio.ensure_future(broker.ownership.unload(FIRST, other.id))
        await settle()
        await stage.store.delete(namespace_key(NAMESPACE))
        await settle()
        claim = broker.ownership.claims.all[FIRST]
        assert claim.state is ClaimState.LEAVING
        assert broker.topics.asked == [("drain", FIRST)]
        broker.view.unanswered = [False] * ATTEMPTS_MAX
        broker.topics.closing.set()
        with pytest.raises(MetadataError):
            await moving
        assert broker.view.unanswered == []
        await nothing_claimed(stage, broker)


@in_virtual_time
async def test_the_claim_of_another_broker_is_left_to_it() -> None:
    async with Stage() as stage:
        broker, other = await stage.pair()
        other.view.cut_off = True
        await other.ownership.stop()
        await stage.store.own(HALVES[0], other.record)
        await asyncio.sleep(2 * RETRY_S)
        assert set(await stage.store.owners()) == {HALVES[0].range}
        assert broker.ownership._strays._at == set()


@in_virtual_time
async def test_a_claim_that_a_newer_write_replaces_while_it_is_released_stays() -> None:
    async with Stage() as stage:
        broker, other = await stage.pair()
        await broker.take(FIRST)
        held = stage.store.hold(lambda one: one.key == ownership_key(FIRST))
        await stage.store.delete(namespace_key(NAMESPACE))
        await held.reached.wait()
        await stage.store.cut(*QUARTER_EDGES)
        await other.ownership.stop()
        await stage.store.own(FIRST, other.record)
        held.go.set()
        await asyncio.sleep(2 * RETRY_S)
        assert await stage.store.owners() == {FIRST.range: other.record}
        assert broker.owned() == set()

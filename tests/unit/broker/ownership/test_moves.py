"""Bundles leave a broker: it closes topics, hands the bundles over, and notifies clients last."""

import asyncio

import pytest
from tests.support.held_store import puts
from tests.unit.broker.ownership.stage import (
    FIRST,
    NAMESPACE,
    QUARTERS,
    TTL_S,
    Stage,
    in_virtual_time,
    settle,
    settled,
    topic_in,
    topics_in,
)

from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import ATTEMPTS_MAX
from magnetar.broker.ownership.location import HERE
from magnetar.broker.ownership.moves import UNLOAD_TIMEOUT_S, UNLOADED_AT_ONCE_MAX
from magnetar.broker.ownership.records import BrokerState, OwnershipRecord, ownership_key
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.ownership.split_algorithms import TopicLoad
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed
from magnetar.core.names import parse_topic
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.store import MetadataUnavailable


@in_virtual_time
async def test_a_bundle_is_closed_handed_over_and_then_clients_hear_of_its_new_owner() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(str(FIRST), other.id))
        await settle()
        assert await stage.store.owners() == {FIRST.range: one.record}
        assert not one.ownership.owns(topic_in(FIRST)), "it takes nothing more for the bundle"
        assert one.topics.asked == [("drain", FIRST)]
        held = stage.store.hold(puts(ownership_key(FIRST)))
        one.topics.closing.set()
        await held.reached.wait()
        await settle()
        assert one.topics.told == []
        held.go.set()
        assert await moving == other.id
        assert await stage.store.owners() == {FIRST.range: other.record}
        assert one.topics.asked == [("drain", FIRST), ("dismiss", topics_in(FIRST))]
        assert one.topics.told == [other.ownership.brokers.own]
        await settle()
        assert (one.owned(), other.owned()) == (set(), {FIRST})
        claim = other.ownership.claims.all[FIRST]
        assert claim.origin == claim.revision
        await other.session.stop()
        assert await stage.store.owners() == {}, "the claim is under the new owner's lease"


@in_virtual_time
async def test_without_a_destination_the_other_with_the_fewest_bundles_has_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        third = await stage.broker("c")
        await one.take(FIRST)
        await other.take(QUARTERS[1])
        assert await one.ownership.unload(FIRST) == third.id
        await third.ownership.brokers.set_state(BrokerState.DRAINING)
        await other.ownership.unload(QUARTERS[1], one.id)
        await settle()
        assert await one.ownership.unload(QUARTERS[1]) == other.id


@in_virtual_time
async def test_a_broker_that_is_alone_frees_the_bundle_and_may_take_it_again() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        assert await one.ownership.unload(FIRST) is None
        assert one.topics.told == [None]
        assert await stage.store.owners() == {}
        await settle()
        assert one.owned() == set()
        await one.take(FIRST)


@in_virtual_time
async def test_who_looks_for_a_bundle_that_leaves_waits_until_it_has_left() -> None:
    """Its record is deleted already; the answer is on its way."""
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        delete, landed, go = stage.store.delete, asyncio.Event(), asyncio.Event()

        async def answered_late(key: str, *, expected: int | None = None) -> bool:
            done = await delete(key, expected=expected)
            landed.set()
            await go.wait()
            return done

        stage.store.delete = answered_late  # type: ignore[method-assign]
        moving = asyncio.ensure_future(one.ownership.unload(FIRST))
        await landed.wait()
        looking = asyncio.ensure_future(one.ownership.locate(topic_in(FIRST), authoritative=True))
        assert not await settled(looking)
        assert await stage.store.owners() == {}
        go.set()
        assert await moving is None
        assert await looking == HERE
        assert one.owned() == {FIRST}


@pytest.mark.parametrize("gone", ["withdrawn", "successor", "draining"])
@in_virtual_time
async def test_a_bundle_is_freed_if_its_destination_is_gone_by_the_handover(gone: str) -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await settle()
        if gone == "withdrawn":
            await other.ownership.withdraw()
        elif gone == "draining":
            await other.ownership.brokers.set_state(BrokerState.DRAINING)
        else:
            await stage.broker("b")
        one.topics.closing.set()
        assert await moving is None
        assert await stage.store.owners() == {}
        assert one.topics.told == [None]


@in_virtual_time
async def test_a_handover_checks_that_the_destination_is_still_there_as_it_lands() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        held = stage.store.hold(puts(ownership_key(FIRST)))
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await held.reached.wait()
        await other.ownership.brokers.set_state(BrokerState.DRAINING)
        held.go.set()
        assert await moving is None
        assert await stage.store.owners() == {}
        assert other.owned() == set()


@in_virtual_time
async def test_a_destination_whose_lease_ends_at_the_handover_gets_nothing() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        held = stage.store.hold(puts(ownership_key(FIRST)))
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await held.reached.wait()
        await other.lose_lease()
        held.go.set()
        assert await moving is None
        assert await stage.store.owners() == {}


@pytest.mark.parametrize("unanswered", [[True], [False], [False, True], [True, False]], ids=str)
@in_virtual_time
async def test_a_handover_without_an_answer_is_made_once(unanswered: list[bool]) -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.view.unanswered = unanswered
        assert await one.ownership.unload(FIRST, other.id) == other.id
        await settle()
        assert (one.owned(), other.owned()) == (set(), {FIRST})
        assert await stage.store.owners() == {FIRST.range: other.record}


@in_virtual_time
async def test_a_bundle_that_another_took_is_not_taken_for_handed_over() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        held = stage.store.hold(puts(ownership_key(FIRST)))
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await held.reached.wait()
        stranger = OwnershipRecord("z:8080", 99, 99)
        await stage.store.own(FIRST, stranger)
        held.go.set()
        assert await moving is None
        assert await stage.store.owners() == {FIRST.range: stranger}


@in_virtual_time
async def test_a_move_that_is_never_answered_drops_the_claim_and_says_so() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.view.unanswered = [False] * ATTEMPTS_MAX
        with pytest.raises(MetadataUnavailable):
            await one.ownership.unload(FIRST, other.id)
        assert FIRST not in one.owned()
        assert one.topics.told == [None]
        assert await one.ownership.claims.confirm(FIRST) is not None
        one.view.unanswered = [False] * (ATTEMPTS_MAX - 1)
        assert await one.ownership.unload(FIRST, other.id) == other.id


@in_virtual_time
async def test_topics_that_do_not_close_in_time_are_given_up() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await asyncio.sleep(UNLOAD_TIMEOUT_S - 1)
        assert not moving.done()
        await asyncio.sleep(2)
        assert await moving == other.id
        assert one.topics.asked[1:] == [
            ("abandon", topics_in(FIRST)),
            ("dismiss", topics_in(FIRST)),
        ]
        assert await stage.store.owners() == {FIRST.range: other.record}


@in_virtual_time
async def test_a_move_continues_if_its_caller_leaves() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await settle()
        moving.cancel()
        await settle()
        one.topics.closing.set()
        await settle()
        assert (one.owned(), other.owned()) == (set(), {FIRST})


@in_virtual_time
async def test_a_move_whose_topics_fail_to_close_leaves_the_bundle_here() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)

        def fail() -> None:
            raise OSError("the disk is full")

        one.topics.at_close = fail
        with pytest.raises(OSError, match="the disk is full"):
            await one.ownership.unload(FIRST, other.id)
        assert one.owned() == {FIRST}
        assert one.ownership.owns(topic_in(FIRST))
        assert await stage.store.owners() == {FIRST.range: one.record}
        assert one.topics.told == [None]


@in_virtual_time
async def test_a_lease_that_is_lost_during_a_move_leaves_the_new_claim_alone() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST))
        await settle()
        await one.lose_lease()
        await asyncio.sleep(TTL_S)
        await one.take(FIRST)
        one.topics.closing.set()
        assert await moving is None
        await settle()
        assert one.owned() == {FIRST}
        assert await stage.store.owners() == {FIRST.range: one.record}


@in_virtual_time
async def test_only_a_bundle_of_this_broker_moves_and_only_to_another_that_takes_bundles() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        with pytest.raises(NotFound, match="is not owned by this broker"):
            await other.ownership.unload(FIRST)
        with pytest.raises(NotFound):
            await one.ownership.split(QUARTERS[1])
        assert await one.ownership.unload(FIRST, one.id) == one.id
        with pytest.raises(Conflict, match="inactive destination broker"):
            await one.ownership.unload(FIRST, "z:8080")
        await other.ownership.brokers.set_state(BrokerState.DRAINING)
        await settle()
        with pytest.raises(Conflict, match="inactive destination broker"):
            await one.ownership.unload(FIRST, other.id)
        assert one.topics.told == []
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST))
        await settle()
        for refused in (one.ownership.unload(FIRST), one.ownership.split(FIRST)):
            with pytest.raises(Conflict, match="is being moved or split already"):
                await refused
        one.topics.closing.set()
        await moving


@in_virtual_time
async def test_a_split_cuts_by_the_loads_of_the_topics_inside() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.topics.loaded = [TopicLoad(0x100), TopicLoad(0x200), TopicLoad(0x300)]
        parts = await one.ownership.split(str(FIRST), "topic_count_equally_divide")
        assert parts == [Bundle(NAMESPACE, 0, 0x180), Bundle(NAMESPACE, 0x180, 0x40000000)]
        assert one.topics.asked == [("loads", topics_in(FIRST))]
        one.topics.loaded = []
        with pytest.raises(PreconditionFailed, match="cannot be split by topic_count"):
            await one.ownership.split(parts[1], "topic_count_equally_divide")
        assert await one.ownership.split(parts[0], "specified_positions_divide", [0x10]) == [
            Bundle(NAMESPACE, 0, 0x10),
            Bundle(NAMESPACE, 0x10, 0x180),
        ]


@in_virtual_time
async def test_during_a_split_topics_of_other_namespaces_are_as_unowned_as_before() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        held = stage.store.hold(puts("/ownership/"))
        splitting = asyncio.ensure_future(one.ownership.split(FIRST))
        await held.reached.wait()
        with pytest.raises(ManagedLedgerFenced):
            await one.ownership.guard("public/unknown/persistent/t")
        assert not one.ownership.owns(parse_topic("persistent://public/unknown/t"))
        held.go.set()
        assert len(await splitting) == 2


@in_virtual_time
async def test_a_split_continues_if_its_caller_leaves() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        held = stage.store.hold(puts("/ownership/"))
        splitting = asyncio.ensure_future(one.ownership.split(FIRST))
        await held.reached.wait()
        splitting.cancel()
        await settle()
        held.go.set()
        await settle()
        assert len(one.owned()) == 2


# -- drains


@in_virtual_time
async def test_a_broker_that_drains_hands_over_all_bundles_a_few_at_a_time() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await stage.store.cut(0x20000000, 0x40000000, 0x60000000, 0x80000000, 0xC0000000)
        await settle()
        ring = one.ownership.rings.get(NAMESPACE)
        assert ring is not None
        await one.take(*ring.bundles)
        one.topics.closing.clear()
        draining = asyncio.ensure_future(one.ownership.drain(30))
        await settle()
        assert one.topics.closed_at_once == UNLOADED_AT_ONCE_MAX < len(ring.bundles)
        assert one.ownership.draining
        one.topics.closing.set()
        await draining
        await settle()
        assert one.topics.closed_at_once == UNLOADED_AT_ONCE_MAX
        assert (one.owned(), other.owned()) == (set(), set(ring.bundles))
        assert one.topics.told == [other.ownership.brokers.own] * len(ring.bundles)
        registered = other.ownership.brokers.get(one.id)
        assert registered is not None
        assert registered.state is BrokerState.DRAINING


@in_virtual_time
async def test_a_drain_leaves_a_bundle_alone_that_is_moving_already() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(*QUARTERS[:2])
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await settle()
        draining = asyncio.ensure_future(one.ownership.drain(30))
        await settle()
        one.topics.closing.set()
        assert await moving == other.id
        await draining
        assert one.topics.asked.count(("drain", FIRST)) == 1
        assert one.topics.asked.count(("drain", QUARTERS[1])) == 1
        assert other.owned() == set(QUARTERS[:2])


@in_virtual_time
async def test_a_drain_ends_at_its_deadline() -> None:
    async with Stage() as stage:
        one, _ = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        began = asyncio.get_running_loop().time()
        await one.ownership.drain(5)
        assert round(asyncio.get_running_loop().time() - began, 1) == 5
        assert one.owned() == {FIRST}


@in_virtual_time
async def test_a_bundle_that_cannot_be_handed_over_does_not_keep_others_from_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        await one.ownership.brokers.set_state(BrokerState.ACTIVE)
        one.topics.closing.clear()
        draining = asyncio.ensure_future(one.ownership.drain(60))
        await settle()
        one.view.unanswered = [False] * ATTEMPTS_MAX
        one.topics.closing.set()
        await draining
        assert one.owned() == set()
        one.view.cut_off = True
        await one.ownership.drain(1)
        await one.ownership.withdraw()
        assert other.owned() == set()


# -- at once


@in_virtual_time
async def test_of_two_moves_of_a_bundle_that_are_requested_at_once_one_is_refused() -> None:
    """The second would hand the bundle over while the first closes its topics."""
    async with Stage() as stage:
        one, other = await stage.pair()
        third = await stage.broker("c")
        await one.take(FIRST)
        moving = asyncio.gather(
            one.ownership.unload(FIRST, other.id),
            one.ownership.unload(FIRST, third.id),
            one.ownership.split(FIRST),
            return_exceptions=True,
        )
        first, *others = await moving
        assert first == other.id
        assert [type(error) for error in others] == [Conflict, Conflict]
        assert await stage.store.owners() == {FIRST.range: other.record}
        assert [name for name, _ in one.topics.asked] == ["loads", "drain", "dismiss"]


@in_virtual_time
async def test_a_bundle_that_is_being_split_is_not_moved_by_a_request_of_the_same_moment() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        moving = asyncio.gather(
            one.ownership.split(FIRST),
            one.ownership.unload(FIRST, other.id),
            return_exceptions=True,
        )
        parts, error = await moving
        assert isinstance(error, Conflict)
        assert isinstance(parts, list)
        assert one.owned() == set(parts)
        assert [name for name, _ in one.topics.asked] == ["loads"]


# -- bundles that end


@in_virtual_time
async def test_bundles_of_a_namespace_that_is_deleted_are_freed() -> None:
    async with Stage() as stage:
        one, _ = await stage.pair()
        await one.take(*QUARTERS[:2])
        await stage.store.delete(namespace_key(NAMESPACE))
        await settle()
        assert one.owned() == set()
        assert await stage.store.owners() == {}
        assert one.topics.told == [None, None]


@in_virtual_time
async def test_only_bundles_that_the_namespace_has_no_more_are_freed() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(*QUARTERS)
        await stage.store.cut(0x20000000, 0x40000000, 0x80000000, 0xC0000000)
        await settle()
        assert one.owned() == set(QUARTERS[1:])
        assert one.topics.asked == [("drain", FIRST), ("dismiss", topics_in(FIRST))]


@in_virtual_time
async def test_a_bundle_that_is_moving_is_not_freed_a_second_time() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await settle()
        await stage.store.cut(0x20000000, 0x40000000, 0x80000000, 0xC0000000)
        assert not await settled(moving)
        assert one.topics.asked == [("drain", FIRST)]
        one.topics.closing.set()
        await moving

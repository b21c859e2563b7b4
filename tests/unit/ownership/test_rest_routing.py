"""Where the REST side sends a request: the broker that owns the topic or bundle at that moment."""

import asyncio

import pytest

from magnetar.admin.cluster.routing import OwnershipRouting
from magnetar.broker.ownership.bundles import Bundle
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import parse_topic

from .stage import FIRST, NAMESPACE, QUARTERS, Stage, in_virtual_time, settle, topic_in

TOPIC = topic_in(FIRST)


@in_virtual_time
async def test_every_broker_names_the_owner_and_knows_itself() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        for broker in (one, other):
            routing = OwnershipRouting(broker.ownership)
            for found in (
                await routing.owner(TOPIC, claim=False),
                await routing.owner(TOPIC, claim=True),
                await routing.bundle_owner(str(FIRST), take=False),
                await routing.bundle_owner(str(FIRST), take=True),
            ):
                assert found is not None
                assert (found.broker_id, found.http_url) == (one.id, "http://a:8080")
                assert found.here is (broker is one)
            assert [(each.broker_id, each.here) for each in routing.brokers()] == [
                (one.id, broker is one),
                (other.id, broker is other),
            ]
        assert await routing.bundle_of(TOPIC) == str(FIRST)


@in_virtual_time
async def test_a_bundle_that_nobody_has_is_taken_only_where_that_is_asked_for() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        routing = OwnershipRouting(one.ownership)
        assert await routing.bundle_owner(str(FIRST), take=False) is None
        assert one.owned() == other.owned() == set()
        found = await routing.bundle_owner(str(FIRST), take=True)
        assert found is not None
        assert found.here
        assert one.owned() == {FIRST}
        assert list(routing.owned()) == [str(FIRST)]
        await one.take(*QUARTERS[1:])
        assert list(routing.owned()) == sorted(map(str, QUARTERS))


@in_virtual_time
async def test_a_topic_that_nobody_has_is_claimed_only_by_the_broker_that_is_to_serve_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(*QUARTERS[1:])
        routing = OwnershipRouting(one.ownership)
        # The other has fewer bundles: it is chosen, and nothing is taken for it.
        found = await routing.owner(TOPIC, claim=False)
        assert (found.broker_id, found.here) == (other.id, False)
        assert FIRST not in one.owned() | other.owned()
        found = await routing.owner(TOPIC, claim=True)
        assert (found.broker_id, found.here) == (one.id, True)
        assert FIRST in one.owned()


@in_virtual_time
async def test_a_bundle_whose_owner_is_gone_is_nobodys_for_the_moment() -> None:
    """Its claim goes with its lease: to take it before that would give it two owners."""
    async with Stage() as stage:
        one = await stage.broker("a")
        other = await stage.broker("b")
        await other.take(FIRST)
        gone = other.record
        await other.stop()
        await settle()
        await stage.store.own(FIRST, gone)
        await settle()
        routing = OwnershipRouting(one.ownership)
        for take in (False, True):
            with pytest.raises(ServiceNotReady, match="has gone, please retry"):
                await routing.bundle_owner(str(FIRST), take=take)
        assert one.owned() == set()


@in_virtual_time
async def test_a_claim_of_an_owners_former_process_is_not_the_present_ones() -> None:
    async with Stage() as stage:
        one, former = await stage.pair()
        await former.take(FIRST)
        claim = former.record
        await former.stop()
        await stage.broker("b")
        await stage.store.own(FIRST, claim)
        await settle()
        routing = OwnershipRouting(one.ownership)
        with pytest.raises(ServiceNotReady, match="has gone, please retry"):
            await routing.bundle_owner(str(FIRST), take=False)


@in_virtual_time
async def test_a_bundle_that_was_handed_over_to_this_broker_is_served_here() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        one.view.running.clear()
        await stage.store.own(FIRST, one.record)
        one.view.running.set()
        await settle()
        routing = OwnershipRouting(one.ownership)
        found = await routing.bundle_owner(str(FIRST), take=False)
        assert found is not None
        assert found.here
        assert one.owned() == {FIRST}


@in_virtual_time
async def test_of_two_brokers_that_are_asked_to_take_a_bundle_one_has_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        found = await asyncio.gather(
            *(
                OwnershipRouting(broker.ownership).bundle_owner(str(FIRST), take=True)
                for broker in (one, other)
            )
        )
        await settle()
        owners = [broker for broker in (one, other) if FIRST in broker.owned()]
        assert len(owners) == 1
        assert [each and each.broker_id for each in found] == [owners[0].id] * 2


@in_virtual_time
async def test_a_bundle_that_is_none_of_its_namespace_is_nobodys() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        odd = Bundle(NAMESPACE, 0x10000000, 0x20000000)
        assert await OwnershipRouting(one.ownership).bundle_owner(str(odd), take=True) is None
        assert one.owned() == set()
        with pytest.raises(Exception, match="Namespace not found"):
            await OwnershipRouting(one.ownership).bundle_of(
                parse_topic("persistent://public/none/a")
            )

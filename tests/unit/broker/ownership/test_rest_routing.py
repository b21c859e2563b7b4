"""REST requests are routed to the current owner of their topic or bundle."""

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
            for peer in (
                await routing.owner(TOPIC, claim=False),
                await routing.owner(TOPIC, claim=True),
                await routing.bundle_owner(str(FIRST), claim=False),
                await routing.bundle_owner(str(FIRST), claim=True),
            ):
                assert peer is not None
                assert (peer.broker_id, peer.http_url) == (one.id, "http://a:8080")
                assert peer.local is (broker is one)
            assert [(peer.broker_id, peer.local) for peer in routing.brokers()] == [
                (one.id, broker is one),
                (other.id, broker is other),
            ]
        assert await routing.bundle_of(TOPIC) == str(FIRST)


@in_virtual_time
async def test_a_bundle_without_an_owner_is_claimed_only_on_request() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        routing = OwnershipRouting(one.ownership)
        assert await routing.bundle_owner(str(FIRST), claim=False) is None
        assert one.owned() == other.owned() == set()
        peer = await routing.bundle_owner(str(FIRST), claim=True)
        assert peer is not None
        assert peer.local
        assert one.owned() == {FIRST}
        assert list(routing.owned()) == [str(FIRST)]
        await one.take(*reversed(QUARTERS[1:]))
        assert list(routing.owned()) == sorted(map(str, QUARTERS))


@in_virtual_time
async def test_a_topic_without_an_owner_is_claimed_only_by_the_broker_that_must_serve_it() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(*QUARTERS[1:])
        routing = OwnershipRouting(one.ownership)
        # The other broker has fewer bundles: it is chosen, and its bundle is not claimed for it.
        peer = await routing.owner(TOPIC, claim=False)
        assert (peer.broker_id, peer.local) == (other.id, False)
        assert FIRST not in one.owned() | other.owned()
        peer = await routing.owner(TOPIC, claim=True)
        assert (peer.broker_id, peer.local) == (one.id, True)
        assert FIRST in one.owned()


@in_virtual_time
async def test_a_bundle_whose_owner_is_gone_has_no_owner_until_its_lease_expires() -> None:
    """A claim before the lease has expired would give the bundle two owners."""
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
        for claim in (False, True):
            with pytest.raises(ServiceNotReady, match="has gone, please retry"):
                await routing.bundle_owner(str(FIRST), claim=claim)
        assert one.owned() == set()


@in_virtual_time
async def test_a_claim_of_an_owners_former_process_does_not_count() -> None:
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
            await routing.bundle_owner(str(FIRST), claim=False)


@in_virtual_time
async def test_this_broker_serves_a_bundle_that_was_handed_over_to_it() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        one.view.running.clear()
        await stage.store.own(FIRST, one.record)
        one.view.running.set()
        await settle()
        routing = OwnershipRouting(one.ownership)
        peer = await routing.bundle_owner(str(FIRST), claim=False)
        assert peer is not None
        assert peer.local
        assert one.owned() == {FIRST}


@in_virtual_time
async def test_this_broker_serves_a_bundle_whose_claim_it_has_not_confirmed_yet() -> None:
    """The watch delivered the claim before the broker could confirm it."""
    async with Stage() as stage:
        one = await stage.broker("a")
        await one.take(FIRST)
        one.ownership.claims.drop(FIRST)
        for claim in (False, True):
            peer = await OwnershipRouting(one.ownership).bundle_owner(str(FIRST), claim=claim)
            assert peer is not None
            assert peer.local
        assert one.owned() == {FIRST}


@in_virtual_time
async def test_a_bundle_that_is_being_moved_has_no_owner_meanwhile() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.topics.closing.clear()
        moving = asyncio.ensure_future(one.ownership.unload(FIRST, other.id))
        await settle()
        for claim in (False, True):
            with pytest.raises(ServiceNotReady, match="is being moved, please retry"):
                await OwnershipRouting(one.ownership).bundle_owner(str(FIRST), claim=claim)
        one.topics.closing.set()
        await moving
        await settle()
        peer = await OwnershipRouting(one.ownership).bundle_owner(str(FIRST), claim=False)
        assert peer is not None
        assert peer.broker_id == other.id


@in_virtual_time
async def test_only_one_of_two_brokers_claims_a_bundle() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        peers = await asyncio.gather(
            *(
                OwnershipRouting(broker.ownership).bundle_owner(str(FIRST), claim=True)
                for broker in (one, other)
            )
        )
        await settle()
        owners = [broker for broker in (one, other) if FIRST in broker.owned()]
        assert len(owners) == 1
        assert [peer and peer.broker_id for peer in peers] == [owners[0].id] * 2


@in_virtual_time
async def test_a_bundle_that_its_namespace_lacks_has_no_owner() -> None:
    async with Stage() as stage:
        one = await stage.broker("a")
        odd = Bundle(NAMESPACE, 0x10000000, 0x20000000)
        assert await OwnershipRouting(one.ownership).bundle_owner(str(odd), claim=True) is None
        assert one.owned() == set()
        with pytest.raises(Exception, match="Namespace not found"):
            await OwnershipRouting(one.ownership).bundle_of(
                parse_topic("persistent://public/none/a")
            )

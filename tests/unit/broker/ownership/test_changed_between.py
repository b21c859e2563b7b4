"""Claims whose record, lease or namespace changes between a read and what relies on it."""

import asyncio

import pytest
from tests.support.held_store import deletes, puts
from tests.unit.broker.ownership.stage import (
    FIRST,
    NAMESPACE,
    QUARTERS,
    TTL_S,
    Broker,
    LoopClock,
    Stage,
    in_virtual_time,
    settle,
    topic_in,
    topics_in,
)

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import RETRY_S, Claim, ClaimState
from magnetar.broker.ownership.location import HERE, Located
from magnetar.broker.ownership.lookup import SUSPENDED_HOLD_S
from magnetar.broker.ownership.records import OwnershipRecord, broker_key, ownership_key
from magnetar.broker.ownership.rings import namespace_key
from magnetar.core.errors import PreconditionFailed, ServiceNotReady
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.session import RENEWALS_PER_TTL
from magnetar.metadata.store import Check, Record

TOPIC = topic_in(FIRST)
LEDGER = ledger_name(TOPIC)
STRANGER = OwnershipRecord("z:8080", 99, 99)
CUT = [0x20000000]
HALVES = [Bundle(NAMESPACE, 0, 0x20000000), Bundle(NAMESPACE, 0x20000000, 0x40000000)]


async def stored(stage: Stage, bundle: Bundle) -> Record:
    record = await stage.store.get(ownership_key(bundle))
    assert record is not None
    return record


async def owning(stage: Stage) -> tuple[Broker, Claim]:
    """A broker that owns FIRST."""
    broker = await stage.broker("a")
    await broker.take(FIRST)
    return broker, broker.ownership.claims.all[FIRST]


async def landed(stage: Stage, bundle: Bundle) -> None:
    """Returns when the bundle's record is in the store, within a retry's pause."""
    async with asyncio.timeout(RETRY_S / 2):
        while bundle.range not in await stage.store.owners():  # noqa: ASYNC110 - no event
            await asyncio.sleep(RETRY_S / 100)


# -- claims


@in_virtual_time
async def test_a_claim_of_the_lost_lease_is_deleted_only_as_it_was_read() -> None:
    """Between the read and the deletion, another broker may have claimed the bundle."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        await stage.store.own(FIRST, OwnershipRecord(broker.id, broker.record.start, 99))
        held = stage.store.hold(deletes(ownership_key(FIRST)))
        asking = asyncio.ensure_future(broker.ownership.claims.confirm(FIRST))
        await held.reached.wait()
        await stage.store.own(FIRST, STRANGER)
        held.go.set()
        assert await asking is None
        assert await stage.store.owners() == {FIRST.range: STRANGER}


@in_virtual_time
async def test_a_bundle_that_was_lost_and_claimed_again_has_another_origin() -> None:
    """An instance of a topic that was opened under the first claim must not write any more."""
    async with Stage() as stage:
        broker, former = await owning(stage)
        broker.view.running.clear()
        await stage.store.delete(former.key)
        await stage.store.own(FIRST, broker.record)
        record = await stored(stage, FIRST)
        claim = broker.ownership.claims.adopt(FIRST, record)
        assert claim is not None
        assert claim.revision == claim.origin == record.revision
        grant = await broker.ownership.guard(LEDGER)
        assert grant.origin == record.revision
        assert grant.checks == (Check(former.key, record.revision),)


@in_virtual_time
async def test_a_claim_that_leaves_and_has_another_owner_is_given_up_when_in_doubt() -> None:
    async with Stage() as stage:
        broker, claim = await owning(stage)
        broker.topics.closing.clear()
        moving = asyncio.ensure_future(broker.ownership.unload(FIRST))
        await settle()
        broker.view.running.clear()
        await broker.ownership.doubt(TOPIC)
        assert broker.owned() == {FIRST}
        await stage.store.own(FIRST, STRANGER)
        assert not await broker.ownership.claims.is_current(claim)
        await broker.ownership.doubt(TOPIC)
        assert broker.owned() == set()
        assert broker.topics.asked == [("drain", FIRST), ("abandon", topics_in(FIRST))]
        broker.topics.closing.set()
        assert await moving is None
        assert await stage.store.owners() == {FIRST.range: STRANGER}


@in_virtual_time
async def test_topics_that_are_being_closed_may_still_be_written() -> None:
    """What they accepted before the move must become durable."""
    async with Stage() as stage:
        broker, claim = await owning(stage)
        broker.topics.closing.clear()
        moving = asyncio.ensure_future(broker.ownership.unload(FIRST))
        await settle()
        assert claim.state is ClaimState.LEAVING
        grant = await broker.ownership.guard(LEDGER)
        assert grant.checks == (Check(claim.key, claim.revision),)
        broker.topics.closing.set()
        await moving


@in_virtual_time
async def test_a_broker_serves_nothing_before_its_first_lease() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        fresh = type(broker.ownership)(
            broker.view, broker.session, broker.ownership.brokers.own, broker.topics, LoopClock()
        )
        assert not fresh.serving
        assert not fresh.owns(TOPIC)


# -- handing over


@in_virtual_time
async def test_a_broker_names_the_new_owner_of_a_bundle_that_it_gave_away_at_once() -> None:
    """Its clients come back for the owner before its watch reports the new record."""
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        one.view.running.clear()
        assert await one.ownership.unload(FIRST, other.id) == other.id
        assert one.ownership.owner_of(FIRST) == other.record
        found = await one.ownership.locate(TOPIC, authoritative=True)
        assert found == Located(other.ownership.brokers.own)


# -- splits


@in_virtual_time
async def test_a_split_that_landed_without_an_answer_is_no_lost_claim() -> None:
    """The whole bundle's record is deleted, and the parts are not adopted yet."""
    async with Stage() as stage:
        broker, whole = await owning(stage)
        broker.view.unanswered = [True]
        splitting = asyncio.ensure_future(broker.ownership.split(FIRST, positions=CUT))
        await landed(stage, HALVES[0])
        assert await stage.store.get(whole.key) is None
        assert await broker.ownership.claims.is_current(whole)
        await broker.ownership.doubt(TOPIC)
        assert broker.ownership.owns(TOPIC)
        assert await splitting == HALVES
        assert broker.owned() == set(HALVES)
        assert [name for name, _ in broker.topics.asked] == ["loads"], "no topic was abandoned"


@in_virtual_time
async def test_a_split_adopts_no_part_that_was_claimed_under_a_later_lease() -> None:
    """Such a part has another origin: between the two claims the bundle was another broker's."""
    async with Stage() as stage:
        broker, whole = await owning(stage)
        held = stage.store.hold(puts(ownership_key(HALVES[0])), lands=False)
        splitting = asyncio.ensure_future(broker.ownership.claims.split(whole, CUT))
        await held.reached.wait()
        await broker.lose_lease()
        await asyncio.sleep(TTL_S)
        assert broker.ownership.serving
        await stage.store.cut(*CUT, 0x40000000, 0x80000000, 0xC0000000)
        await settle()
        broker.view.running.clear()  # the claim below is written, and its answer is on its way
        await stage.store.own(HALVES[0], broker.record)
        held.go.set()
        with pytest.raises(PreconditionFailed, match="is not a bundle of its namespace any more"):
            await splitting
        assert broker.owned() == set()
        claim = await broker.ownership.claims.confirm(HALVES[0])
        assert claim is not None
        assert claim.origin == claim.revision > whole.origin


@in_virtual_time
async def test_a_split_overwrites_no_claim_of_a_part() -> None:
    async with Stage() as stage:
        broker, claim = await owning(stage)
        await stage.store.own(HALVES[1], STRANGER)
        before = await stage.store.get(namespace_key(NAMESPACE))
        with pytest.raises(ServiceNotReady, match="is not owned here any more"):
            await broker.ownership.claims.split(claim, CUT)
        assert await stage.store.owners() == {FIRST.range: broker.record, HALVES[1].range: STRANGER}
        assert await stage.store.get(namespace_key(NAMESPACE)) == before
        assert broker.owned() == {FIRST}


@pytest.mark.parametrize("lost", [True, False])
@in_virtual_time
async def test_a_split_that_fails_lets_the_writes_continue_that_waited_for_it(lost: bool) -> None:
    async with Stage() as stage:
        broker, claim = await owning(stage)
        broker.view.running.clear()
        held = stage.store.hold(puts(ownership_key(HALVES[0])))
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        await held.reached.wait()
        writing = asyncio.ensure_future(broker.ownership.guard(LEDGER))
        await settle()
        assert not writing.done()
        await stage.store.own(FIRST if lost else HALVES[1], STRANGER)
        held.go.set()
        with pytest.raises(ServiceNotReady):
            await splitting
        async with asyncio.timeout(1):
            if lost:
                with pytest.raises(ManagedLedgerFenced):
                    await writing
            else:
                assert (await writing).checks == (Check(claim.key, claim.revision),)


# -- searches


@in_virtual_time
async def test_a_search_that_has_ended_leaves_nothing() -> None:
    """Splits create and delete bundles, so state per bundle would grow without a bound."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        lookups = broker.ownership._lookups
        assert await broker.ownership.locate(TOPIC, authoritative=False) == HERE
        await stage.store.own(QUARTERS[1], OwnershipRecord("gone:8080", 99, 99))
        await settle()
        with pytest.raises(ServiceNotReady):
            await broker.ownership.locate(topic_in(QUARTERS[1]), authoritative=True)
        await settle()
        assert (lookups._news, lookups._searches) == ({}, {})


@in_virtual_time
async def test_a_client_that_was_redirected_here_gets_no_answer_of_a_search_that_redirects() -> (
    None
):
    """It would be sent back and forth between two brokers that each prefer the other."""
    async with Stage() as stage:
        one, other = await stage.pair()
        one.ownership.choose = lambda *_: other.id
        stage.addresses["b"] = "silent"
        preferring = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        await settle()
        assert not preferring.done()
        assert await one.ownership.locate(TOPIC, authoritative=True) == HERE
        assert one.owned() == {FIRST}
        assert await preferring in (HERE, Located(other.ownership.brokers.own, redirect=True))


@in_virtual_time
async def test_a_lease_that_is_not_the_registered_one_any_more_is_not_ended_here() -> None:
    """The broker has another lease since: this broker must go on probing it."""
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        stage.addresses["b"] = "refuses"
        one.view.running.clear()
        await other.lose_lease()
        await asyncio.sleep(TTL_S / 2)
        lease_id = other.session.lease_id
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        await asyncio.sleep(1)
        assert stage.connections
        assert one.ownership._lookups._ended == {}
        assert other.session.lease_id == lease_id
        one.view.running.set()
        assert await asking == HERE


@in_virtual_time
async def test_a_claim_under_a_new_lease_is_not_served_before_the_old_claims_are_given_up() -> None:
    """The claim began under the old lease; topics of that lease are still open."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        claimed, listed, go = broker.view.list, asyncio.Event(), asyncio.Event()

        async def listed_late(prefix: str) -> list[Record]:
            records = await claimed(prefix)
            listed.set()
            await go.wait()
            return records

        broker.view.list = listed_late  # type: ignore[method-assign]
        await asyncio.sleep(TTL_S / RENEWALS_PER_TTL - SUSPENDED_HOLD_S / 2)
        asking = asyncio.ensure_future(broker.ownership.locate(TOPIC, authoritative=False))
        await listed.wait()
        broker.view.list = claimed  # type: ignore[method-assign]
        registering = stage.store.hold(puts(broker_key(broker.id)))
        await broker.lose_lease()
        await registering.reached.wait()
        go.set()
        await settle()
        assert FIRST.range in await stage.store.owners(), "the new lease has the claim"
        assert broker.session.valid
        assert not asking.done()
        registering.go.set()
        assert await asking == HERE
        assert broker.ownership.serving
        assert broker.owned() == {FIRST}


@in_virtual_time
async def test_a_probe_that_is_interrupted_ends_quietly_and_proves_nothing() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await other.take(FIRST)
        stage.addresses["b"] = "silent"
        failed: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        asking = asyncio.ensure_future(one.ownership.locate(TOPIC, authoritative=False))
        await settle()
        prober = one.ownership._lookups._prober
        assert prober._probes
        await one.ownership.stop()
        with pytest.raises(ServiceNotReady, match="shutting down"):
            await asking
        await settle()
        assert (prober._probes, prober._answers, failed) == ({}, {}, [])
        assert await stage.store.get(broker_key(other.id)) is not None

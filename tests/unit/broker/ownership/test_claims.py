"""A broker's claims: one owner of a bundle, by the store's word alone."""

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

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import ATTEMPTS_MAX, RETRY_S, ClaimState
from magnetar.broker.ownership.records import OwnershipRecord, ownership_key
from magnetar.broker.ownership.rings import namespace_key
from magnetar.core.errors import Conflict, PreconditionFailed, ServiceNotReady
from magnetar.core.names import NamespaceName
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.store import Check, LeaseLost, MetadataUnavailable

LEDGER = ledger_name(topic_in(FIRST))
WHOLE = Bundle(NAMESPACE, 0, 0xFFFFFFFF)
HALVES = [Bundle(NAMESPACE, 0, 0x20000000), Bundle(NAMESPACE, 0x20000000, 0x40000000)]
CUT = [0x20000000]


async def until_owned(stage: Stage, bundle: Bundle) -> None:
    """Waits until the store has a claim on the bundle; brokers do not report it."""
    async with asyncio.timeout(RETRY_S / 2):
        while bundle.range not in await stage.store.owners():  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S / 100)


@in_virtual_time
async def test_a_claim_is_the_record_of_its_broker_under_its_lease() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await asyncio.sleep(2)
        claim = await broker.ownership.claims.acquire(FIRST)
        record = await stage.store.get(ownership_key(FIRST))
        assert claim is not None
        assert record is not None
        assert claim.bundle == FIRST
        assert claim.revision == claim.origin == record.revision
        assert claim.since_ms == int(asyncio.get_running_loop().time() * 1000) > 0
        assert claim.state is ClaimState.HELD
        assert await stage.store.owners() == {FIRST.range: broker.record}
        assert broker.owned() == {FIRST}
        assert await broker.ownership.claims.acquire(FIRST) is claim
        await broker.session.stop()
        assert await stage.store.owners() == {}


@in_virtual_time
async def test_a_claimed_bundle_cannot_be_claimed_by_another_broker_until_it_is_free() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        await one.take(FIRST)
        assert await other.ownership.claims.acquire(FIRST) is None
        assert other.owned() == set()
        await other.take(QUARTERS[1])
        assert one.owned() == {FIRST}
        await one.ownership.unload(FIRST, other.id)
        assert await one.ownership.claims.acquire(FIRST) is None
        assert other.owned() == set(QUARTERS[:2])


@in_virtual_time
async def test_of_two_brokers_that_claim_at_one_moment_the_second_gets_nothing() -> None:
    async with Stage() as stage:
        one, other = await stage.pair()
        held = [stage.store.hold(puts(ownership_key(FIRST))) for _ in range(2)]
        taking = [
            asyncio.ensure_future(each.ownership.claims.acquire(FIRST)) for each in (one, other)
        ]
        for each in held:
            await each.reached.wait()
            each.go.set()
        claims = await asyncio.gather(*taking)
        await settle()
        assert [claim is not None for claim in claims] == [True, False]
        assert (one.owned(), other.owned()) == ({FIRST}, set())


@pytest.mark.parametrize(
    "bundle",
    [
        Bundle(NamespaceName("public", "nosuch"), 0, 0x40000000),
        Bundle(NAMESPACE, 0, 0x20000000),
        Bundle(NAMESPACE, 0x20000000, 0x40000000),
        WHOLE,
    ],
    ids=str,
)
@in_virtual_time
async def test_only_a_bundle_of_its_namespace_can_be_claimed(bundle: Bundle) -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        assert await broker.ownership.claims.acquire(bundle) is None
        assert await stage.store.owners() == {}


@in_virtual_time
async def test_a_claim_fails_if_the_namespace_changes_under_it() -> None:
    """Its bundles may have been split, or the namespace deleted, since the broker read them."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        held = stage.store.hold(puts(ownership_key(FIRST)))
        taking = asyncio.ensure_future(broker.ownership.claims.acquire(FIRST))
        await held.reached.wait()
        await stage.store.cut(0x20000000, 0x40000000)
        held.go.set()
        assert await taking is None
        assert await stage.store.owners() == {}


@in_virtual_time
async def test_a_record_of_other_boundaries_keeps_a_bundle_from_being_claimed() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        stranger = OwnershipRecord("z:8080", 99, 99)
        await stage.store.own(Bundle(NAMESPACE, 0x3FFFFFFF, 0x50000000), stranger)
        assert await broker.ownership.claims.acquire(FIRST) is None
        assert await broker.ownership.claims.acquire(QUARTERS[1]) is None
        await broker.take(QUARTERS[2])
        await stage.store.delete("/ownership/public/default/0x3fffffff_0x50000000")
        await broker.take(FIRST, QUARTERS[1])


@in_virtual_time
async def test_a_claim_in_vain_shows_the_owner_before_the_watch_does() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        stranger = OwnershipRecord("z:8080", 99, 99)
        broker.view.running.clear()
        await stage.store.own(FIRST, stranger)
        assert await broker.ownership.claims.acquire(FIRST) is None
        assert broker.ownership.owner_of(FIRST) == stranger


@pytest.mark.parametrize("landed", [True, False])
@in_virtual_time
async def test_a_claim_without_an_answer_is_what_the_store_says(landed: bool) -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        broker.view.unanswered = [landed]
        claim = await broker.ownership.claims.acquire(FIRST)
        assert (claim is not None) is landed
        assert broker.owned() == ({FIRST} if landed else set())


@in_virtual_time
async def test_nothing_is_claimed_under_a_lease_that_is_lost() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.lose_lease()
        assert await broker.ownership.claims.acquire(FIRST) is None
        await asyncio.sleep(TTL_S)
        await broker.take(FIRST)


class Slow:
    """Holds up what follows a new lease, among it the registration of the broker."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()

    def suspended(self) -> None:
        self.go.clear()

    async def established(self, *, renewed: bool) -> None:
        await self.go.wait()


@in_virtual_time
async def test_nothing_is_claimed_before_the_broker_is_registered_under_its_new_lease() -> None:
    """The claim would name the former lease, and end with the new one."""
    async with Stage() as stage:
        broker = await stage.broker("a", slow := Slow())
        await broker.lose_lease()
        await asyncio.sleep(2 * TTL_S)
        assert broker.session.valid
        assert await broker.ownership.claims.acquire(FIRST) is None
        assert await stage.store.owners() == {}
        slow.go.set()
        await settle()
        await broker.take(FIRST)
        assert await stage.store.owners() == {FIRST.range: broker.record}


@in_virtual_time
async def test_an_answer_that_comes_after_the_lease_was_lost_is_no_claim() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.lose_lease()
        await asyncio.sleep(TTL_S)
        claims, lease_id = broker.ownership.claims, broker.session.lease_id
        former = OwnershipRecord(broker.id, broker.record.start, lease_id + 1)
        for owner in (former, OwnershipRecord(broker.id, broker.record.start + 1, lease_id)):
            await stage.store.own(FIRST, owner)
            found = await stage.store.get(ownership_key(FIRST))
            assert found is not None
            assert claims.adopt(FIRST, found) is None
        broker.view.running.clear()
        await stage.store.own(FIRST, broker.record)
        await asyncio.sleep(TTL_S)
        found = await stage.store.get(ownership_key(FIRST))
        assert found is not None
        assert claims.adopt(FIRST, found) is None, "the lease may have run out by now"
        assert broker.owned() == set()


@in_virtual_time
async def test_a_record_that_the_watch_has_passed_is_no_claim() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        record = await stage.store.get(ownership_key(FIRST))
        assert record is not None
        await stage.store.delete(record.key)
        await stage.store.own(QUARTERS[1], OwnershipRecord("z:8080", 99, 99))
        await settle()
        assert broker.ownership.claims.adopt(FIRST, record) is None
        assert broker.owned() == set()


@pytest.mark.parametrize("same_process", [True, False])
@in_virtual_time
async def test_a_claim_under_a_lost_lease_is_deleted_if_it_is_of_this_very_process(
    same_process: bool,
) -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        start = broker.record.start + (0 if same_process else 1)
        await stage.store.own(FIRST, OwnershipRecord(broker.id, start, 99))
        assert await broker.ownership.claims.confirm(FIRST) is None
        assert (await stage.store.owners() == {}) is same_process
        assert await broker.ownership.claims.confirm(QUARTERS[1]) is None
        if same_process:
            await broker.take(FIRST)


@in_virtual_time
async def test_a_record_without_a_lease_is_nobodys_own() -> None:
    """Before the first registration this broker has no lease, and no claim."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        claims = broker.ownership.claims
        assert claims.is_own(broker.record)
        assert not claims.is_own_former(broker.record)
        former = OwnershipRecord(broker.id, broker.record.start, 0)
        assert not claims.is_own(former)
        assert claims.is_own_former(former)
        assert not claims.is_own_former(OwnershipRecord("z:1", broker.record.start, 0))


@in_virtual_time
async def test_a_claim_stands_as_long_as_the_store_has_its_revision() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(*QUARTERS[:2])
        claims = broker.ownership.claims
        first, second = (claims.all[bundle] for bundle in QUARTERS[:2])
        assert await claims.is_current(first)
        broker.view.running.clear()
        await stage.store.delete(first.key)
        assert not await claims.is_current(first)
        await stage.store.put(second.key, b'{"broker_id":"z","start":1,"lease_id":1}')
        await claims.is_current(second)
        assert QUARTERS[1] not in claims.all


@in_virtual_time
async def test_a_topic_whose_claim_has_gone_is_given_up_when_in_doubt() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(*QUARTERS[:2])
        broker.view.running.clear()
        await broker.ownership.doubt(topic_in(FIRST))
        assert broker.owned() == set(QUARTERS[:2])
        await stage.store.delete(ownership_key(FIRST))
        await broker.ownership.doubt(topic_in(FIRST))
        await broker.ownership.doubt(topic_in(QUARTERS[2]))
        assert broker.owned() == {QUARTERS[1]}
        assert broker.topics.asked == [("abandon", topics_in(FIRST))]


# -- the guard of writes


@in_virtual_time
async def test_the_guard_of_a_ledger_is_the_revision_of_the_claim() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        with pytest.raises(ManagedLedgerFenced, match="not owned by this broker"):
            await broker.ownership.guard(LEDGER)
        await broker.take(FIRST)
        claim = broker.ownership.claims.all[FIRST]
        grant = await broker.ownership.guard(LEDGER)
        assert grant.checks == (Check(claim.key, claim.revision),)
        assert grant.origin == claim.revision
        with pytest.raises(ManagedLedgerFenced):
            await broker.ownership.guard("public/nosuch/persistent/t")


@in_virtual_time
async def test_a_write_waits_for_the_end_of_a_split_and_keeps_the_origin_of_its_claim() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        whole = broker.ownership.claims.all[FIRST]
        held = stage.store.hold(puts(ownership_key(HALVES[0])))
        splitting = asyncio.ensure_future(broker.ownership.claims.split(whole, CUT))
        await held.reached.wait()
        assert broker.ownership.claims.get(HALVES[1]) is whole
        assert broker.ownership.claims.get(QUARTERS[1]) is None
        assert await broker.ownership.claims.is_current(whole)
        writing = asyncio.ensure_future(broker.ownership.guard(LEDGER))
        assert not await settled(writing)
        assert broker.ownership.owns(topic_in(FIRST)), "no topic notices a split"
        held.go.set()
        assert await splitting == HALVES
        grant = await writing
        part = next(each for each in HALVES if topic_in(FIRST) in each)
        claim = broker.ownership.claims.all[part]
        assert grant.origin == whole.revision != claim.revision
        assert grant.checks == (Check(ownership_key(part), claim.revision),)


# -- splits


@in_virtual_time
async def test_a_split_puts_the_parts_in_the_place_of_the_bundle() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(*QUARTERS[:2])
        claim = broker.ownership.claims.all[FIRST]
        assert await broker.ownership.claims.split(claim, CUT) == HALVES
        assert broker.owned() == {*HALVES, QUARTERS[1]}
        await settle()
        assert broker.owned() == {*HALVES, QUARTERS[1]}
        assert await stage.store.owners() == dict.fromkeys(
            ["0x00000000_0x20000000", "0x20000000_0x40000000", QUARTERS[1].range], broker.record
        )
        ring = broker.ownership.rings.get(NAMESPACE)
        assert ring is not None
        assert ring.bundles == [*HALVES, *QUARTERS[1:]]
        assert broker.topics.asked == []
        await broker.session.stop()
        assert await stage.store.owners() == {}


@in_virtual_time
async def test_a_bundle_is_split_or_moved_by_one_at_a_time() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        claim = broker.ownership.claims.all[FIRST]
        held = stage.store.hold(puts(ownership_key(HALVES[0])))
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        await held.reached.wait()
        with pytest.raises(Conflict, match="is being moved or split already"):
            await broker.ownership.claims.split(claim, CUT)
        with pytest.raises(Conflict, match="is being moved or split already"):
            await broker.ownership.unload(FIRST)
        held.go.set()
        await splitting


@in_virtual_time
async def test_a_split_keeps_what_another_changed_in_the_policies_meanwhile() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        held = stage.store.hold(puts(ownership_key(HALVES[0])))
        claim = broker.ownership.claims.all[FIRST]
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        await held.reached.wait()
        await stage.store.cut(0x40000000, 0x60000000, 0x80000000, 0xC0000000)
        held.go.set()
        assert await splitting == HALVES
        ring = broker.ownership.rings.get(NAMESPACE)
        assert ring is not None
        assert len(ring.bundles) == 6


@in_virtual_time
async def test_a_split_ends_if_the_policies_never_hold_still() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        claim = broker.ownership.claims.all[FIRST]
        held = [stage.store.hold(puts(ownership_key(HALVES[0]))) for _ in range(ATTEMPTS_MAX)]
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        for each in held:
            await each.reached.wait()
            await stage.store.cut(0x40000000, 0x80000000, 0xC0000000)
            each.go.set()
        with pytest.raises(Conflict, match="are being changed by others"):
            await splitting
        assert claim.state is ClaimState.HELD
        assert claim.settled is None
        assert broker.owned() == {FIRST}
        assert await broker.ownership.claims.split(claim, CUT) == HALVES


@in_virtual_time
async def test_a_split_of_a_bundle_that_is_lost_changes_nothing() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        broker.view.running.clear()
        await stage.store.own(FIRST, OwnershipRecord("z:8080", 99, 99))
        before = await stage.store.get(namespace_key(NAMESPACE))
        claim = broker.ownership.claims.all[FIRST]
        with pytest.raises(ServiceNotReady, match="is not owned here any more"):
            await broker.ownership.claims.split(claim, CUT)
        assert await stage.store.get(namespace_key(NAMESPACE)) == before
        assert broker.owned() == set()


@in_virtual_time
async def test_a_split_in_a_namespace_that_is_gone_leaves_the_claim() -> None:
    """Until the watch reports the deletion."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        claim = broker.ownership.claims.all[FIRST]
        broker.view.running.clear()
        await stage.store.delete(namespace_key(NAMESPACE))
        with pytest.raises(PreconditionFailed, match="does not exist any more"):
            await broker.ownership.claims.split(claim, CUT)
        assert (claim.state, claim.settled) == (ClaimState.HELD, None)


@in_virtual_time
async def test_a_lease_that_is_lost_during_a_split_ends_the_claim_and_frees_writers() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        held = stage.store.hold(puts(ownership_key(HALVES[0])))
        claim = broker.ownership.claims.all[FIRST]
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        await held.reached.wait()
        writing = asyncio.ensure_future(broker.ownership.guard(LEDGER))
        await broker.lose_lease()
        await asyncio.sleep(TTL_S)
        with pytest.raises(ManagedLedgerFenced):
            await writing
        held.go.set()
        with pytest.raises(LeaseLost):
            await splitting
        assert broker.owned() == set()
        assert broker.ownership.claims.get(HALVES[0]) is None
        await broker.take(FIRST)


@in_virtual_time
async def test_a_split_without_an_answer_claims_no_part_that_is_lost_meanwhile() -> None:
    """With the lease, the parts are lost; then the broker claims one of them again."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        own = OwnershipRecord.of(broker.ownership.brokers.own)
        broker.view.unanswered = [True]
        claim = broker.ownership.claims.all[FIRST]
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        await until_owned(stage, HALVES[0])
        for part in HALVES:
            await stage.store.delete(ownership_key(part))
        await stage.store.own(HALVES[0], own)
        assert await splitting == HALVES
        assert broker.owned() == {HALVES[0]}
        await broker.take(HALVES[1])


@in_virtual_time
async def test_a_split_takes_no_claim_of_a_later_lease_for_its_own() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        claim = broker.ownership.claims.all[FIRST]
        own = OwnershipRecord.of(broker.ownership.brokers.own)
        later = OwnershipRecord(own.broker_id, own.start, own.lease_id + 1)
        broker.view.unanswered = [True]
        splitting = asyncio.ensure_future(broker.ownership.claims.split(claim, CUT))
        await until_owned(stage, HALVES[0])
        for part in HALVES:
            await stage.store.delete(ownership_key(part))
            await stage.store.own(part, later)
        with pytest.raises(PreconditionFailed, match="is not a bundle of its namespace any more"):
            await splitting
        assert not broker.owned() & set(HALVES)


@pytest.mark.parametrize("landed", [True, False])
@in_virtual_time
async def test_a_split_whose_outcome_stays_unknown_drops_the_claim(landed: bool) -> None:
    """And its topics, which must open under the claim that the store has."""
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        broker.view.unanswered = [landed] + [False] * (ATTEMPTS_MAX - 1)
        if landed:
            broker.view.unanswered, broker.view.cut_off_by = [], True
        with pytest.raises(MetadataUnavailable):
            await broker.ownership.split(FIRST)
        assert broker.topics.asked[-1] == ("abandon", topics_in(FIRST))
        assert FIRST not in broker.owned()
        broker.view.cut_off = False
        await settle()
        bundle = broker.ownership.bundle_of(topic_in(FIRST))
        assert bundle is not None
        assert (await broker.ownership.claims.confirm(bundle)) is not None
        assert bundle in (HALVES if landed else [FIRST])


@in_virtual_time
async def test_a_write_is_retried_as_often_as_bounded() -> None:
    async with Stage() as stage:
        broker = await stage.broker("a")
        await broker.take(FIRST)
        broker.view.unanswered = [False] * (ATTEMPTS_MAX - 1)
        assert await broker.ownership.split(FIRST) == HALVES

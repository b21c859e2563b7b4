"""What a broker finds changed at the moment when it writes a claim decides whether it has it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from tests.support.held_store import HeldStore, puts

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.bundles import Bundle, Ring, with_split
from magnetar.broker.ownership.claims import Claims
from magnetar.broker.ownership.records import (
    BrokerRecord,
    BrokerState,
    OwnershipRecord,
    Urls,
    broker_key,
    decode_ownership,
    ownership_key,
)
from magnetar.broker.ownership.rings import Rings, namespace_key, policies_of
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import NamespaceName
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import Record

NAMESPACE = NamespaceName("public", "default")
TTL_S = 60.0


class JumpingClock(SystemClock):
    """The process may have been paused: then more time has passed than its loop has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.jumped_s


class Broker:
    """A broker's claims, over a session of its own. `stale`: its watch saw newer records."""

    def __init__(self, store: HeldStore, name: str) -> None:
        self.store, self.name = store, name
        self.clock = JumpingClock()
        self.session = MetadataSession(store, TTL_S, self.clock, name)
        self.stale = False
        self.told: list[Record] = []
        """What was read or written of claims, in order."""
        self.lease_id = 0
        rings = Rings(store, lambda _namespace: None)
        now_ms = self.clock.now_ms
        self.claims = Claims(store, self.session, rings, self.record, now_ms, self._seen)

    async def start(self) -> None:
        await self.session.start()
        self.lease_id = self.session.lease_id
        value = encode(self.record())
        await self.store.put(broker_key(self.name), value, lease_id=self.lease_id)

    def _seen(self, record: Record) -> bool:
        self.told.append(record)
        return not self.stale

    def record(self) -> BrokerRecord:
        urls = Urls(f"pulsar://{self.name}", f"http://{self.name}")
        return BrokerRecord(self.name, 1, self.name, 6650, urls, lease_id=self.lease_id)

    async def owner_of(self, bundle: Bundle) -> str | None:
        record = await self.store.get(ownership_key(bundle))
        return None if record is None else decode_ownership(record.key, record.value).broker_id


async def started(store: HeldStore, name: str) -> Broker:
    broker = Broker(store, name)
    await broker.start()
    return broker


@pytest.fixture
async def store() -> AsyncIterator[HeldStore]:
    store = HeldStore()
    await store.put(namespace_key(NAMESPACE), encode(default_policies("c", 2)))
    yield store
    await store.close()


@pytest.fixture
async def broker(store: HeldStore) -> AsyncIterator[Broker]:
    broker = await started(store, "a:8080")
    yield broker
    await broker.session.stop()


@pytest.fixture
async def other(store: HeldStore) -> AsyncIterator[Broker]:
    broker = await started(store, "b:8080")
    yield broker
    await broker.session.stop()


async def ring(store: HeldStore) -> Ring:
    record = await store.get(namespace_key(NAMESPACE))
    assert record is not None
    return Ring.of(NAMESPACE, policies_of(record))


async def meanwhile(
    store: HeldStore, doing: Awaitable[object], change: Callable[[], Awaitable[object]]
) -> object:
    """`change` happens after all was read that the write of a claim relies on."""
    held = store.hold(puts("/ownership/"))
    task = asyncio.ensure_future(doing)
    await held.reached.wait()
    await change()
    held.go.set()
    return await task


async def test_only_a_bundle_of_the_namespace_is_claimed(store: HeldStore, broker: Broker) -> None:
    """A request may name a bundle as it was before a split."""
    bundle = (await ring(store)).bundles[0]
    for none in (
        Bundle(NAMESPACE, bundle.lower, bundle.upper + 1),
        Bundle(NAMESPACE, bundle.lower + 1, bundle.upper),
        Bundle(NamespaceName("public", "other"), bundle.lower, bundle.upper),
    ):
        assert await broker.claims.acquire(none) is None
    assert not await store.list("/ownership/")
    claim = await broker.claims.acquire(bundle)
    assert claim is not None
    assert await broker.owner_of(bundle) == broker.name
    assert broker.claims.get(bundle) is claim


async def test_a_bundle_that_is_split_before_its_claim_is_written_is_not_claimed(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]

    async def split() -> None:
        record = await store.get(namespace_key(NAMESPACE))
        assert record is not None
        policies = with_split(policies_of(record), bundle, [bundle.lower + 1000])
        await store.put(record.key, encode(policies), expected=record.revision)

    assert await meanwhile(store, broker.claims.acquire(bundle), split) is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


async def test_a_bundle_of_a_namespace_that_is_deleted_before_its_claim_is_written_is_not_claimed(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    deleted = lambda: store.delete(namespace_key(NAMESPACE))  # noqa: E731
    assert await meanwhile(store, broker.claims.acquire(bundle), deleted) is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


async def test_a_claim_of_another_broker_that_comes_first_stands(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    taken = lambda: other.claims.acquire(bundle)  # noqa: E731
    assert await meanwhile(store, broker.claims.acquire(bundle), taken) is None
    assert await broker.owner_of(bundle) == other.name
    assert not broker.claims.all
    assert other.claims.get(bundle) is not None


async def test_a_claim_is_not_made_under_a_lease_that_is_lost_before_it_is_written(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    assert await meanwhile(store, broker.claims.acquire(bundle), broker.session.stop) is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


async def test_a_claim_whose_lease_runs_out_before_it_is_answered_is_not_held(
    store: HeldStore, broker: Broker
) -> None:
    """The store may count the lease longer than its holder: the holder must not serve."""
    bundle = (await ring(store)).bundles[0]

    async def paused() -> None:
        broker.clock.jumped_s = TTL_S

    assert await meanwhile(store, broker.claims.acquire(bundle), paused) is None
    assert await broker.owner_of(bundle) == broker.name
    assert not broker.claims.all


async def test_a_claim_that_a_newer_record_has_replaced_before_it_is_answered_is_not_held(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]

    async def replaced() -> None:
        broker.stale = True

    assert await meanwhile(store, broker.claims.acquire(bundle), replaced) is None
    assert not broker.claims.all


@pytest.mark.parametrize("wider", [True, False])
async def test_a_bundle_is_not_claimed_while_a_claim_overlaps_it(
    store: HeldStore, broker: Broker, other: Broker, wider: bool
) -> None:
    """A namespace that is deleted and created again may have other bundles."""
    bundle = (await ring(store)).bundles[0]
    upper = bundle.upper + 1000 if wider else bundle.upper - 1000
    claimed = Bundle(NAMESPACE, bundle.lower + 1000, upper)
    value = encode(OwnershipRecord.of(other.record()))
    await store.put(ownership_key(claimed), value, lease_id=other.session.lease_id)
    assert await broker.claims.acquire(bundle) is None
    assert await broker.owner_of(bundle) is None
    await store.delete(ownership_key(claimed))
    assert await broker.claims.acquire(bundle) is not None


async def test_a_claim_of_the_process_under_its_former_lease_is_no_claim(
    store: HeldStore, broker: Broker
) -> None:
    """The claim ends with that lease, and with it the broker's right to the bundle."""
    bundle = (await ring(store)).bundles[0]
    former = await store.grant_lease(TTL_S)
    value = encode(OwnershipRecord(broker.name, 1, former.id))
    await store.put(ownership_key(bundle), value, lease_id=former.id)
    assert await broker.claims.confirm(bundle) is None
    assert await broker.owner_of(bundle) is None
    assert await broker.claims.acquire(bundle) is not None


@pytest.mark.parametrize("same", ["start", "broker"])
async def test_a_claim_of_another_life_or_broker_is_left_alone(
    store: HeldStore, broker: Broker, same: str
) -> None:
    bundle = (await ring(store)).bundles[0]
    theirs = await store.grant_lease(TTL_S)
    name, start = ("b:8080", 1) if same == "start" else (broker.name, 2)
    value = encode(OwnershipRecord(name, start, theirs.id))
    await store.put(ownership_key(bundle), value, lease_id=theirs.id)
    assert await broker.claims.confirm(bundle) is None
    assert await broker.claims.acquire(bundle) is None
    assert await broker.owner_of(bundle) == name


async def test_an_owner_that_a_claim_finds_is_returned_at_once(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    """The watch may be behind: a look-up uses the record that was just read."""
    first, second = (await ring(store)).bundles[:2]
    assert await other.claims.acquire(first) is not None
    assert await other.claims.acquire(second) is not None
    assert await broker.claims.confirm(first) is None
    assert broker.told == [await store.get(ownership_key(first))]
    broker.told.clear()
    assert await broker.claims.acquire(second) is None
    assert await store.get(ownership_key(second)) in broker.told


# -- handing over


async def test_a_bundle_that_is_handed_over_goes_with_the_lease_of_its_new_owner(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    claim = await broker.claims.acquire(bundle)
    assert claim is not None
    assert await broker.claims.release(claim, other.record()) == other.record()
    assert not broker.claims.all
    await broker.session.stop()
    assert await broker.owner_of(bundle) == other.name
    assert await other.claims.confirm(bundle) is not None
    await other.session.stop()
    assert await broker.owner_of(bundle) is None


async def gone(other: Broker) -> None:
    await other.store.delete(broker_key(other.name))


async def draining(other: Broker) -> None:
    record = msgspec.structs.replace(other.record(), state=BrokerState.DRAINING)
    await other.store.put(broker_key(other.name), encode(record))


async def restarted(other: Broker) -> None:
    record = msgspec.structs.replace(other.record(), start=2)
    await other.store.put(broker_key(other.name), encode(record))


@pytest.mark.parametrize("change", [gone, draining, restarted])
@pytest.mark.parametrize("late", [True, False], ids=["before the write", "before the read"])
async def test_a_bundle_is_freed_where_its_destination_may_not_have_it_any_more(
    store: HeldStore,
    broker: Broker,
    other: Broker,
    change: Callable[[Broker], Awaitable[None]],
    late: bool,
) -> None:
    bundle = (await ring(store)).bundles[0]
    claim = await broker.claims.acquire(bundle)
    assert claim is not None
    giving = broker.claims.release(claim, other.record())
    if late:
        assert await meanwhile(store, giving, lambda: change(other)) is None
    else:
        await change(other)
        assert await giving is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


async def test_a_bundle_that_another_broker_has_claimed_meanwhile_is_not_handed_over(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    claim = await broker.claims.acquire(bundle)
    assert claim is not None
    third = await started(store, "c:8080")

    async def lost_and_claimed() -> None:
        await store.delete(claim.key)
        assert await third.claims.acquire(bundle) is not None

    given = broker.claims.release(claim, other.record())
    assert await meanwhile(store, given, lost_and_claimed) is None
    assert await broker.owner_of(bundle) == third.name
    await third.session.stop()


async def test_a_bundle_that_is_lost_and_claimed_again_while_it_is_given_away_is_kept(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    claim = await broker.claims.acquire(bundle)
    assert claim is not None

    async def lost_and_claimed() -> None:
        broker.claims.drop_all()
        await store.delete(claim.key)
        assert await broker.claims.acquire(bundle) is not None

    given = broker.claims.release(claim, other.record())
    assert await meanwhile(store, given, lost_and_claimed) is None
    assert await broker.owner_of(bundle) == broker.name
    assert broker.claims.get(bundle) not in (None, claim)


# -- splitting


async def test_a_bundle_that_is_lost_before_its_split_is_written_stays_whole(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    whole = await ring(store)
    bundle = whole.bundles[0]
    claim = await broker.claims.acquire(bundle)
    assert claim is not None

    async def lost_and_claimed() -> None:
        await store.delete(claim.key)
        assert await other.claims.acquire(bundle) is not None

    with pytest.raises(ServiceNotReady, match="not owned here"):
        await meanwhile(store, broker.claims.split(claim, [bundle.lower + 1]), lost_and_claimed)
    assert (await ring(store)).bundles == whole.bundles
    assert await broker.owner_of(bundle) == other.name


async def test_a_split_keeps_what_others_change_in_the_policies_meanwhile(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    claim = await broker.claims.acquire(bundle)
    assert claim is not None

    async def change() -> None:
        record = await store.get(namespace_key(NAMESPACE))
        assert record is not None
        policies = policies_of(record) | {"max_producers_per_topic": 7}
        await store.put(record.key, encode(policies))

    held = store.hold(puts("/namespaces/"))
    splitting = asyncio.ensure_future(broker.claims.split(claim, [bundle.lower + 1]))
    await held.reached.wait()
    await change()
    held.go.set()
    parts = await splitting
    record = await store.get(namespace_key(NAMESPACE))
    assert record is not None
    assert policies_of(record)["max_producers_per_topic"] == 7
    assert set(parts) <= set((await ring(store)).bundles)
    assert [await broker.owner_of(part) for part in parts] == [broker.name] * 2
    assert await broker.owner_of(bundle) is None
    # The claims of the parts end with their owner's lease, as that of the whole bundle did.
    await broker.session.stop()
    assert [await broker.owner_of(part) for part in parts] == [None] * 2

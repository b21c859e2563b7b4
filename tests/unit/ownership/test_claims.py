"""What a broker finds changed at the moment when it writes a claim decides whether it has it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest
from tests.support.held_store import HeldStore, puts

from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.ownership.bundles import Bundle, Ring, with_split
from magnetar.broker.ownership.claims import Claims
from magnetar.broker.ownership.records import (
    BrokerRecord,
    BrokerState,
    OwnershipRecord,
    Urls,
    broker_key,
    decode_ownership,
    encode,
    ownership_key,
)
from magnetar.broker.ownership.rings import Rings, namespace_key, policies_of
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import NamespaceName
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import Record

NAMESPACE = NamespaceName("public", "default")
TTL_S = 60.0


@dataclass
class Broker:
    """A broker's claims, over a session of its own."""

    store: HeldStore
    session: MetadataSession
    claims: Claims
    name: str

    def record(self) -> BrokerRecord:
        lease_id = self.session.lease_id if self.session.valid else 0
        return record_of(self.name, lease_id)

    async def owner_of(self, bundle: Bundle) -> str | None:
        record = await self.store.get(ownership_key(bundle))
        return None if record is None else decode_ownership(record.key, record.value).broker_id


def record_of(name: str, lease_id: int, start: int = 1) -> BrokerRecord:
    urls = Urls(f"pulsar://{name}", f"http://{name}")
    return BrokerRecord(name, start, name, 6650, urls, lease_id=lease_id)


async def started(store: HeldStore, name: str) -> Broker:
    session = MetadataSession(store, TTL_S, SystemClock(), name)
    await session.start()
    rings = Rings(store, lambda _namespace: None)
    clock = SystemClock()

    def own() -> BrokerRecord:
        return broker.record()

    def seen(_record: Record) -> bool:
        return True

    claims = Claims(store, session, rings, own, clock.now_ms, seen)
    broker = Broker(store, session, claims, name)
    await store.put(broker_key(name), encode(broker.record()), lease_id=session.lease_id)
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


async def test_a_bundle_that_is_split_before_its_claim_is_written_is_not_claimed(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]

    async def split() -> None:
        record = await store.get(namespace_key(NAMESPACE))
        assert record is not None
        policies = with_split(policies_of(record), bundle, [bundle.lower + 1000])
        await store.put(record.key, encode(policies), expected=record.revision)

    assert await meanwhile(store, broker.claims.take(bundle), split) is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


async def test_a_bundle_of_a_namespace_that_is_deleted_before_its_claim_is_written_is_not_claimed(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    deleted = lambda: store.delete(namespace_key(NAMESPACE))  # noqa: E731
    assert await meanwhile(store, broker.claims.take(bundle), deleted) is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


async def test_a_claim_of_another_broker_that_comes_first_stands(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    taken = lambda: other.claims.take(bundle)  # noqa: E731
    assert await meanwhile(store, broker.claims.take(bundle), taken) is None
    assert await broker.owner_of(bundle) == other.name
    assert not broker.claims.all
    assert other.claims.get(bundle) is not None


async def test_a_claim_is_not_made_under_a_lease_that_is_lost_before_it_is_written(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    assert await meanwhile(store, broker.claims.take(bundle), broker.session.stop) is None
    assert await broker.owner_of(bundle) is None
    assert not broker.claims.all


@pytest.mark.parametrize("wider", [True, False])
async def test_a_bundle_is_not_claimed_while_a_claim_overlaps_it(
    store: HeldStore, broker: Broker, other: Broker, wider: bool
) -> None:
    """A namespace that is deleted and made anew may be cut elsewhere."""
    bundle = (await ring(store)).bundles[0]
    upper = bundle.upper + 1000 if wider else bundle.upper - 1000
    claimed = Bundle(NAMESPACE, bundle.lower + 1000, upper)
    value = encode(OwnershipRecord.of(other.record()))
    await store.put(ownership_key(claimed), value, lease_id=other.session.lease_id)
    assert await broker.claims.take(bundle) is None
    assert await broker.owner_of(bundle) is None
    await store.delete(ownership_key(claimed))
    assert await broker.claims.take(bundle) is not None


async def test_a_claim_of_the_process_under_its_former_lease_is_no_claim(
    store: HeldStore, broker: Broker
) -> None:
    """It goes with that lease; kept, it would end under the broker's hands."""
    bundle = (await ring(store)).bundles[0]
    former = await store.grant_lease(TTL_S)
    value = encode(OwnershipRecord(broker.name, 1, former.id))
    await store.put(ownership_key(bundle), value, lease_id=former.id)
    assert await broker.claims.confirm(bundle) is None
    assert await broker.owner_of(bundle) is None
    assert await broker.claims.take(bundle) is not None


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
    assert await broker.claims.take(bundle) is None
    assert await broker.owner_of(bundle) == name


# -- handing over


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
    claim = await broker.claims.take(bundle)
    assert claim is not None
    giving = broker.claims.give(claim, other.record())
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
    claim = await broker.claims.take(bundle)
    assert claim is not None
    third = await started(store, "c:8080")

    async def lost_and_claimed() -> None:
        await store.delete(claim.key)
        assert await third.claims.take(bundle) is not None

    given = broker.claims.give(claim, other.record())
    assert await meanwhile(store, given, lost_and_claimed) is None
    assert await broker.owner_of(bundle) == third.name
    await third.session.stop()


# -- splitting


async def test_a_bundle_that_is_lost_before_its_split_is_written_stays_whole(
    store: HeldStore, broker: Broker, other: Broker
) -> None:
    whole = await ring(store)
    bundle = whole.bundles[0]
    claim = await broker.claims.take(bundle)
    assert claim is not None

    async def lost_and_claimed() -> None:
        await store.delete(claim.key)
        assert await other.claims.take(bundle) is not None

    with pytest.raises(ServiceNotReady, match="not owned here"):
        await meanwhile(store, broker.claims.split(claim, [bundle.lower + 1]), lost_and_claimed)
    assert (await ring(store)).bundles == whole.bundles
    assert await broker.owner_of(bundle) == other.name


async def test_a_split_keeps_what_others_change_in_the_policies_meanwhile(
    store: HeldStore, broker: Broker
) -> None:
    bundle = (await ring(store)).bundles[0]
    claim = await broker.claims.take(bundle)
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

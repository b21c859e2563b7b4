"""The registration of a broker, where two processes have used its id."""

import pytest

from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.records import BrokerRecord, Urls, broker_key, decode_broker
from magnetar.core.clock import SystemClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import LeaseLost, MetadataUnavailable


def registry(store: MemoryStore, start: int) -> tuple[BrokerRegistry, MetadataSession]:
    own = BrokerRecord("b:1", start, "b", 1, Urls("pulsar://b:6650", "http://b:1"))
    session = MetadataSession(store, 60.0, SystemClock(), f"broker {start}")
    brokers = BrokerRegistry(store, session, own)
    session.add_listener(brokers)
    return brokers, session


async def registered(store: MemoryStore) -> int | None:
    record = await store.get(broker_key("b:1"))
    return None if record is None else decode_broker(record.key, record.value).start


async def test_a_broker_that_stops_takes_its_registration_away() -> None:
    store = MemoryStore()
    brokers, session = registry(store, 1)
    await session.start()
    assert await registered(store) == 1
    await brokers.withdraw()
    assert await registered(store) is None
    await session.stop()


async def test_a_former_process_that_stops_late_does_not_take_its_successors_away() -> None:
    """Nobody would find the successor any more: it registers once for each lease."""
    store = MemoryStore()
    former, former_session = registry(store, 1)
    await former_session.start()
    _, session = registry(store, 2)
    await session.start()
    await former.withdraw()
    assert await registered(store) == 2
    await former_session.stop()
    assert await registered(store) == 2
    await session.stop()


@pytest.mark.parametrize("fails", ["read", "end of the lease", "registration"])
async def test_the_lease_of_the_former_process_is_ended_also_if_the_first_attempt_fails(
    fails: str,
) -> None:
    """Otherwise no broker serves its bundles until the lease expires."""
    store = MemoryStore()
    _, former_session = registry(store, 1)
    await former_session.start()
    brokers, session = registry(store, 2)
    await session._renew()
    method = {"read": "get", "end of the lease": "revoke_lease", "registration": "put"}[fails]
    answered = getattr(store, method)

    async def unavailable(*_: object, **__: object) -> None:
        setattr(store, method, answered)
        raise MetadataUnavailable("no answer came")

    setattr(store, method, unavailable)
    with pytest.raises(MetadataUnavailable):
        await brokers.established(renewed=True)
    await brokers.established(renewed=True)
    assert await registered(store) == 2
    with pytest.raises(LeaseLost):
        await former_session._lease.keep_alive()  # type: ignore[union-attr]
    await former_session.stop()
    await session.stop()

"""The Lease: of several operators at most one acts, whatever stands still or is cut off."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.operator.memory_kube import Asked, MemoryKube, Refusal

from magnetar_operator.kube import lease as leading
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import LEASE, Object
from magnetar_operator.kube.lease import HOLD_S, LEASE_S, Leadership, NotLeading


class Hand:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """Operators over one Kubernetes in memory."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.clock = Hand()
        self.client: KubeClient = self.kube.client()

    def operator(self, identity: str) -> Leadership:
        return Leadership(self.client, "ns", "lease", identity, self.clock)

    def lease(self) -> Object:
        return self.kube.get(LEASE, "lease")

    def holder(self) -> str:
        return str(self.lease()["spec"]["holderIdentity"])


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr("magnetar_operator.kube.client.BACKOFF_FIRST_S", 0.0)
    monkeypatch.setattr(leading, "RENEW_INTERVAL_S", 0.0)
    monkeypatch.setattr(leading, "POLL_INTERVAL_S", 0.0)
    rig = Rig()
    yield rig
    await rig.client.close()


async def test_the_first_operator_takes_the_lease_and_acts_only_while_it_holds(on: Rig) -> None:
    first = on.operator("first")
    with pytest.raises(NotLeading):
        first.check()
    await first.take()
    assert on.holder() == "first"
    on.clock.now += HOLD_S - 0.01
    first.check()
    on.clock.now += 0.01
    with pytest.raises(NotLeading):
        first.check()


async def test_a_write_counts_from_the_moment_it_began(on: Rig) -> None:
    """An answer that takes long must not make the holder act for longer."""
    first = on.operator("first")

    def slow(asked: Asked) -> None:
        if asked.method != "GET":
            on.clock.now += 4

    on.kube.refuse = slow
    assert await first._try()
    on.clock.now += HOLD_S - 4 - 0.01
    assert first.held
    on.clock.now += 0.01
    assert not first.held


async def test_a_lease_whose_write_took_too_long_is_not_held(on: Rig) -> None:
    def slow(asked: Asked) -> None:
        if asked.method != "GET":
            on.clock.now += HOLD_S

    on.kube.refuse = slow
    assert not await on.operator("first")._try()


async def test_another_operator_takes_the_lease_only_after_it_was_unchanged_long_enough(
    on: Rig,
) -> None:
    first, second = on.operator("first"), on.operator("second")
    await first.take()
    on.clock.now += 1_000
    assert not await second._try(), "it has only begun to watch"
    on.clock.now += LEASE_S - 0.01
    assert not await second._try()
    assert await first._write()
    on.clock.now += LEASE_S - 0.01
    assert not await second._try(), "it was renewed meanwhile"
    on.clock.now += LEASE_S
    assert not first.held
    assert await second._try()
    assert (on.holder(), on.lease()["spec"]["leaseTransitions"]) == ("second", 1)
    assert not await first._write(), "what it knows is out of date"
    assert on.holder() == "second"


async def test_of_two_operators_that_take_the_lease_at_once_one_gets_it(on: Rig) -> None:
    first, second = on.operator("first"), on.operator("second")

    def quicker(asked: Asked) -> None:
        if asked.method == "POST":
            on.kube.refuse = lambda _: None
            lease = {**asked.body, "metadata": {"name": "lease", "namespace": "ns"}}
            lease["spec"] = {**lease["spec"], "holderIdentity": "second"}
            on.kube.put(lease)

    on.kube.refuse = quicker
    assert not await first._try()
    assert not first.held
    assert on.holder() == "second"
    assert not second.held


async def test_a_released_lease_is_free_at_once_and_only_its_holder_releases_it(on: Rig) -> None:
    first, second = on.operator("first"), on.operator("second")
    await first.take()
    await second.release()
    assert on.holder() == "first"
    await first.release()
    assert (on.holder(), first.held) == ("", False)
    assert await second._try()
    await first.release()
    assert on.holder() == "second"


async def test_an_expired_holder_releases_nothing(on: Rig) -> None:
    first = on.operator("first")
    await first.take()
    on.clock.now += HOLD_S
    before = on.lease()
    await first.release()
    assert on.lease() == before


async def test_the_lease_is_renewed_until_another_operator_has_it(on: Rig) -> None:
    first = on.operator("first")
    await first.take()
    written = 0

    def counted(asked: Asked) -> None:
        nonlocal written
        written += asked.method == "PUT"
        on.clock.now += 1
        if written == 5:
            lease = on.lease()
            lease["spec"]["holderIdentity"] = "second"
            on.kube.put(lease)

    on.kube.refuse = counted
    async with asyncio.timeout(20):
        await first.keep()
    assert written == 5
    assert not first.held
    assert on.holder() == "second"


async def test_an_api_server_that_is_down_ends_the_lease_only_at_its_expiry(on: Rig) -> None:
    first = on.operator("first")
    await first.take()
    asked = 0

    def away(_: Asked) -> Refusal:
        nonlocal asked
        asked += 1
        on.clock.now += 1
        return Refusal(503, "Unavailable")

    on.kube.refuse = away
    async with asyncio.timeout(20):
        await first.keep()
    assert asked == HOLD_S
    assert not first.held


async def test_an_unanswered_write_ends_the_lease_at_its_expiry(on: Rig) -> None:
    """Its request has a longer deadline of its own: another may hold the lease by then."""
    first = on.operator("first")
    await first.take()
    answered = threading.Event()

    def hangs(_: Asked) -> None:
        on.clock.now += HOLD_S
        answered.wait()

    on.clock.now += HOLD_S - 0.01
    on.kube.refuse = hangs
    try:
        async with asyncio.timeout(20):
            await first.keep()
    finally:
        answered.set()
    assert not first.held


async def test_an_unreadable_lease_is_not_taken_and_read_again(on: Rig) -> None:
    first = on.operator("first")
    tried = 0

    def at_first(_: Asked) -> Refusal | None:
        nonlocal tried
        tried += 1
        return Refusal(403, "Forbidden") if tried <= 2 else None

    on.kube.refuse = at_first
    async with asyncio.timeout(20):
        await first.take()
    assert tried == 4
    assert on.holder() == "first"
    assert on.lease()["spec"]["leaseDurationSeconds"] == LEASE_S

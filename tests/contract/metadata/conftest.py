"""The forms of the metadata store that the contract holds for, each opened on a clock of ours.

The in-process forms run on a clock that the tests move. etcd is a real one, started once for all
tests; its leases run on real time, so they are short there, and each test has a root of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.etcd import EtcdMember, compact, open_on, start_etcd

from magnetar.metadata.embedded import open_embedded
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore

MANUAL_TTL_S = 30.0
ETCD_TTL_S = 4.0
"""So long that a machine that stops for two seconds loses no lease that it means to keep."""


class ManualClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Form:
    """One form of the store, open, and what differs between the forms."""

    store: MetadataStore
    advance: Callable[[float], Awaitable[None]]
    """Makes time pass for leases."""
    forget_past: Callable[[], Awaitable[None]]
    """Makes the store forget old revisions, but not the newest."""
    ttl_s: float
    """Of a lease that the test sees end."""
    keeps_past: bool
    """Whether a watcher that lags far behind may still catch up."""


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    member = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield member
    member.stop()


@pytest.fixture(params=["memory", "embedded", "etcd"])
async def form(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Form]:
    if request.param == "etcd":
        member = request.getfixturevalue("etcd")
        on_etcd = await open_on(member)

        async def forget() -> None:
            await compact(member, await on_etcd.revision())

        yield Form(on_etcd, asyncio.sleep, forget, ETCD_TTL_S, keeps_past=True)
        await on_etcd.close()
        return
    clock = ManualClock()
    store: MetadataStore
    if request.param == "memory":
        store = MemoryStore(clock)
    else:
        store = await open_embedded(tmp_path / "metadata", clock)

    async def advance(seconds: float) -> None:
        clock.seconds += seconds
        await store.revision()

    async def fill() -> None:
        for _ in range(40):
            await store.put("/past/big", bytes(1 << 19))

    yield Form(store, advance, fill, MANUAL_TTL_S, keeps_past=False)
    await store.close()


@pytest.fixture
def store(form: Form) -> MetadataStore:
    return form.store

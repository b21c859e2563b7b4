"""The forms of the metadata store that the contract holds for, each opened on a clock of ours."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from magnetar.metadata.embedded import open_embedded
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore


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
    """One form of the store, open, and how the test makes time pass for its leases."""

    store: MetadataStore
    advance: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["memory", "embedded"])
async def form(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Form]:
    clock = ManualClock()
    store: MetadataStore
    if request.param == "memory":
        store = MemoryStore(clock)
    else:
        store = await open_embedded(tmp_path / "metadata", clock)

    async def advance(seconds: float) -> None:
        clock.seconds += seconds
        await store.revision()

    yield Form(store, advance)
    await store.close()


@pytest.fixture
def store(form: Form) -> MetadataStore:
    return form.store

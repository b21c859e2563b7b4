"""How a process waits for its cluster's metadata store, on a loop whose time passes at once."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.unit.ledger.cluster import virtual

from magnetar.cluster import membership
from magnetar.cluster.membership import PROGRESS_FIRST_S, PROGRESS_S, RETRY_S, Membership, join
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError
from magnetar.core.log import FIELDS
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataStore, MetadataUnavailable
from magnetar.security.tls.process import ProcessTls
from magnetar.settings.field import compose
from magnetar.settings.member import AutorecoveryProcessSettings

URL = "etcd:http://127.0.0.1:1"


class Loops(SystemClock):
    """The loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Opening:
    """Attempts to open the store: refused until `after_s`, then it is there."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.attempts_s: list[float] = []

    async def __call__(self, url: str, *_: object) -> MetadataStore:
        assert url == URL
        now_s = asyncio.get_running_loop().time()
        self.attempts_s.append(now_s)
        if now_s < self.after_s:
            raise MetadataUnavailable("connection refused")
        return MemoryStore()


def joined(
    monkeypatch: pytest.MonkeyPatch, opening: Opening, wait_s: int
) -> tuple[Membership | None, str]:
    """The membership, or else the text of the error."""
    monkeypatch.setattr(membership, "open_store", opening)
    settings = compose(
        AutorecoveryProcessSettings,
        metadata_url=URL,
        metadata_wait_s=wait_s,
        cluster_name="shop",
    )

    async def main() -> tuple[Membership | None, str]:
        async with AsyncExitStack() as opened:
            try:
                return await join(opened, settings, Loops(), "test", ProcessTls()), ""
            except MetadataError as error:
                return None, str(error)

    return virtual(main())


def waits(caplog: pytest.LogCaptureFixture) -> list[tuple[float, int]]:
    """How long the process had waited, and would wait at most, in each of its lines."""
    lines = [item for item in caplog.records if item.message == "waiting for the metadata store"]
    fields = [getattr(item, FIELDS) for item in lines]
    assert all(item["metadata_url"] == URL for item in fields)
    return [(item["waited_s"], item["wait_s_max"]) for item in fields]


def test_a_store_that_never_answers_is_named_after_the_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Opening(1e9)
    found, text = joined(monkeypatch, opening, 10)
    assert found is None
    assert f"{URL} (metadata_url) could not be reached for 10 s (metadata_wait_s)" in text
    assert text.endswith("connection refused")
    assert waits(caplog) == [(PROGRESS_FIRST_S, 10), (PROGRESS_FIRST_S + PROGRESS_S, 10)]
    assert opening.attempts_s[1] - opening.attempts_s[0] == pytest.approx(RETRY_S)
    assert len(opening.attempts_s) == pytest.approx(10 / RETRY_S, abs=1)


def test_a_process_joins_once_the_store_answers_and_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found, text = joined(monkeypatch, Opening(3.0), 60)
    assert found is not None, text
    assert found.cluster.name == "shop"
    assert waits(caplog) == [(PROGRESS_FIRST_S, 60)]


def test_a_store_that_is_there_needs_no_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found, text = joined(monkeypatch, Opening(0.0), 60)
    assert found is not None, text
    assert waits(caplog) == []

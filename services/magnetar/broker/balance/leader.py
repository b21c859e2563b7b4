"""Leader election among the brokers: the leader holds the key `/balance/leader` under its lease.

A broker that finds no leader tries to become it; otherwise it waits until the key is deleted. Each
attempt writes a unique value, so reading the key settles an attempt with an unknown outcome. A
broker stops leading as soon as its session is in doubt. Writes that a former leader still has in
flight fail: each includes `check`, which requires the exact revision of the leader's key.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.balance.model import LEADER_KEY, LeaderRecord, decode_leader
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskScope
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    EventKind,
    MetadataStore,
    StoreClosed,
)

RECHECK_S: Final = 30.0
"""A waiting broker reads the key at least this often, even if its watch reports nothing."""
RETRY_S: Final = 1.0
CALL_TIMEOUT_S: Final = 10.0

log = get_logger("magnetar.balance")


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The leader, as this broker last saw it."""

    broker_id: str
    service_url: str


class Leadership:
    """Campaigns for the leadership. A listener of the session: add it before that starts."""

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        broker_id: str,
        service_url: str,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._session = session
        self._broker_id = broker_id
        self._service_url = service_url
        self._rng = rng or random.Random()
        self._revision = 0
        self._last_attempt = ""
        self._changed = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Whether this broker leads at this moment."""
        return self._revision > 0 and self._session.valid

    def check(self) -> Check:
        """Returns a check for every write of the leader; raises ServiceNotReady if not leading."""
        if not self.leading:
            raise ServiceNotReady("This broker does not lead any more")
        return Check(LEADER_KEY, self._revision)

    async def wait_change(self) -> None:
        """Returns when this broker starts or stops leading after the call."""
        await self._changed.wait()

    async def read(self) -> LeaderView | None:
        """Reads the current leader from the store."""
        record = await self._store.get(LEADER_KEY)
        if record is None:
            return None
        leader = decode_leader(record.key, record.value)
        return LeaderView(leader.broker_id, leader.service_url)

    def suspended(self) -> None:
        """Stops leading: the lease is in doubt."""
        self._set(0)

    async def established(self, *, renewed: bool) -> None:
        """Makes `run` read the key again; under the same lease it may still exist."""
        # A key under a former lease has no owner and is deleted with that lease.
        if renewed:
            self._last_attempt = ""
        self._set(0)

    def _set(self, revision: int) -> None:
        if (self._revision > 0) != (revision > 0):
            log.info("leading" if revision else "no longer leading", broker=self._broker_id)
        self._revision = revision
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Campaigns until the store is closed."""
        while True:
            try:
                await self._campaign()
            except StoreClosed:
                return
            except (MagnetarError, TimeoutError) as error:
                log.info("leader not determined", broker=self._broker_id, error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _campaign(self) -> None:
        """Becomes the leader if there is none; else waits until the key may have changed."""
        changed = self._changed
        async with asyncio.timeout(CALL_TIMEOUT_S):
            revision = await self._store.revision()
            record = await self._store.get(LEADER_KEY)
        if record is None:
            if self._revision:
                self._set(0)
            if not self._session.valid:
                await asyncio.sleep(RETRY_S)
                return
            await self._attempt()
            return
        leader = decode_leader(record.key, record.value)
        if leader.attempt == self._last_attempt and self._session.valid and not self._revision:
            self._set(record.revision)
            changed = self._changed
        elif self._revision and self._revision != record.revision:
            self._set(0)
        await self._until_gone(max(revision, record.revision) + 1, changed)

    async def _attempt(self) -> None:
        self._last_attempt = f"{self._broker_id}-{self._rng.getrandbits(64):016x}"
        value = LeaderRecord(self._broker_id, self._service_url, self._last_attempt)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                revision = await self._store.put(
                    LEADER_KEY,
                    encode(value),
                    expected=ABSENT,
                    lease_id=self._session.lease_id,
                )
        except BadRevision:
            return  # another broker was faster; the next campaign reads which
        if self._session.valid:
            self._set(revision)

    async def _until_gone(self, from_revision: int, changed: asyncio.Event) -> None:
        """Returns when the key is deleted, the session changes, or RECHECK_S have passed."""
        watch = self._store.watch(LEADER_KEY, from_revision=from_revision)

        async def gone() -> None:
            async for event in watch:
                if event.kind is EventKind.DELETE and event.record.key == LEADER_KEY:
                    return

        with contextlib.closing(watch):
            async with TaskScope(f"balance leader {self._broker_id}") as scope:
                waiting: list[asyncio.Task[Any]] = [
                    scope.start(gone(), "leader gone"),
                    scope.start(changed.wait(), "session changed"),
                ]
                done, _ = await asyncio.wait(
                    waiting, timeout=RECHECK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()

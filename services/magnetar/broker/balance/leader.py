"""One leader among the brokers: whoever holds the key `/balance/leader` under its lease.

A broker that finds no leader tries to become it, and otherwise waits for the key to go. The key's
value has a number of its own for every attempt, so that an attempt whose outcome is unknown is
settled by reading. Leading is over the moment the session is in doubt; what a former leader still
has under way is stopped by `check`, which goes with every write of a leader and ties it to the very
revision of its key.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.broker.balance.model import LEADER_KEY
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    EventKind,
    MetadataStore,
    StoreClosed,
)

LOOK_AGAIN_S: Final = 30.0
"""A waiting broker looks at the key at least this often, whatever its watch says."""
RETRY_S: Final = 1.0
CALL_TIMEOUT_S: Final = 10.0

log = get_logger("magnetar.balance")


class LeaderRecord(msgspec.Struct, rename="camel", frozen=True):
    """The key's value."""

    broker_id: str
    service_url: str
    attempt: str


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who leads, as this broker last saw it."""

    broker_id: str
    service_url: str


class Leadership:
    """See the module's text. A listener of the session: add it before the session starts."""

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
        self._known: LeaderView | None = None
        self._last_attempt = ""
        self._changed = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self._revision > 0 and self._session.valid

    @property
    def known(self) -> LeaderView | None:
        """Who leads, where that is known."""
        return self._known

    def check(self) -> Check:
        """Goes with every write of the leader; raises ServiceNotReady where this is not it."""
        if not self.leading:
            raise ServiceNotReady("This broker does not lead any more")
        return Check(LEADER_KEY, self._revision)

    async def wait_change(self) -> None:
        """Returns when leading has begun or ended since the call."""
        await self._changed.wait()

    async def look(self) -> LeaderView | None:
        """Who leads, asked of the store."""
        record = await self._store.get(LEADER_KEY)
        if record is None:
            return None
        found = msgspec.json.decode(record.value, type=LeaderRecord)
        return LeaderView(found.broker_id, found.service_url)

    # -- the session

    def suspended(self) -> None:
        self._set(0)

    async def established(self, *, renewed: bool) -> None:
        # `run` looks at the key anew: under the same lease it may still be there. One under an
        # older lease is nobody's any more, and goes by itself.
        if renewed:
            self._last_attempt = ""
        self._set(0)

    def _set(self, revision: int) -> None:
        if (self._revision > 0) != (revision > 0):
            log.info("leading" if revision else "not leading any more", broker=self._broker_id)
        self._revision = revision
        self._changed.set()
        self._changed = asyncio.Event()

    # -- the campaign

    async def run(self) -> None:
        """Campaigns until the store is closed."""
        while True:
            try:
                await self._campaign()
            except StoreClosed:
                return
            except (MagnetarError, TimeoutError, msgspec.MsgspecError) as error:
                log.info("no leader found", broker=self._broker_id, error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _campaign(self) -> None:
        """Looks once: becomes the leader, or waits until the key may have changed."""
        changed = self._changed
        async with asyncio.timeout(CALL_TIMEOUT_S):
            revision = await self._store.revision()
            record = await self._store.get(LEADER_KEY)
        if record is None:
            self._known = None
            if self._revision:
                self._set(0)
            if not self._session.valid:
                await asyncio.sleep(RETRY_S)
                return
            await self._attempt()
            return
        found = msgspec.json.decode(record.value, type=LeaderRecord)
        self._known = LeaderView(found.broker_id, found.service_url)
        if found.attempt == self._last_attempt and self._session.valid and not self._revision:
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
                    msgspec.json.encode(value),
                    expected=ABSENT,
                    lease_id=self._session.lease_id,
                )
        except BadRevision:
            return  # somebody was faster: the next look says who
        self._known = LeaderView(self._broker_id, self._service_url)
        if self._session.valid:
            self._set(revision)

    async def _until_gone(self, from_revision: int, changed: asyncio.Event) -> None:
        """Returns when the key went, when this broker's session changed, or after LOOK_AGAIN_S."""
        watch = self._store.watch(LEADER_KEY, from_revision=from_revision)

        async def gone() -> None:
            async for event in watch:
                if event.kind is EventKind.DELETE and event.record.key == LEADER_KEY:
                    return

        waiting: list[asyncio.Task[object]] = [
            asyncio.create_task(gone(), name="leader gone"),
            asyncio.create_task(changed.wait(), name="session changed"),
        ]
        try:
            done, _ = await asyncio.wait(
                waiting, timeout=LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
        finally:
            watch.close()
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

"""A process's standing in the metadata store: one lease, renewed while the process lives.

What must vanish with the process (its registration, the bundles it owns) is written under the
lease. The holder's own monotonic clock decides whether it may still act on it (`valid`), so a
process that was paused or cut off stops before the store lets anybody else take over: the clock
starts before the renewal is sent, the store's when it arrives.

Three states: ESTABLISHED; SUSPENDED, where the lease could not be renewed in time, and whatever it
covers must rest; CLOSED. Out of SUSPENDED the same lease comes back where the store still has it
(nobody took anything then), else a new one is granted, whose keys are to be written anew.
"""

import asyncio
from collections.abc import Awaitable
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import Lease, LeaseLost, MetadataStore, StoreClosed

RENEWALS_PER_TTL: Final = 4
RETRY_S: Final = 0.25

T = TypeVar("T")

log = get_logger("magnetar.metadata.session")


class SessionState(StrEnum):
    """See the module's text."""

    SUSPENDED = "suspended"
    ESTABLISHED = "established"
    CLOSED = "closed"


class SessionListener(Protocol):
    """Who has keys under the session's lease."""

    def suspended(self) -> None:
        """The lease is in doubt: stop serving what it covers, now. Must not raise."""

    async def established(self, *, renewed: bool) -> None:
        """The lease is good. With `renewed` it is a new one: what was under the old is gone.

        May raise a MetadataError: it is called again. No other listener is served meanwhile.
        """


class MetadataSession:
    """See the module's text. `start`, then `stop`. All methods belong to the loop's thread."""

    def __init__(self, store: MetadataStore, ttl_s: float, clock: Clock, name: str) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._name = name
        self._tasks = TaskSet(f"session {name}")
        self._listeners: list[SessionListener] = []
        self._lease: Lease | None = None
        self._state = SessionState.SUSPENDED
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def valid(self) -> bool:
        """Whether what the lease covers may be acted on at this moment."""
        lease = self._lease
        return self._state is SessionState.ESTABLISHED and lease is not None and lease.valid

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def ttl_s(self) -> float:
        """How long the store keeps a lease that is not renewed."""
        return self._ttl_s

    @property
    def lease_id(self) -> int:
        """For writes under the lease; raises LeaseLost where there is none to act on."""
        lease = self._lease
        if lease is None or not lease.valid:
            raise LeaseLost(f"the lease of {self._name} is not renewed")
        return lease.id

    def add_listener(self, listener: SessionListener) -> None:
        """Before `start`. Listeners are told in the order in which they were added."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Gets the lease and tells the listeners; then renews it in the background."""
        await self._establish()
        self._tasks.start(self._keep(), "renew")

    async def stop(self) -> None:
        """Ends the lease, and with it all keys under it."""
        if self._state is SessionState.CLOSED:
            return
        self._state = SessionState.CLOSED
        self._disarm()
        await self._tasks.stop()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                async with asyncio.timeout(self._ttl_s):
                    await lease.revoke()
            except (MetadataError, TimeoutError) as error:
                log.info("lease left to expire", session=self._name, error=str(error))

    async def _establish(self) -> None:
        """Makes the session good again: by the old lease where it lives, else by a new one."""
        renewed = False
        lease = self._lease
        if lease is not None:
            try:
                await self._within_ttl(lease.keep_alive())
            except LeaseLost:
                lease = self._lease = None
        if lease is None:
            lease = self._lease = await self._within_ttl(self._store.grant_lease(self._ttl_s))
            renewed = True
        self._state = SessionState.ESTABLISHED
        self._arm()
        try:
            for listener in self._listeners:
                await self._within_ttl(listener.established(renewed=renewed))
        except (MetadataError, TimeoutError):
            # Told again from the start, with a new lease: half of what belongs under it is there.
            self._suspend()
            self._lease = None
            await self._give_up(lease)
            raise

    async def _give_up(self, lease: Lease) -> None:
        try:
            await self._within_ttl(lease.revoke())
        except (MetadataError, TimeoutError):
            log.info("lease left to expire", session=self._name)

    async def _keep(self) -> None:
        while True:
            if self._state is SessionState.SUSPENDED:
                await self._try_again()
                continue
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL)
            lease = self._lease
            if lease is None or self._state is not SessionState.ESTABLISHED:
                continue
            try:
                await self._within_ttl(lease.keep_alive())
            except LeaseLost:
                self._lease = None
                self._suspend()
            except (MetadataError, TimeoutError) as error:
                log.info("lease not renewed", session=self._name, error=str(error))
            else:
                self._arm()

    async def _try_again(self) -> None:
        try:
            await self._establish()
        except StoreClosed:
            raise
        except (MagnetarError, TimeoutError) as error:
            log.info("session not established", session=self._name, error=str(error))
            await asyncio.sleep(RETRY_S)

    async def _within_ttl(self, doing: Awaitable[T]) -> T:
        async with asyncio.timeout(self._ttl_s):
            return await doing

    # -- the watchdog: the lease runs out by our own clock

    def _arm(self) -> None:
        self._disarm()
        loop = asyncio.get_running_loop()
        self._watchdog = loop.call_later(self._ttl_s / RENEWALS_PER_TTL, self._look)

    def _disarm(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _look(self) -> None:
        self._watchdog = None
        if self._state is not SessionState.ESTABLISHED:
            return
        if self._lease is None or not self._lease.valid:
            self._suspend()
        else:
            self._arm()

    def _suspend(self) -> None:
        if self._state is not SessionState.ESTABLISHED:
            return
        self._state = SessionState.SUSPENDED
        self._disarm()
        log.warning("lease not renewed in time: resting", session=self._name)
        for listener in self._listeners:
            listener.suspended()

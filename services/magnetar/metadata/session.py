"""A process's session with the metadata store: one lease, renewed while the process lives.

The process writes the keys that must vanish with it (its registration, its bundles) under the
lease. Its own monotonic clock decides whether it may still act on them (`valid`). A process that
was paused or cut off therefore stops before the store lets another one take over: the process
counts from before it sends a renewal, the store from when it receives it.

States: ESTABLISHED; SUSPENDED, from the moment the lease expires or is found to be lost: everything
under the lease must stop; CLOSED. From SUSPENDED, the session resumes the same lease if the store
still has it (then no key was lost), else it gets a new one, and its keys must be written again. A
deadline that passed while the process was paused counts as passed: even if a renewal succeeds
first, listeners are suspended and then established.

One task renews and another notifies listeners, so that a slow listener delays no renewal.
"""

import asyncio
import math
from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import Final, Protocol

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import (
    Lease,
    LeaseLost,
    MetadataStore,
    MetadataUnavailable,
    StoreClosed,
)

RENEWALS_PER_TTL: Final = 4
RETRY_S: Final = 0.25
"""Between tries to renew, or to notify a listener that failed; jittered to 50 to 100 %."""
NOTIFY_TIMEOUT_S: Final = 30.0
REVOKE_TIMEOUT_S: Final = 3.0
WATCHDOG_S_MIN: Final = 0.001

log = get_logger("magnetar.metadata.session")


class SessionState(StrEnum):
    """The states of a session."""

    SUSPENDED = "suspended"
    ESTABLISHED = "established"
    CLOSED = "closed"


class SessionListener(Protocol):
    """A component that has keys under the session's lease."""

    def suspended(self) -> None:
        """The lease is in doubt: stop serving at once everything that it covers. Must not raise.

        May be called while `established` runs, whose writes then raise LeaseLost.
        """

    async def established(self, *, renewed: bool) -> None:
        """The lease is valid. `renewed`: it is a new lease; keys under a former one are gone.

        If it raises a MagnetarError or takes longer than NOTIFY_TIMEOUT_S, it is called again with
        the same `renewed`, and must accept the keys it has written already. Later listeners wait.
        """


class MetadataSession:
    """Holds one lease and notifies listeners. `start`, then `stop`, on the loop's thread."""

    def __init__(
        self,
        store: MetadataStore,
        ttl_s: float,
        clock: Clock,
        name: str,
        *,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._clock = clock
        self._name = name
        self._random = random or Random()
        self._tasks = TaskSet(f"session {name}")
        self._listeners: list[SessionListener] = []
        self._notified_round: list[int] = []
        self._notified_lease: list[int | None] = []
        self._round = 0
        """Counts how often the session was established."""
        self._to_notify = asyncio.Event()
        self._lease: Lease | None = None
        self._deadline = -math.inf
        """Listeners are suspended at this time. Only a renewal that completes before extends it."""
        self._state = SessionState.SUSPENDED
        self._suspensions = 0
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def valid(self) -> bool:
        """Whether the process may act on the keys under the lease at this moment."""
        return (
            self._state is SessionState.ESTABLISHED
            and self._clock.monotonic() < self._deadline
            and self._lease is not None
            and self._lease.valid
        )

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def suspensions(self) -> int:
        """How often the session was suspended since the start."""
        return self._suspensions

    @property
    def ttl_s(self) -> float:
        """The granted time to live; before the first grant, the requested one."""
        return self._ttl_s if self._lease is None else self._lease.ttl_s

    @property
    def lease_id(self) -> int:
        """The lease id for writes; raises LeaseLost unless the session is valid."""
        if self._lease is None or not self.valid:
            raise LeaseLost(f"the lease of {self._name} is not renewed")
        return self._lease.id

    def add_listener(self, listener: SessionListener) -> None:
        """Adds a listener, before `start`. Listeners are notified in this order."""
        self._listeners.append(listener)
        self._notified_round.append(0)
        self._notified_lease.append(None)

    async def start(self) -> None:
        """Gets a lease and notifies the listeners; then renews the lease in the background.

        Raises what the store or a listener raises, and then leaves no task and no lease behind.
        """
        try:
            await self._renew()
            self._tasks.start(self._keep_renewing(), "renew")
            await self._notify()
        except BaseException:
            await self.stop()
            raise
        self._tasks.start(self._keep_notifying(), "notify")

    async def stop(self) -> None:
        """Ends the lease, which deletes all keys under it."""
        if self._state is SessionState.CLOSED:
            return
        self._state = SessionState.CLOSED
        if self._watchdog is not None:
            self._watchdog.cancel()
        await self._tasks.stop()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                async with asyncio.timeout(REVOKE_TIMEOUT_S):
                    await lease.revoke()
            except (MetadataError, TimeoutError) as error:
                log.info("lease left to expire", session=self._name, error=str(error))

    async def _keep_renewing(self) -> None:
        pause_s = self.ttl_s / RENEWALS_PER_TTL
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._renew()
            except StoreClosed:
                self._suspend("the store is closed")
                return
            except MetadataError as error:
                log.info("lease not renewed", session=self._name, error=str(error))
                pause_s = self._retry_s()
            except Exception:
                # A bug. Without a retry, the session would stay suspended.
                log.exception("lease not renewed", session=self._name)
                pause_s = self._retry_s()
            else:
                pause_s = self.ttl_s / RENEWALS_PER_TTL

    async def _renew(self) -> None:
        """Renews the lease, or gets a new one if it is lost, and establishes the session."""
        lease = self._lease
        try:
            async with asyncio.timeout(self.ttl_s):
                if lease is not None:
                    try:
                        await lease.keep_alive()
                    except LeaseLost as error:
                        lease = self._lease = None
                        self._suspend(str(error))
                if lease is None:
                    lease = await self._store.grant_lease(self._ttl_s)
        except TimeoutError:
            raise MetadataUnavailable(
                f"the lease of {self._name} was not renewed within {self.ttl_s} s"
            ) from None
        if self._state is SessionState.CLOSED:
            return
        if self._clock.monotonic() >= self._deadline:
            self._suspend("it ran out before it was renewed")
        self._lease = lease
        if self._state is SessionState.ESTABLISHED:
            self._deadline = lease.deadline
        elif lease.valid:
            self._establish(lease)

    def _establish(self, lease: Lease) -> None:
        self._state = SessionState.ESTABLISHED
        self._deadline = lease.deadline
        self._round += 1
        self._to_notify.set()
        self._arm()

    def _retry_s(self) -> float:
        return RETRY_S * (0.5 + self._random.random() / 2)

    def _arm(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        delay_s = max(self._deadline - self._clock.monotonic(), WATCHDOG_S_MIN)
        self._watchdog = asyncio.get_running_loop().call_later(delay_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._watchdog = None
        if self._state is not SessionState.ESTABLISHED:
            return
        if self._clock.monotonic() >= self._deadline:
            self._suspend("it was not renewed in time")
        else:
            self._arm()

    def _suspend(self, reason: str) -> None:
        if self._state is not SessionState.ESTABLISHED:
            return
        self._state = SessionState.SUSPENDED
        self._suspensions += 1
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        log.warning("session suspended", session=self._name, reason=reason)
        for listener in self._listeners:
            self._suspend_listener(listener.suspended)

    def _suspend_listener(self, suspended: Callable[[], None]) -> None:
        """Calls a listener; its exception must not leave the next listener serving."""
        try:
            suspended()
        except Exception:
            log.exception("listener failed to suspend", session=self._name)

    async def _keep_notifying(self) -> None:
        while True:
            await self._to_notify.wait()
            try:
                await self._notify()
                continue
            except MagnetarError as error:
                log.warning("listener not established", session=self._name, error=str(error))
            except Exception:
                # A bug in the listener: it is notified again, since nothing else would do so.
                log.exception("listener failed to be established", session=self._name)
            self._to_notify.set()
            await asyncio.sleep(self._retry_s())

    async def _notify(self) -> None:
        """Notifies the listeners that lack this round, in order, while established."""
        self._to_notify.clear()
        index = 0
        while index < len(self._listeners) and self._state is SessionState.ESTABLISHED:
            lease, this_round = self._lease, self._round
            if lease is None or self._notified_round[index] == this_round:
                index += 1
                continue
            renewed = self._notified_lease[index] != lease.id
            try:
                async with asyncio.timeout(NOTIFY_TIMEOUT_S):
                    await self._listeners[index].established(renewed=renewed)
            except TimeoutError:
                raise MetadataUnavailable(
                    f"a listener of {self._name} did not finish within {NOTIFY_TIMEOUT_S} s"
                ) from None
            if this_round != self._round or self._state is not SessionState.ESTABLISHED:
                # Suspended since: all listeners are notified again, from the first on.
                index = 0
                continue
            self._notified_round[index], self._notified_lease[index] = this_round, lease.id
            index += 1

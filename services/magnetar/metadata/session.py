"""A process's standing in the metadata store: one lease, renewed while the process lives.

What must vanish with the process (its registration, the bundles it owns) is written under the
lease. The holder's own monotonic clock decides whether it may still act on it (`valid`), so a
process that was paused or cut off stops before the store lets anybody else take over: the clock
starts before the renewal is sent, the store's when it arrives.

Three states: ESTABLISHED; SUSPENDED, from the moment at which the lease ran out unrenewed (or was
found to be gone): whatever it covers must rest; CLOSED. Out of SUSPENDED the same lease comes back
where the store still has it (nobody took anything then), else a new one is granted, whose keys are
to be written anew. A deadline that passed unseen, for the process was paused, counts as passed:
also where the renewal comes through first afterwards, listeners are suspended and established.

Two tasks: one renews, the other tells listeners, so that a slow listener costs no renewal.
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
"""Between tries to renew, and to tell a listener that failed; half to once of it, by chance."""
TELL_TIMEOUT_S: Final = 30.0
REVOKE_TIMEOUT_S: Final = 3.0
WATCHDOG_S_MIN: Final = 0.001

log = get_logger("magnetar.metadata.session")


class SessionState(StrEnum):
    """See the module's text."""

    SUSPENDED = "suspended"
    ESTABLISHED = "established"
    CLOSED = "closed"


class SessionListener(Protocol):
    """Who has keys under the session's lease."""

    def suspended(self) -> None:
        """The lease is in doubt: stop serving what it covers, now. Must not raise.

        May come while `established` is under way, which then gets LeaseLost for its writes.
        """

    async def established(self, *, renewed: bool) -> None:
        """The lease is good. With `renewed` the listener was not told of this lease before:
        what it had under another is gone.

        May raise a MagnetarError or take longer than TELL_TIMEOUT_S: it is called again, with the
        same `renewed`, and finds what it wrote already. No later listener is served meanwhile.
        """


class MetadataSession:
    """See the module's text. `start`, then `stop`. All methods belong to the loop's thread."""

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
        self._told_round: list[int] = []
        self._told_lease: list[int | None] = []
        self._round = 0
        """How often the session was established."""
        self._untold = asyncio.Event()
        self._lease: Lease | None = None
        self._deadline = -math.inf
        """Until then listeners need not be suspended. Only a renewal that came before moves it."""
        self._state = SessionState.SUSPENDED
        self._suspensions = 0
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def valid(self) -> bool:
        """Whether what the lease covers may be acted on at this moment."""
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
        """How often the lease was in doubt since the start."""
        return self._suspensions

    @property
    def ttl_s(self) -> float:
        """Of the lease as granted; before that, as asked for."""
        return self._ttl_s if self._lease is None else self._lease.ttl_s

    @property
    def lease_id(self) -> int:
        """For writes under the lease; raises LeaseLost where there is none to act on."""
        if self._lease is None or not self.valid:
            raise LeaseLost(f"the lease of {self._name} is not renewed")
        return self._lease.id

    def add_listener(self, listener: SessionListener) -> None:
        """Before `start`. Listeners are told in the order in which they were added."""
        self._listeners.append(listener)
        self._told_round.append(0)
        self._told_lease.append(None)

    async def start(self) -> None:
        """Gets the lease and tells the listeners; then renews it in the background.

        Raises what the store or a listener raises; then nothing is left running, nor a lease.
        """
        try:
            await self._renew()
            self._tasks.start(self._keep(), "renew")
            await self._tell()
        except BaseException:
            await self.stop()
            raise
        self._tasks.start(self._keep_telling(), "tell")

    async def stop(self) -> None:
        """Ends the lease, and with it all keys under it."""
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

    # -- renewing

    async def _keep(self) -> None:
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
                # A bug: without a retry, the session would be suspended for good.
                log.exception("lease not renewed", session=self._name)
                pause_s = self._retry_s()
            else:
                pause_s = self.ttl_s / RENEWALS_PER_TTL

    async def _renew(self) -> None:
        """Renews the lease, or gets another where it is gone, and is established by it."""
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
        self._untold.set()
        self._arm()

    def _retry_s(self) -> float:
        return RETRY_S * (0.5 + self._random.random() / 2)

    # -- the watchdog: the lease runs out by our own clock

    def _arm(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        delay_s = max(self._deadline - self._clock.monotonic(), WATCHDOG_S_MIN)
        self._watchdog = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
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
            self._guarded(listener.suspended)

    def _guarded(self, suspended: Callable[[], None]) -> None:
        """One listener's mistake must not leave the next one serving."""
        try:
            suspended()
        except Exception:
            log.exception("listener failed to rest", session=self._name)

    # -- telling

    async def _keep_telling(self) -> None:
        while True:
            await self._untold.wait()
            try:
                await self._tell()
                continue
            except MagnetarError as error:
                log.warning("listener not established", session=self._name, error=str(error))
            except Exception:
                # A mistake of its own: it is told again all the same, for nothing else would.
                log.exception("listener failed to be established", session=self._name)
            self._untold.set()
            await asyncio.sleep(self._retry_s())

    async def _tell(self) -> None:
        """Tells those who were not told of this round, in order, as long as it lasts."""
        self._untold.clear()
        index = 0
        while index < len(self._listeners) and self._state is SessionState.ESTABLISHED:
            lease, this_round = self._lease, self._round
            if lease is None or self._told_round[index] == this_round:
                index += 1
                continue
            renewed = self._told_lease[index] != lease.id
            try:
                async with asyncio.timeout(TELL_TIMEOUT_S):
                    await self._listeners[index].established(renewed=renewed)
            except TimeoutError:
                raise MetadataUnavailable(
                    f"a listener of {self._name} was not done within {TELL_TIMEOUT_S} s"
                ) from None
            if this_round != self._round or self._state is not SessionState.ESTABLISHED:
                # Suspended meanwhile: everybody is told again, from the first on.
                index = 0
                continue
            self._told_round[index], self._told_lease[index] = this_round, lease.id
            index += 1

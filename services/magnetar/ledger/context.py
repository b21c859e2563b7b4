"""The state that the writers, readers and recoveries of one ledger client share."""

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Final

from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.core.backoff import backoff_s
from magnetar.core.clock import Clock
from magnetar.core.tasks import TaskSet
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.explicit_lac import ExplicitLac
from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.store import MetadataStore

LATENCY_WEIGHT: Final = 0.2
SUSPECT_S: Final = 5.0
"""A bookie that failed a read or did not answer it is asked last for this long."""
SLOW_S: Final = 0.05
SLOW_FACTOR: Final = 4.0
"""A bookie is slow if a read takes longer than SLOW_S and this many times the fastest copy's."""
QUARANTINE_REFRESH_S: Final = 1.0
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0


class LedgerContext:
    """The shared parts of a ledger client. `late_bytes` is the sum over all writers."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieSet,
        clock: Clock,
        settings: LedgerSettings,
        rng: Random,
    ) -> None:
        self.store = store
        self.bookies = bookies
        self.clock = clock
        self.settings = settings
        self.rng = rng
        self.tasks = TaskSet("ledger")
        self.health = ReadHealth(bookies, clock)
        self.explicit_lac = ExplicitLac(bookies, settings, self.tasks)
        self.late_bytes = 0
        self._gate: asyncio.Semaphore | None = None

    @property
    def gate(self) -> asyncio.Semaphore:
        """Bounds concurrent ensemble changes of idle ledgers; busy writers do not use it."""
        if self._gate is None:
            self._gate = asyncio.Semaphore(self.settings.changes_at_once_max)
        return self._gate

    async def back_off(self, attempt: int) -> None:
        """Waits after an attempt that failed (0 is the first)."""
        await asyncio.sleep(backoff_s(attempt + 1, BACKOFF_S_MIN, BACKOFF_S_MAX, self.rng))


class ReadHealth:
    """Orders the copies of an entry for a read: healthy and fast bookies first."""

    def __init__(self, bookies: BookieSet, clock: Clock) -> None:
        self._bookies = bookies
        self._clock = clock
        self._suspect_until: dict[BookieIdentity, float] = {}
        self._latency_s: dict[BookieIdentity, float] = {}
        self._quarantined: frozenset[BookieIdentity] = frozenset()
        self._refreshed_at = float("-inf")

    def answered(self, identity: BookieIdentity, latency_s: float) -> None:
        """Records the latency of an answered read."""
        before = self._latency_s.get(identity, latency_s)
        self._latency_s[identity] = before + LATENCY_WEIGHT * (latency_s - before)
        self._suspect_until.pop(identity, None)

    def late(self, identity: BookieIdentity) -> None:
        """Marks a bookie that did not answer in time, although another copy exists."""
        self._suspect_until[identity] = self._clock.monotonic() + SUSPECT_S

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """Marks a bookie whose read failed, and reports it."""
        self.late(identity)
        self._bookies.failed(identity, error)

    def ordered(self, copies: Iterable[BookieIdentity]) -> list[BookieIdentity]:
        """Returns the copies in the given order, healthy ones before others."""
        now = self._clock.monotonic()
        if now - self._refreshed_at >= QUARANTINE_REFRESH_S:
            self._refreshed_at = now
            living = self._bookies.living()
            self._quarantined = frozenset(info.identity for info in living if info.quarantined)
            registered = {info.identity for info in living}
            for table in (self._suspect_until, self._latency_s):
                for identity in [identity for identity in table if identity not in registered]:
                    del table[identity]

        copies = list(copies)
        latencies = [self._latency_s.get(identity, 0.0) for identity in copies]
        slow = max(SLOW_S, SLOW_FACTOR * min(latencies, default=0.0))

        def rank(identity: BookieIdentity) -> tuple[bool, bool, bool, bool]:
            return (
                self._bookies.get(identity) is None,
                identity in self._quarantined,
                self._suspect_until.get(identity, now) > now,
                self._latency_s.get(identity, 0.0) > slow,
            )

        return sorted(copies, key=rank)

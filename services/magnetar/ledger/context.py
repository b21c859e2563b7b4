"""What the writers, readers and recoveries of one ledger client share."""

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Final

from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.core.clock import Clock
from magnetar.core.tasks import TaskSet
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.explicit_lac import ExplicitLac
from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.store import MetadataStore

LATENCY_WEIGHT: Final = 0.2
SUSPECT_S: Final = 5.0
"""A bookie whose answer to a read failed or did not come is asked last for so long."""
SLOW_S: Final = 0.05
SLOW_FACTOR: Final = 4.0
"""A bookie is slow where it takes longer than both: so long, and so much longer than another."""
QUARANTINE_LOOK_S: Final = 1.0
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0


class LedgerContext:
    """See the module's text. `late_bytes` is of all writers together."""

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
        """Held by ensemble changes that nothing waits for."""
        if self._gate is None:
            self._gate = asyncio.Semaphore(self.settings.changes_at_once_max)
        return self._gate

    async def back_off(self, attempt: int) -> None:
        """Waits before the next of several attempts (0 is the first): longer each time."""
        pause = min(BACKOFF_S_MAX, BACKOFF_S_MIN * (1 << min(attempt, 10)))
        await asyncio.sleep(pause * (0.5 + self.rng.random()))


class ReadHealth:
    """Which copies to ask first: those that answer, and quickly."""

    def __init__(self, bookies: BookieSet, clock: Clock) -> None:
        self._bookies = bookies
        self._clock = clock
        self._suspect_until: dict[BookieIdentity, float] = {}
        self._latency_s: dict[BookieIdentity, float] = {}
        self._quarantined: frozenset[BookieIdentity] = frozenset()
        self._looked_at = float("-inf")

    def answered(self, identity: BookieIdentity, latency_s: float) -> None:
        """It answered a read."""
        before = self._latency_s.get(identity, latency_s)
        self._latency_s[identity] = before + LATENCY_WEIGHT * (latency_s - before)
        self._suspect_until.pop(identity, None)

    def late(self, identity: BookieIdentity) -> None:
        """It has not answered yet, though another copy could have."""
        self._suspect_until[identity] = self._clock.monotonic() + SUSPECT_S

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """It cannot be asked now."""
        self.late(identity)
        self._bookies.failed(identity, error)

    def ordered(self, copies: Iterable[BookieIdentity]) -> list[BookieIdentity]:
        """The copies as they come, those that are well before those that are not."""
        now = self._clock.monotonic()
        if now - self._looked_at >= QUARANTINE_LOOK_S:
            self._looked_at = now
            living = self._bookies.living()
            self._quarantined = frozenset(one.identity for one in living if one.quarantined)
            names = {one.identity for one in living}
            for table in (self._suspect_until, self._latency_s):
                for gone in [identity for identity in table if identity not in names]:
                    del table[gone]

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

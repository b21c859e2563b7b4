"""The state of every bookie: living, draining, away for a moment, or gone.

`Members` is a snapshot, on which decisions are based. `MemberWatch` takes it from the set of
bookies and its own clock. An unregistered bookie counts as *away* until it has been missing for
`lost_bookie_delay_s`, then as *gone*. A bookie that this process never saw counts as missing since
the watch began. Another incarnation under the same id is another bookie, so wiped disks are gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from magnetar.bookie.api import BookieIdentity
from magnetar.core.clock import Clock
from magnetar.ledger.bookies import BookieInfo, BookieSet


class BookieState(StrEnum):
    """The state of one bookie of an ensemble."""

    LIVING = "living"
    DRAINING = "draining"
    AWAY = "away"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Members:
    """The bookies at one moment."""

    living: Mapping[BookieIdentity, BookieInfo]
    away: frozenset[BookieIdentity] = frozenset()
    unseen_are_away: bool = False
    """Whether a bookie that was never seen may still register: the watch began a moment ago."""

    def state_of(self, identity: BookieIdentity) -> BookieState:
        """Returns the bookie's state; GONE also for an identity that never existed."""
        info = self.living.get(identity)
        if info is not None:
            return BookieState.DRAINING if info.draining else BookieState.LIVING
        if identity in self.away or self.unseen_are_away:
            return BookieState.AWAY
        return BookieState.GONE

    @property
    def digest(self) -> str:
        """A hash that is equal for two snapshots if no difference between them affects a ledger.

        A bookie that is away counts as if it had not left.
        """
        present = sorted({*self.living, *self.away})
        living = self.living.values()
        draining = sorted(info.identity for info in living if info.draining)
        full = sorted(info.identity for info in living if not info.writable)
        return sha256(repr((present, draining, full)).encode()).hexdigest()


class MemberWatch:
    """Remembers when each bookie left, and takes snapshots of the bookies' states."""

    def __init__(self, bookies: BookieSet, clock: Clock, lost_delay_s: float) -> None:
        self._bookies = bookies
        self._clock = clock
        self._lost_delay_s = lost_delay_s
        self._began = clock.monotonic()
        self._seen: set[BookieIdentity] = set()
        self._left: dict[BookieIdentity, float] = {}

    def observe(self) -> Members:
        """Returns a snapshot.

        Call it often: the delay of a bookie that left starts at the first call that misses it.
        """
        now = self._clock.monotonic()
        living = {info.identity: info for info in self._bookies.living()}
        for identity in self._seen - living.keys():
            self._left.setdefault(identity, now)
        for identity in living:
            self._left.pop(identity, None)
        self._seen = set(living)
        delay_s = self._lost_delay_s
        away = frozenset(identity for identity, left in self._left.items() if now - left < delay_s)
        for identity in [identity for identity in self._left if identity not in away]:
            del self._left[identity]
        return Members(living, away, now - self._began < delay_s)

"""Which bookies are there, which are gone for good, and which only for a moment.

`Members` is a snapshot that decisions are made from; `MemberWatch` makes it, from the bookie set
and its own clock. A bookie that is not registered counts as *away* until it has been missing for
the named delay, then as *gone*: one that nobody here ever saw is missing since the watch began.
Another incarnation under the same name is another bookie, so wiped disks count as gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from magnetar.bookie.api import BookieIdentity
from magnetar.core.clock import Clock
from magnetar.ledger.bookies import BookieInfo, BookieSet


class Standing(StrEnum):
    """What is to be thought of one bookie of an ensemble."""

    LIVING = "living"
    DRAINING = "draining"
    AWAY = "away"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Members:
    """The bookies at one moment."""

    living: Mapping[BookieIdentity, BookieInfo]
    away: frozenset[BookieIdentity] = frozenset()
    strangers_are_away: bool = False
    """Whether one that was never seen may still come: the watch has only begun."""

    def standing(self, identity: BookieIdentity) -> Standing:
        info = self.living.get(identity)
        if info is not None:
            return Standing.DRAINING if info.draining else Standing.LIVING
        if identity in self.away or self.strangers_are_away:
            return Standing.AWAY
        return Standing.GONE

    @property
    def digest(self) -> str:
        """Equal for two snapshots between which nothing changed that matters to any ledger.

        A bookie that is only away counts as if it had not left.
        """
        present = sorted({*self.living, *self.away})
        living = self.living.values()
        draining = sorted(info.identity for info in living if info.draining)
        full = sorted(info.identity for info in living if not info.writable)
        return sha256(repr((present, draining, full)).encode()).hexdigest()


class MemberWatch:
    """See the module's text."""

    def __init__(self, bookies: BookieSet, clock: Clock, lost_delay_s: float) -> None:
        self._bookies = bookies
        self._clock = clock
        self._lost_delay_s = lost_delay_s
        self._began = clock.monotonic()
        self._seen: set[BookieIdentity] = set()
        self._left: dict[BookieIdentity, float] = {}

    def look(self) -> Members:
        """The bookies now. Call it often: a leaving is timed from the look that missed it."""
        now = self._clock.monotonic()
        living = {info.identity: info for info in self._bookies.living()}
        for identity in self._seen - living.keys():
            self._left.setdefault(identity, now)
        for identity in living:
            self._left.pop(identity, None)
        self._seen = set(living)
        patience = self._lost_delay_s
        away = frozenset(one for one, left in self._left.items() if now - left < patience)
        for identity in [one for one in self._left if one not in away]:
            del self._left[identity]
        return Members(living, away, now - self._began < patience)

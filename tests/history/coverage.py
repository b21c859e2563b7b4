"""Finds the acks of a life that cover a message, and the time until which they hold."""

from bisect import bisect_left
from collections import defaultdict
from math import inf

from tests.history.events import WHOLE, Acked, Id, Nacked, Outcome, Sought
from tests.history.index import Life, Session


def reaches(ack: Acked, message: Id) -> bool:
    """Whether a cumulative ack covers the message."""
    return _upper(ack.id) >= message


def _upper(acked: Id) -> tuple[int, int, float]:
    ledger, entry, batch = acked
    return ledger, entry, inf if batch == WHOLE else batch


class Acks:
    """The acks of one life, by message."""

    def __init__(self, acks: list[Acked]) -> None:
        self.individual: dict[Id, list[Acked]] = defaultdict(list)
        self.cumulative: list[Acked] = []
        for ack in acks:
            if ack.cumulative:
                self.cumulative.append(ack)
            else:
                self.individual[ack.id].append(ack)
        self._greatest: dict[float, tuple[int, int, float]] = {}

    def of(self, message: Id) -> list[Acked]:
        """Individual acks of the message or of its entry."""
        ledger, entry, _ = message
        own = self.individual.get(message)
        whole = self.individual.get((ledger, entry, WHOLE))
        return [*(own or ()), *(whole or ())]

    def any_sent(self, message: Id, after: float) -> bool:
        """Whether an ack that covers the message was sent after that time."""
        if any(ack.begun > after for ack in self.of(message)):
            return True
        if not self.cumulative:
            return False
        greatest = self._greatest.get(after)
        if greatest is None:
            uppers = (_upper(ack.id) for ack in self.cumulative if ack.begun > after)
            greatest = self._greatest[after] = max(uppers, default=(-1, -1, -1.0))
        return greatest >= message


class Receipts:
    """Receipted acks by the time of the receipt; they hold for sessions that begin later."""

    def __init__(self, life: Life) -> None:
        self._seeks = _unsettled(life.seeks)
        receipted = [ack for ack in life.acks if ack.outcome is Outcome.OK]
        self._acks = Acks([ack for ack in receipted if not ack.cumulative])
        self._epochs: dict[int, tuple[list[float], list[Acked]]] = defaultdict(lambda: ([], []))
        for ack in receipted:
            if ack.cumulative and not self._disturbed(ack.begun, ack.begun):
                times, greatest = self._epochs[self._epoch(ack.begun)]
                times.append(ack.done)
                more = not greatest or _upper(ack.id) > _upper(greatest[-1].id)
                greatest.append(ack if more else greatest[-1])

    def _epoch(self, at: float) -> int:
        return sum(begun <= at for begun, _ in self._seeks)

    def _disturbed(self, since: float, until: float) -> bool:
        return any(begun <= until and since <= end for begun, end in self._seeks)

    def breached(self, message: Id, before: float, at: float) -> Acked | None:
        """Returns an ack that was receipted before that time and that no seek undid until `at`."""
        for ack in self._acks.of(message):
            if ack.done < before and not self._disturbed(ack.begun, at):
                return ack
        return self._cumulative(message, before, at)

    def _cumulative(self, message: Id, before: float, at: float) -> Acked | None:
        epoch = self._epochs.get(self._epoch(at))
        if epoch is None:
            return None
        times, greatest = epoch
        count = bisect_left(times, before)
        if not count or not reaches(greatest[count - 1], message):
            return None
        return None if self._disturbed(greatest[count - 1].begun, at) else greatest[count - 1]

    def holds(self, ack: Acked, at: float) -> bool:
        """Returns whether no seek has undone this ack by then."""
        return not self._disturbed(ack.begun, at)


def _unsettled(seeks: list[Sought]) -> list[tuple[float, float]]:
    """The periods in which a seek may undo an ack; without an answer, until a later seek."""
    found, end = [], inf
    for seek in reversed(seeks):
        if seek.outcome is not Outcome.UNKNOWN:
            end = seek.done
        found.append((seek.begun, end))
    return found[::-1]


class Nacks:
    """The times at which a session requested redelivery of a message."""

    def __init__(self, session: Session) -> None:
        self._all: list[float] = []
        self._of: dict[Id, list[float]] = defaultdict(list)
        for step in session.steps:
            if isinstance(step, Nacked):
                for one in step.ids:
                    self._of[one].append(step.at)
                if not step.ids:
                    self._all.append(step.at)

    def first(self, message: Id, since: float) -> float:
        """Returns the first time from `since` on; inf if there is none."""
        ledger, entry, _ = message
        if not self._all and not self._of:
            return inf
        times = [
            *self._all,
            *self._of.get(message, ()),
            *self._of.get((ledger, entry, WHOLE), ()),
        ]
        return min((at for at in times if at >= since), default=inf)

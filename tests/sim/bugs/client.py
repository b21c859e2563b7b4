"""Planted bugs of our own client."""

from collections.abc import Iterator
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import app, faults, together, topics

from magnetar.client.consumer.acks import Acks
from magnetar.client.producer.pending import PendingEntries, PendingEntry


def the_newest_entry_is_not_resent() -> None:
    def without(self: PendingEntries) -> Iterator[PendingEntry]:
        return iter(list(self._entries)[:-1] or list(self._entries))

    plant(PendingEntries, "__iter__", without)


def entries_are_resent_newest_first() -> None:
    def backwards(self: PendingEntries) -> Iterator[PendingEntry]:
        return reversed(self._entries)

    plant(PendingEntries, "__iter__", backwards)


def unanswered_acks_count_as_recorded() -> None:
    answered = Acks._answered

    def without_error(self: Acks, recorded: Any, _error: Any, *more: Any) -> None:
        answered(self, recorded, None, *more)

    plant(Acks, "_answered", without_error)


KILLS: Final = together(topics(), app(), faults("kill broker", count=5, for_s=0.5))

BUGS: Final = (
    Bug(
        "the client does not resend its newest entry",
        "The connection breaks with several entries under way; the last one never gets a receipt.",
        the_newest_entry_is_not_resent,
        0,
        KILLS,
    ),
    Bug(
        "the client resends its newest entry first",
        "After a reconnect the messages of a producer are stored in another order.",
        entries_are_resent_newest_first,
        0,
        KILLS,
    ),
    Bug(
        "the client counts an ack without an answer as recorded",
        "The broker dies with the ack; the application believes in it, and gets the message again.",
        unanswered_acks_count_as_recorded,
        7,
        KILLS,
    ),
)

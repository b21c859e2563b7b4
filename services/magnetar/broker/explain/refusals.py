"""Remembers the producers and consumers that were refused lately, and topics deleted as unused.

A refusal is rare, so recording it costs the path of messages nothing. Equal refusals of one client
count as one. In memory only.

Bounds: TOPICS_MAX topics with REFUSALS_PER_TOPIC_MAX refusals each, and DELETED_MAX deleted topics;
the ones that were used least recently are dropped. A refusal counts for REMEMBERED_MS.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from magnetar.core.clock import Clock

TOPICS_MAX: Final = 1_000
REFUSALS_PER_TOPIC_MAX: Final = 8
DELETED_MAX: Final = 1_000
REMEMBERED_MS: Final = 15 * 60_000
TEXT_CHARACTERS_MAX: Final = 500
NAME_CHARACTERS_MAX: Final = 256
"""Clients choose names and parts of texts; longer ones are cut."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client that was refused, and how often in the same way."""

    kind: str
    """`producer` or `consumer`."""
    name: str
    subscription: str
    role: str
    address: str
    error: str
    """The name of the error's code in the protocol."""
    text: str
    first_ms: int = 0
    last_ms: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True)
class Deleted:
    """A topic that was deleted because it was unused."""

    at_ms: int
    last_active_ms: int
    policy: str


class RecentRefusals:
    """What this broker refused or deleted lately, by topic."""

    __slots__ = ("_clock", "_deleted", "_refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: OrderedDict[str, list[Refusal]] = OrderedDict()
        self._deleted: OrderedDict[str, Deleted] = OrderedDict()

    def record(self, topic: str, refusal: Refusal) -> None:
        """Records that a client of the topic was refused."""
        now_ms = self._clock.now_ms()
        refusal = replace(
            refusal,
            name=refusal.name[:NAME_CHARACTERS_MAX],
            subscription=refusal.subscription[:NAME_CHARACTERS_MAX],
            text=refusal.text[:TEXT_CHARACTERS_MAX],
            first_ms=now_ms,
            last_ms=now_ms,
        )
        kept = self._refused.setdefault(topic, [])
        self._refused.move_to_end(topic)
        for number, former in enumerate(kept):
            if _key(former) == _key(refusal):
                del kept[number]
                refusal = replace(refusal, first_ms=former.first_ms, times=former.times + 1)
                break
        kept.append(refusal)
        del kept[:-REFUSALS_PER_TOPIC_MAX]
        if len(self._refused) > TOPICS_MAX:
            self._refused.popitem(last=False)

    def of(self, topic: str) -> tuple[Refusal, ...]:
        """Returns the refusals of the last REMEMBERED_MS, the newest first."""
        since_ms = self._clock.now_ms() - REMEMBERED_MS
        kept = self._refused.get(topic, [])
        return tuple(refusal for refusal in reversed(kept) if refusal.last_ms >= since_ms)

    def attached(self, topic: str, kind: str, name: str, subscription: str = "") -> None:
        """Forgets the refusals of a client that has attached since."""
        kept = self._refused.get(topic)
        if kept is None:
            return
        key = (kind, name, subscription)
        kept[:] = [
            refusal for refusal in kept if (refusal.kind, refusal.name, refusal.subscription) != key
        ]
        if not kept:
            del self._refused[topic]

    def deleted(self, topic: str, last_active_ms: int, policy: str) -> None:
        """Records that a topic was deleted because it was unused."""
        self._deleted[topic] = Deleted(self._clock.now_ms(), last_active_ms, policy)
        self._deleted.move_to_end(topic)
        if len(self._deleted) > DELETED_MAX:
            self._deleted.popitem(last=False)

    def deletion_of(self, topic: str) -> Deleted | None:
        """Returns how a topic was deleted as unused; None if this broker did not do that."""
        return self._deleted.get(topic)


def _key(refusal: Refusal) -> tuple[str, ...]:
    """What makes two refusals equal: the port of a client changes with each connection."""
    host = refusal.address.rpartition(":")[0]
    return (refusal.kind, refusal.name, refusal.subscription, refusal.role, host, refusal.error)

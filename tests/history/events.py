"""Client operations as typed, frozen events.

All times of one history come from one clock, in seconds. `begun` is when the client invoked the
operation, `done` when the client got the answer or gave up. Between the two the operation may have
taken effect at any moment. `Outcome.UNKNOWN` means that the client got no answer: the operation
took effect or it did not.
"""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

Id = tuple[int, int, int]
"""Ledger, entry, index in the batch. Index -1 of an ack means the whole entry."""

WHOLE: Final = -1
FINGERPRINT_BYTES: Final = 8


class Outcome(StrEnum):
    """The outcome of an operation, as far as the client knows it."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """The type of a subscription."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key_shared"


class Position(StrEnum):
    """The start of a subscription that the command creates."""

    LATEST = "latest"
    EARLIEST = "earliest"


def fingerprint(payload: bytes) -> str:
    """Returns a hash that identifies a payload."""
    return blake2b(payload, digest_size=FINGERPRINT_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class Produced:
    """A message that a producer sent, with its receipt."""

    topic: str
    producer: str
    sequence: int
    key: str
    payload: str
    begun: float
    """Before the first attempt."""
    done: float
    outcome: Outcome
    id: Id | None
    """The receipt's id."""
    attempts: int
    """How often the client sent the message; 0: the client library does not say."""
    delayed: bool = False
    """It has a delivery time: consumers of shared types get it then, in no order."""


@dataclass(frozen=True, slots=True)
class ProducerOpened:
    """A producer attached to a topic, or attempted to."""

    topic: str
    producer: str
    exclusive: bool
    begun: float
    done: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A consumer attached to a subscription, or attempted to. Each attempt has its own session."""

    topic: str
    subscription: str
    session: str
    consumer: str
    kind: Kind
    position: Position
    begun: float
    done: float
    outcome: Outcome
    reconnects: bool
    """Whether the client library reconnects silently; a session then has several attachments."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A consumer's session ended: by the client, by the broker, or with the connection."""

    session: str
    at: float


@dataclass(frozen=True, slots=True)
class Received:
    """A consumer received a message."""

    session: str
    id: Id
    producer: str
    sequence: int
    key: str
    payload: str
    redeliveries: int
    at: float


@dataclass(frozen=True, slots=True)
class Acked:
    """A consumer acked one message or entry, or with `cumulative` everything up to it."""

    session: str
    id: Id
    cumulative: bool
    begun: float
    done: float
    outcome: Outcome
    """OK only with the broker's receipt."""


@dataclass(frozen=True, slots=True)
class Nacked:
    """A consumer requested redelivery of entries; without `ids`, of all that it holds."""

    session: str
    ids: tuple[Id, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Sought:
    """A consumer moved its subscription to a message; every id from `to` on is due again."""

    session: str
    to: Id
    begun: float
    done: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A subscription was deleted: by its consumer `session`, or by the admin API."""

    topic: str
    subscription: str
    session: str
    begun: float
    done: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic was deleted with all its subscriptions."""

    topic: str
    begun: float
    done: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class NamespaceDeleted:
    """A namespace without topics was deleted, not by force."""

    namespace: str
    begun: float
    done: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Kept:
    """The topic's retention keeps acked messages for longer than the history lasts."""

    topic: str


@dataclass(frozen=True, slots=True)
class Drained:
    """All faults are over, and the subscription has received all messages that were due."""

    topic: str
    subscription: str
    at: float


Event = (
    Produced
    | ProducerOpened
    | Subscribed
    | Closed
    | Received
    | Acked
    | Nacked
    | Sought
    | Unsubscribed
    | TopicDeleted
    | NamespaceDeleted
    | Kept
    | Drained
)


def known_at(event: Event) -> float:
    """Returns when the client could record the event; a stable sort by this merges clients."""
    if isinstance(event, Closed | Received | Nacked | Drained):
        return event.at
    return float("-inf") if isinstance(event, Kept) else event.done

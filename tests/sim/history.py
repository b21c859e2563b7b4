"""What the clients saw: every message sent, every receipt, every delivery, every ack's receipt.

The rules that can be held to at once are: receipts come in the order of sends, and to what was
sent; a delivered message is one that was sent, byte for byte; positions of a subscription's
consumer grow until it is redelivered; what was acked with a receipt before a consumer subscribed is
not delivered to it. The rest is asked at the end, by `checker.py`.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.sim.keyed_order import KeyedOrder
from tests.sim.recording import Recording

if TYPE_CHECKING:
    from tests.sim.delays import Delays

Position = tuple[int, int]

VIOLATIONS_MAX: Final = 20


@dataclass(slots=True)
class Sent:
    """One message."""

    payload: bytes
    created_at: float = 0.0
    """Before it was first sent."""
    sends: int = 0
    receipt: Position | None = None
    deduplicated: bool = False
    """It has a receipt without a position: an earlier SEND has stored it."""
    receipted_at: float = -1.0
    key: str = ""
    index: int = 0
    """In its batch."""
    deliver_at: float = 0.0
    """When consumers of shared types may get it, in seconds of the run; 0: at once."""

    @property
    def stored(self) -> bool:
        """Whether its producer has a receipt."""
        return self.receipt is not None or self.deduplicated


@dataclass(slots=True)
class SubscriptionHistory:
    """What one subscription's consumers got."""

    name: str
    since: float = -1.0
    """When it certainly existed: messages that were sent later must arrive, until it is `over`."""
    anew_at: float = -1.0
    """It was made at the latest position, and not before this: what was receipted by then must
    not come."""
    deleted_at: float = -1.0
    """Its topic was deleted before it was made, and not before this: as `anew_at`."""
    over: bool = False
    """Somebody has begun to delete it."""
    judged: bool = True
    """Whether acks hold; not after a seek whose outcome is unknown."""
    delivered: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """How often each message (producer, sequence) came."""
    acked: dict[Position, float] = field(default_factory=dict)
    """When the receipt of an ack came."""
    acks_sent: set[Position] = field(default_factory=set)
    acked_early: set[Position] = field(default_factory=set)
    """A consumer has acked the entry that it did not have, so it need not come."""
    undone: int = 0
    """Number of seeks: messages acked before a seek may be redelivered."""
    keyed: KeyedOrder | None = None
    """The order of a Key_Shared subscription that is never deleted."""
    held: dict[Position, None] = field(default_factory=dict)
    """Delivered and unacked: if its consumer closes, the message must be redelivered."""

    def ack_sent(self, position: Position, *, cumulative: bool) -> None:
        """A consumer has sent an ack."""
        self.acks_sent.add(position)
        if self.keyed is not None:
            self.keyed.acked(position)
        self.held.pop(position, None)
        if cumulative:
            self.held = {one: None for one in self.held if one > position}

    def rewound(self) -> None:
        """A consumer seeks back: everything may come again."""
        self.undone += 1
        self.anew_at = -1.0
        self.acked.clear()
        self.acks_sent.clear()

    def wants(self, sent: Sent) -> bool:
        """Whether this message must come, once it is receipted."""
        if sent.receipt is not None and sent.receipt in self.acked_early:
            return False
        return not self.over and sent.stored and sent.created_at > self.since


@dataclass(slots=True)
class TopicHistory:
    """What happened on one topic."""

    name: str
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionHistory] = field(default_factory=dict)
    on_delayed: list[Callable[[Position], None]] = field(default_factory=list)
    """Called when a producer has the receipt of an entry with a delivery time."""

    def subscription(self, name: str) -> SubscriptionHistory:
        return self.subscriptions.setdefault(name, SubscriptionHistory(name))

    def add(
        self,
        producer: str,
        sequence: int,
        payload: bytes,
        now: float,
        *,
        key: str = "",
        index: int = 0,
        deliver_at: float = 0.0,
    ) -> None:
        self.sent[producer, sequence] = Sent(
            payload, now, key=key, index=index, deliver_at=deliver_at
        )

    def published(self, key: str, position: Position, *, delayed: bool = False) -> None:
        """A producer has the receipt of an entry."""
        if delayed:
            for receipted in self.on_delayed:
                receipted(position)
            return  # what comes at its time is in no order
        for subscription in self.subscriptions.values():
            if subscription.keyed is not None:
                subscription.keyed.published(key, position)

    @property
    def unreceipted(self) -> int:
        return sum(not sent.stored for sent in self.sent.values())


class History:
    """See the module's text."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.recording = Recording(now)
        self.topics: dict[str, TopicHistory] = {}
        self.delays: Delays
        """The checks of delayed messages; the world sets it."""
        self.violations: list[str] = []
        self.on_violation: Callable[[], None] = lambda: None
        """Called at each violation."""
        self.receipts = 0
        self.deliveries = 0
        self.receipted_at: list[float] = []

    def topic(self, name: str) -> TopicHistory:
        return self.topics.setdefault(name, TopicHistory(name))

    def violated(self, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{self.now():.4f} {text}")
        self.on_violation()

    def receipted(
        self, topic: TopicHistory, producer: str, sequences: range, position: Position
    ) -> None:
        self.receipts += len(sequences)
        self.receipted_at.append(self.now())
        before = topic.sent.get((producer, sequences[0] - 1))
        if before is not None and not before.stored:
            self.violated(f"{topic.name}: {producer}:{sequences[0]} receipted before the former")
        elif before is not None and before.receipt is not None and before.receipt >= position:
            self.violated(
                f"{topic.name}: {producer}:{sequences[0]} got id {position}, not above the "
                f"former's {before.receipt}"
            )
        for sequence in sequences:
            sent = topic.sent[producer, sequence]
            sent.receipt, sent.receipted_at = position, self.now()

    def deduplicated(self, topic: TopicHistory, producer: str, sequences: range) -> None:
        """A producer has a receipt without a position."""
        before = topic.sent.get((producer, sequences[0] - 1))
        if before is not None and not before.stored:
            self.violated(f"{topic.name}: {producer}:{sequences[0]} receipted before the former")
        for sequence in sequences:
            sent = topic.sent[producer, sequence]
            sent.deduplicated, sent.receipted_at = True, self.now()
            if sent.sends < 2:
                self.violated(f"{topic.name}: {producer}:{sequence} was sent once, and left out")

    def delivered(
        self,
        topic: TopicHistory,
        subscription: SubscriptionHistory,
        key: tuple[str, int],
        payload: bytes,
        position: Position,
        subscribed_at: float,
    ) -> None:
        self.deliveries += 1
        sent = topic.sent.get(key)
        if sent is None:
            self.violated(f"{topic.name}: {key} at {position} was never sent")
            return
        if sent.payload != payload:
            self.violated(f"{topic.name}: {key} at {position} is not what was sent")
        gone_at = max(subscription.anew_at, subscription.deleted_at)
        if sent.receipt is not None and position <= sent.receipt and sent.receipted_at < gone_at:
            self.violated(
                f"{topic.name}/{subscription.name}: {position}, receipted at "
                f"{sent.receipted_at:.3f}, came to what was made anew at {gone_at:.3f}"
            )
        subscription.delivered[key] += 1
        if position not in subscription.acks_sent:
            subscription.held[position] = None
        acked_at = subscription.acked.get(position)
        if acked_at is not None and acked_at < subscribed_at and subscription.judged:
            self.violated(
                f"{topic.name}/{subscription.name}: {position} came again at a consumer of "
                f"{subscribed_at:.3f}, its ack was receipted at {acked_at:.3f}"
            )

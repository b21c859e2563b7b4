"""What a judgment is made from: plain values, gathered at one moment. No IO, no references.

Times are in ms since 1970; 0 means never. Positions are those of the topic's log.
"""

from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.dispatch.facts import HashFacts
from magnetar.broker.explain.refusals import Refusal
from magnetar.broker.subscription.history import Move
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName

BROKER_CAP: Final = "maxUnackedMessagesPerBroker"
"""The broker's cap, whose share a subscription has while the broker is above it."""
SHARED_RATE: Final = "shared_rate"
"""A rate that the topics of a broker or of a resource group share."""


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer of a subscription."""

    name: str
    address: str = ""
    client_version: str = ""
    connected_ms: int = 0
    permits: int = 0
    unacked: int = 0
    blocked: bool = False
    """Whether it has reached its cap of unacknowledged messages."""
    writable: bool = True
    """Whether its connection takes more bytes."""
    active: bool = True
    """False for one that stands by in a Failover subscription."""
    last_flow_ms: int = 0
    last_consumed_ms: int = 0
    last_acked_ms: int = 0
    pending_entries: int = 0
    oldest_pending: Position | None = None

    @property
    def available(self) -> bool:
        """Whether the dispatcher may hand over an entry now."""
        return self.active and self.permits > 0 and not self.blocked and self.writable


@dataclass(frozen=True, slots=True)
class ReadFailureState:
    """An entry that cannot be read now."""

    position: Position
    error: str
    attempts: int
    ensemble: tuple[str, ...] = ()
    """The bookies of its ledger."""
    missing: tuple[str, ...] = ()
    """Those of them that do not run."""
    write_quorum: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryState:
    """The recovery of transactions that is under way, with its failed attempts."""

    began_ms: int = 0
    failures: int = 0
    error: str = ""
    failed_ms: int = 0
    read: ReadFailureState | None = None
    """The read of the log that has failed."""


@dataclass(frozen=True, slots=True)
class TxnState:
    """An open transaction that holds a topic back, or has acknowledged messages."""

    most: int
    least: int
    first: Position | None = None
    """Its first message in the topic."""
    acked_entries: int = 0
    opened_ms: int = 0
    """0 if its record could not be read."""
    deadline_ms: int = 0
    owner: str | None = None
    state: str = ""
    recovery: RecoveryState | None = None
    """Set if the broker has not read its record since it has loaded the topic."""

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """A policy in force, and where it is set: `topic`, `namespace` or `broker`."""

    name: str
    value: object
    level: str
    overridden: object = None
    """The namespace's value that a topic's own value overrides."""


@dataclass(frozen=True, slots=True)
class RateState:
    """A rate that holds messages back now."""

    policy: PolicyValue
    out_of: str
    """`messages` or `bytes`."""
    waiting: int = 0
    """How many subscriptions or producers wait for it."""


@dataclass(frozen=True, slots=True)
class FilterState:
    """The entry filters of a subscription."""

    names: tuple[str, ...]
    policy: PolicyValue
    parameters: tuple[tuple[str, str], ...] = ()
    """Those of the policy."""
    properties: tuple[tuple[str, str], ...] = ()
    """The parameters that are properties of the subscription."""
    accepted: int = 0
    """Messages since the topic was opened here."""
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription of a persistent topic."""

    topic: TopicName
    name: str
    now_ms: int
    serving: bool = True
    durable: bool = True
    type: str = "None"
    terminated_at: Position | None = None
    cursor_error: str = ""
    created_ms: int = 0
    initial: Position | None = None
    """Mark-delete when the subscription was created; None if that was not recorded."""
    backlog: int = 0
    """Unacknowledged entries."""
    mark_delete: Position = EARLIEST
    next_unacked: Position | None = None
    read_position: Position = EARLIEST
    first_stored: Position = EARLIEST
    """The position just before the first stored entry."""
    last_confirmed: Position = EARLIEST
    last_visible: Position = EARLIEST
    horizon: Position | None = None
    stored_entries: int = 0
    stored_before_creation: int = 0
    """Stored entries that the subscription's creation has passed."""
    consumers: tuple[ConsumerState, ...] = ()
    switching: bool = False
    suspended: bool = False
    buffered: int = 0
    reading: bool = False
    turn_due: bool = False
    """Whether the dispatcher has used its turn and continues in the loop's next one."""
    waiting: int = 0
    """Entries that were read or returned, and wait for delivery."""
    parked: int = 0
    """Those of them that are chunks and wait for the consumer of the first chunk."""
    delivered: int = 0
    """Visible unacknowledged entries before the read position; some of them may wait again."""
    unread: int = 0
    """Visible unacknowledged entries at or after the read position."""
    delayed: int = 0
    """Unacknowledged entries whose delivery time is still to come."""
    next_delivery_ms: int = 0
    """The first delivery time of the topic that is still to come."""
    unacked: int = 0
    blocked: bool = False
    """Whether the consumers have reached the subscription's cap together."""
    consumer_cap: PolicyValue | None = None
    subscription_cap: PolicyValue | None = None
    hashes: tuple[HashFacts, ...] = ()
    look_ahead_max: int = 0
    rate: RateState | None = None
    failure: ReadFailureState | None = None
    transactions: tuple[TxnState, ...] = ()
    """Open transactions with messages in the topic, in the order of their first ones."""
    recovery: RecoveryState | None = None
    """The search of the log for open transactions; None if none is under way."""
    ack_transactions: tuple[TxnState, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    filters: FilterState | None = None
    """None if every message passes."""
    consumers_max: PolicyValue | None = None
    dump: dict[str, object] = field(default_factory=dict)
    """The dispatcher's state, for a report of a stall."""

    @property
    def last_event_ms(self) -> int:
        """When something last happened that might have led to a delivery."""
        return max(
            (max(c.last_consumed_ms, c.last_flow_ms, c.connected_ms) for c in self.consumers),
            default=0,
        )

    @property
    def readable(self) -> int:
        """Entries that could be delivered now, if a consumer took them."""
        return self.waiting + self.buffered + self.unread


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageState:
    """One message, seen from a subscription."""

    position: Position
    batch_index: int = -1
    stored: bool = False
    """Whether the topic holds the entry now."""
    trimmed: bool = False
    acked: bool = False
    aborted: bool = False
    failure: ReadFailureState | None = None
    publish_ms: int = 0
    producer: str = ""
    messages: int = 1
    encryption_keys: tuple[str, ...] = ()
    delayed_until_ms: int = 0
    """Its delivery time, while the subscription waits for that; else 0."""
    sticky_hash: int = 0
    txn: TxnState | None = None
    """Its transaction, while that is open."""
    ack_txn: TxnState | None = None
    """The open transaction that has acknowledged it."""
    holder: str = ""
    """The consumer that it was delivered to, while it is not acknowledged."""
    delivered_after_ms: int = 0
    delivered_before_ms: int = 0
    redeliveries: int = 0
    waits: bool = False
    """Whether it was read or returned, and waits for delivery."""
    ahead: int = 0
    """Unacknowledged entries before it."""
    move: Move | None = None
    retention: PolicyValue | None = None
    ttl: PolicyValue | None = None
    filtered: bool = False
    """Whether the filters, as they are now, reject it."""
    key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    """Key and properties, gathered for a filtered message only."""
    compacted_consumer: str = ""
    """The consumer that reads compacted, and whose artifact lacks the message."""
    compaction_horizon: Position | None = None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """An attached or waiting producer."""

    name: str
    address: str
    mode: str
    since_ms: int
    ready: bool = True
    encrypted: bool = False
    held: bool = False
    """Whether some of its messages wait for the topic's rate."""


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A backlog quota that is exceeded."""

    policy: PolicyValue
    type: str
    limit: int
    action: str
    subscription: str
    """The slowest durable subscription."""
    backlog_bytes: int
    oldest_ms: int
    """When the oldest message of its backlog arrived; 0 if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic, seen from its producers."""

    topic: TopicName
    now_ms: int
    serving: bool = True
    persistent: bool = True
    terminated_at: Position | None = None
    log_state: str = ""
    pending_appends: int = 0
    producers: tuple[ProducerState, ...] = ()
    waiting: tuple[ProducerState, ...] = ()
    exclusive: str = ""
    epoch: int | None = None
    quotas: tuple[QuotaState, ...] = ()
    rate: RateState | None = None
    limited_times: int = 0
    producers_max: PolicyValue | None = None
    encryption: PolicyValue | None = None
    """Set if messages must be encrypted."""
    compatibility: PolicyValue | None = None
    refusals: tuple[Refusal, ...] = ()
    publish_errors: int = 0
    last_publish_error: str = ""
    last_publish_error_ms: int = 0
    last_published_ms: int = 0
    bookies_wanted: int = 0
    """The copies that an entry must have to be confirmed."""
    bookies_running: int = 0
    bookies_read_only: tuple[str, ...] = ()
    closed_unmoved: tuple[tuple[int, int], ...] = ()
    """Closed ledgers that are not offloaded: (id, bytes)."""
    offload: str = ""
    """Why they are not offloaded; empty if no policy wants them to be."""

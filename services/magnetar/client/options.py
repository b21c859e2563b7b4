"""The options of clients, producers, consumers and readers, with their defaults and checks.

Factories take the fields as keyword arguments. Sizes are in bytes, times in seconds. A value or
combination that cannot be honored raises InvalidConfiguration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, Literal, TypedDict

from magnetar.client.errors import InvalidConfiguration
from magnetar.core.units import KIB, MIB

MEMORY_LIMIT_BYTES_DEFAULT: Final = 64 * MIB
BATCH_BYTES_DEFAULT: Final = 128 * KIB
BATCH_MESSAGES_DEFAULT: Final = 1000
BATCH_DELAY_S_DEFAULT: Final = 0.01
RECEIVER_QUEUE_DEFAULT: Final = 1000
RECEIVER_QUEUE_TOTAL_DEFAULT: Final = 50_000
PENDING_MESSAGES_TOTAL_DEFAULT: Final = 50_000
ACK_GROUP_S_DEFAULT: Final = 0.1
ACK_GROUP_SIZE_DEFAULT: Final = 1000


class SubscriptionType(IntEnum):
    """How the messages of a subscription are distributed to its consumers."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class InitialPosition(IntEnum):
    """Where a new subscription begins."""

    LATEST = 0
    EARLIEST = 1


class AccessMode(IntEnum):
    """Whether other producers may use the topic."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Compression(IntEnum):
    """The compression of payloads. ZLIB is built in; others need `magnetar[compression]`."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class Hashing(IntEnum):
    """The hash that maps a key to a partition; Java and Go default to JAVA_STRING, C++ to BOOST."""

    JAVA_STRING = 0
    MURMUR3 = 1
    BOOST = 2


def _positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise InvalidConfiguration(f"{owner}: {name} must be greater than 0, not {value}")


def _not_negative(owner: str, **values: float) -> None:
    for name, value in values.items():
        if value < 0:
            raise InvalidConfiguration(f"{owner}: {name} must not be negative, not {value}")


def _check_crypto(name: str, kind: str, value: object) -> None:
    if value is None:
        return
    from magnetar.client.crypto import api

    if not isinstance(value, getattr(api, kind)):
        raise InvalidConfiguration(f"{name} takes a {kind} of magnetar.client, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """Messages without a key go to one partition for a while, then to the next.

    With batching, the partition changes when its batch is sent; without, with each message.
    Partitions that are disconnected, have not answered for a second, or have too many unanswered
    messages are left out.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePartition:
    """Messages without a key all go to one partition; None chooses a random one."""

    partition: int | None = None


@dataclass(frozen=True, slots=True)
class CustomRouting:
    """A function chooses the partition from the message and the number of partitions."""

    choose: Callable[[Any, int], int]


Routing = RoundRobin | SinglePartition | CustomRouting


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """When a batch is sent: as soon as it reaches a limit.

    `send()` sends its batch in the same turn of the loop if no message of the partition waits for
    a receipt; `send_nowait()` leaves it open for `delay_s`.
    """

    messages_max: int = BATCH_MESSAGES_DEFAULT
    bytes_max: int = BATCH_BYTES_DEFAULT
    delay_s: float = BATCH_DELAY_S_DEFAULT
    by_key: bool = False
    """A batch per key, as Key_Shared subscriptions need."""

    def __post_init__(self) -> None:
        _positive("batching", messages_max=self.messages_max, bytes_max=self.bytes_max)
        _not_negative("batching", delay_s=self.delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer."""

    name: str = ""
    """Empty: the broker chooses a unique name."""
    access_mode: AccessMode = AccessMode.SHARED
    initial_sequence_id: int | None = None
    """The first message gets the next number; None continues after the broker's last."""
    send_timeout_s: float = 30.0
    """0: a message waits for its receipt without limit, as deduplication requires."""
    max_pending_messages: int = 0
    """Of a partition; 0: bounded by the client's memory limit only."""
    max_pending_messages_total: int = PENDING_MESSAGES_TOTAL_DEFAULT
    """Of all partitions together, if `max_pending_messages` is set."""
    block_if_queue_full: bool = True
    """Whether `send()` waits for room; if not, it raises as `send_nowait()` does."""
    routing: Routing = field(default_factory=RoundRobin)
    hashing: Hashing = Hashing.JAVA_STRING
    batching: Batching | None = field(default_factory=Batching)
    """None sends each message on its own."""
    compression: Compression = Compression.NONE
    chunking: bool = False
    """Messages larger than the broker's maximum are sent in pieces."""
    chunk_bytes_max: int = 0
    """0: as large as the broker permits."""
    properties: Mapping[str, str] = field(default_factory=dict)
    interceptors: Sequence[Any] = ()
    initial_subscription: str = ""
    """Created with the topic, so that no message is deleted before there is a consumer."""
    update_partitions_s: float = 60.0
    """Between two checks for new partitions; 0: never."""
    encryption: Any = None
    """An `Encryption`; None for none."""
    lazy: bool = False
    """Whether a partition is attached only when a message goes to it; then use `send`."""

    def __post_init__(self) -> None:
        _not_negative(
            "producer",
            send_timeout_s=self.send_timeout_s,
            max_pending_messages=self.max_pending_messages,
            max_pending_messages_total=self.max_pending_messages_total,
            chunk_bytes_max=self.chunk_bytes_max,
            update_partitions_s=self.update_partitions_s,
        )
        _check_crypto("encryption", "Encryption", self.encryption)
        if self.initial_sequence_id is not None and self.initial_sequence_id < -1:
            raise InvalidConfiguration("producer: initial_sequence_id must be at least -1")
        if self.lazy and self.access_mode is not AccessMode.SHARED:
            raise InvalidConfiguration("producer: lazy needs AccessMode.SHARED")
        pending = self.max_pending_messages
        if self.batching is not None and pending and self.batching.messages_max > pending:
            raise InvalidConfiguration(
                f"producer: batches of {self.batching.messages_max} messages cannot fill up with "
                f"max_pending_messages={pending}: raise it to at least twice the batch"
            )


class ProducerKeywords(TypedDict, total=False):
    """`ProducerOptions` as keyword arguments."""

    name: str
    access_mode: AccessMode
    initial_sequence_id: int | None
    send_timeout_s: float
    max_pending_messages: int
    max_pending_messages_total: int
    block_if_queue_full: bool
    routing: Routing
    hashing: Hashing
    batching: Batching | None
    compression: Compression
    chunking: bool
    chunk_bytes_max: int
    properties: Mapping[str, str]
    interceptors: Sequence[Any]
    initial_subscription: str
    update_partitions_s: float
    encryption: Any
    lazy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RedeliveryBackoff:
    """The delay of a redelivery, by the number of deliveries before it."""

    min_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        _not_negative("redelivery backoff", min_s=self.min_s)
        if self.max_s < self.min_s or self.multiplier < 1:
            raise InvalidConfiguration(
                "redelivery backoff: max_s must be at least min_s, and multiplier at least 1"
            )

    def delay_s(self, redelivery_count: int) -> float:
        """Returns the delay before the next delivery."""
        if redelivery_count <= 0:
            return self.min_s
        try:
            return min(self.min_s * self.multiplier**redelivery_count, self.max_s)
        except OverflowError:
            return self.max_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """Where messages go that were delivered too often; only for Shared and Key_Shared.

    Empty names are those of Java's client: `TOPIC-SUBSCRIPTION-DLQ` and `TOPIC-SUBSCRIPTION-RETRY`.
    """

    max_redeliver_count: int
    """A message is delivered once more than this before it goes to the dead letter topic."""
    dead_letter_topic: str = ""
    retry_letter_topic: str = ""
    initial_subscription: str = ""
    """Created with the dead letter topic, so that its messages are kept."""

    def __post_init__(self) -> None:
        _positive("dead letter policy", max_redeliver_count=self.max_redeliver_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySharedPolicy:
    """How the keys of a Key_Shared subscription are distributed."""

    sticky_ranges: Sequence[tuple[int, int]] = ()
    """Hash ranges (first, last) of this consumer in 0 to 65,535; empty: the broker splits."""
    allow_out_of_order: bool = False

    def __post_init__(self) -> None:
        ordered = sorted(self.sticky_ranges)
        for first, last in ordered:
            if not 0 <= first <= last <= 65_535:
                raise InvalidConfiguration(
                    f"key shared policy: ({first}, {last}) is not a range within 0 to 65535"
                )
        for (_, last), (first, _) in pairwise(ordered):
            if first <= last:
                raise InvalidConfiguration("key shared policy: the ranges overlap")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceive:
    """When `receive_many` returns: as soon as one limit is reached; a limit of 0 is off."""

    messages_max: int = 0
    bytes_max: int = 10 * MIB
    timeout_s: float = 0.1

    def __post_init__(self) -> None:
        _not_negative(
            "batch receive",
            messages_max=self.messages_max,
            bytes_max=self.bytes_max,
            timeout_s=self.timeout_s,
        )
        if not (self.messages_max or self.bytes_max or self.timeout_s):
            raise InvalidConfiguration("batch receive: set at least one limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer."""

    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    name: str = ""
    initial_position: InitialPosition = InitialPosition.LATEST
    receiver_queue_size: int = RECEIVER_QUEUE_DEFAULT
    """Messages of a topic or partition that are received ahead; 0: only on `receive`."""
    receiver_queue_total: int = RECEIVER_QUEUE_TOTAL_DEFAULT
    """Of all topics and partitions together."""
    auto_scale_receiver_queue: bool = False
    """The queue starts at 1 and doubles while it runs empty, up to `receiver_queue_size`."""
    ack_group_s: float = ACK_GROUP_S_DEFAULT
    """0: each acknowledgment is sent at once."""
    ack_group_size: int = ACK_GROUP_SIZE_DEFAULT
    ack_receipt: bool = False
    """Whether `ack` waits until the broker has recorded it."""
    batch_index_ack: bool = False
    """Messages of a batch are acknowledged one by one, if the broker supports it."""
    negative_ack_delay_s: float = 60.0
    negative_ack_backoff: RedeliveryBackoff | None = None
    ack_timeout_s: float = 0.0
    """Unacknowledged messages are redelivered after this time; 0: never."""
    ack_timeout_tick_s: float = 1.0
    ack_timeout_backoff: RedeliveryBackoff | None = None
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    durable: bool = True
    read_compacted: bool = False
    replicate_subscription: bool = False
    create_topic: bool = True
    dead_letter: DeadLetterPolicy | None = None
    retry_enabled: bool = False
    """Whether `reconsume_later` is used: the consumer also reads the retry letter topic."""
    key_shared: KeySharedPolicy | None = None
    batch_receive: BatchReceive = field(default_factory=BatchReceive)
    chunks_pending_max: int = 10
    """Messages whose chunks have not all arrived; beyond that, the oldest is discarded."""
    chunk_expiry_s: float = 60.0
    chunk_ack_oldest: bool = False
    """Whether discarded chunks are acknowledged, rather than redelivered later."""
    interceptors: Sequence[Any] = ()
    update_partitions_s: float = 60.0
    """Between two checks for new partitions and new topics of a pattern; 0: never."""
    pattern_mode: Literal["persistent", "non-persistent", "all"] = "persistent"
    start_paused: bool = False
    on_active_change: Callable[[str, bool], None] | None = None
    """Called with the topic and whether this consumer is the active one (Failover)."""
    decryption: Any = None
    """A `Decryption`; encrypted messages fail without."""

    def __post_init__(self) -> None:
        _not_negative(
            "consumer",
            receiver_queue_size=self.receiver_queue_size,
            ack_group_s=self.ack_group_s,
            negative_ack_delay_s=self.negative_ack_delay_s,
            ack_timeout_s=self.ack_timeout_s,
            priority=self.priority,
            update_partitions_s=self.update_partitions_s,
        )
        _positive(
            "consumer",
            receiver_queue_total=self.receiver_queue_total,
            ack_group_size=self.ack_group_size,
            ack_timeout_tick_s=self.ack_timeout_tick_s,
            chunks_pending_max=self.chunks_pending_max,
            chunk_expiry_s=self.chunk_expiry_s,
        )
        self._check_combinations()

    def _check_combinations(self) -> None:
        _check_crypto("decryption", "Decryption", self.decryption)
        shared = self.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
        refusals = (
            (
                self.decryption is not None and bool(self.dead_letter or self.retry_enabled),
                "decryption excludes dead_letter and retry_enabled: their topics would be in plain",
            ),
            (
                self.dead_letter is not None and not shared,
                "dead_letter needs a Shared or Key_Shared subscription",
            ),
            (self.retry_enabled and not shared, "retry_enabled needs a Shared subscription"),
            (
                self.key_shared is not None and self.type != SubscriptionType.KEY_SHARED,
                "key_shared needs a Key_Shared subscription",
            ),
            (
                self.read_compacted and shared,
                "read_compacted needs an Exclusive or Failover subscription",
            ),
            (
                0 < self.ack_timeout_s < self.ack_timeout_tick_s,
                "ack_timeout_s must be at least ack_timeout_tick_s",
            ),
            (
                self.auto_scale_receiver_queue and self.receiver_queue_size < 1,
                "auto_scale_receiver_queue needs a receiver queue",
            ),
        )
        for refused, reason in refusals:
            if refused:
                raise InvalidConfiguration(f"consumer: {reason}")


class ConsumerKeywords(TypedDict, total=False):
    """`ConsumerOptions` as keyword arguments."""

    type: SubscriptionType
    name: str
    initial_position: InitialPosition
    receiver_queue_size: int
    receiver_queue_total: int
    auto_scale_receiver_queue: bool
    ack_group_s: float
    ack_group_size: int
    ack_receipt: bool
    batch_index_ack: bool
    negative_ack_delay_s: float
    negative_ack_backoff: RedeliveryBackoff | None
    ack_timeout_s: float
    ack_timeout_tick_s: float
    ack_timeout_backoff: RedeliveryBackoff | None
    priority: int
    properties: Mapping[str, str]
    subscription_properties: Mapping[str, str]
    durable: bool
    read_compacted: bool
    replicate_subscription: bool
    create_topic: bool
    dead_letter: DeadLetterPolicy | None
    retry_enabled: bool
    key_shared: KeySharedPolicy | None
    batch_receive: BatchReceive
    chunks_pending_max: int
    chunk_expiry_s: float
    chunk_ack_oldest: bool
    interceptors: Sequence[Any]
    update_partitions_s: float
    pattern_mode: Literal["persistent", "non-persistent", "all"]
    start_paused: bool
    on_active_change: Callable[[str, bool], None] | None
    decryption: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The options of a reader."""

    name: str = ""
    subscription: str = ""
    """Empty: a unique name."""
    receiver_queue_size: int = RECEIVER_QUEUE_DEFAULT
    read_compacted: bool = False
    inclusive: bool = False
    """Whether the message at the start position is read, too."""
    properties: Mapping[str, str] = field(default_factory=dict)
    interceptors: Sequence[Any] = ()
    update_partitions_s: float = 60.0
    create_topic: bool = True
    decryption: Any = None
    """A `Decryption`; encrypted messages fail without."""


class ReaderKeywords(TypedDict, total=False):
    """`ReaderOptions` as keyword arguments."""

    name: str
    subscription: str
    receiver_queue_size: int
    read_compacted: bool
    inclusive: bool
    properties: Mapping[str, str]
    interceptors: Sequence[Any]
    update_partitions_s: float
    create_topic: bool
    decryption: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a client."""

    auth: Any = None
    """An `Authentication`; None for none."""
    tls: Any = None
    """A `Tls`; None for its defaults."""
    listener: str = ""
    """The name of the advertised listener, as brokers with several networks have."""
    operation_timeout_s: float = 30.0
    """Of lookups, of creating producers and consumers, and of requests."""
    connect_timeout_s: float = 10.0
    keep_alive_s: float = 30.0
    connections_per_broker: int = 1
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES_DEFAULT
    """Of messages that wait for receipts, in all producers; 0: no limit."""
    backoff_max_s: float = 60.0
    """The longest pause between two attempts to connect."""
    failover: Any = None
    """An `AutoFailover` or `ControlledFailover`; None for none."""

    def __post_init__(self) -> None:
        _positive(
            "client",
            operation_timeout_s=self.operation_timeout_s,
            connect_timeout_s=self.connect_timeout_s,
            keep_alive_s=self.keep_alive_s,
            connections_per_broker=self.connections_per_broker,
            backoff_max_s=self.backoff_max_s,
        )
        _not_negative("client", memory_limit_bytes=self.memory_limit_bytes)


class ClientKeywords(TypedDict, total=False):
    """`ClientOptions` as keyword arguments."""

    auth: Any
    tls: Any
    listener: str
    operation_timeout_s: float
    connect_timeout_s: float
    keep_alive_s: float
    connections_per_broker: int
    memory_limit_bytes: int
    backoff_max_s: float
    failover: Any


def build(kind: "type[Any]", keywords: Mapping[str, Any]) -> Any:
    """Returns options of `kind`; raises InvalidConfiguration for a keyword that it lacks."""
    known = {item.name for item in fields(kind)}
    for name in keywords:
        if name not in known:
            raise InvalidConfiguration(
                f"{name} is not an option; the options are {', '.join(sorted(known))}"
            )
    return kind(**keywords)

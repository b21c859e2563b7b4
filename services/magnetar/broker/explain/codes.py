"""The codes of findings, which are stable, and their meanings for docs/run/explain.md."""

from enum import StrEnum
from typing import Final


class Code(StrEnum):
    """A reason. The value is part of the REST's answer and never changes."""

    # About a subscription, or a message of it.
    TOPIC_MOVING = "topic_moving"
    TOPIC_UNREADABLE = "topic_unreadable"
    CURSOR_UNREADABLE = "cursor_unreadable"
    LEDGER_UNREADABLE = "ledger_unreadable"
    NO_CONSUMER = "no_consumer"
    WRONG_INITIAL_POSITION = "wrong_initial_position"
    TERMINATED = "terminated"
    CAUGHT_UP = "caught_up"
    SWITCHING = "switching_consumer"
    STANDBY = "standby_consumer"
    UNACKED_CAP_CONSUMER = "unacked_cap_consumer"
    UNACKED_CAP_SUBSCRIPTION = "unacked_cap_subscription"
    UNACKED_CAP_BROKER = "unacked_cap_broker"
    NO_PERMITS = "no_permits"
    SLOW_CONNECTION = "slow_connection"
    RATE_LIMITED = "rate_limited"
    DELAYED = "delayed_until"
    HASH_DRAINING = "hash_draining"
    KEY_HELD = "key_held"
    NO_OWNER_OF_KEY = "no_owner_of_key"
    LOOK_AHEAD_FULL = "look_ahead_full"
    TRANSACTION_OPEN = "transaction_open"
    TRANSACTION_RECOVERY = "transaction_recovery"
    ACKED_IN_TRANSACTION = "acked_in_transaction"
    TRANSACTION_ABORTED = "transaction_aborted"
    IN_FLIGHT = "in_flight"
    AWAITS_REDELIVERY = "awaits_redelivery"
    READING = "reading"
    DISPATCH_STALL = "dispatch_stall"
    FLOWING = "flowing"
    EXPIRED = "expired"
    EVICTED = "evicted_by_quota"
    SKIPPED = "skipped"
    FILTERED = "filtered"
    ACKNOWLEDGED = "already_acknowledged"
    TRIMMED = "trimmed"
    COMPACTED_AWAY = "compacted_away"
    NOT_STORED = "not_stored"
    AFTER_CURSOR = "after_cursor"
    ENCRYPTED = "encrypted"
    POLICY_OVERRIDDEN = "policy_overridden"
    CONSUMER_REFUSED = "consumer_refused"
    # About publishing.
    PUBLISHING = "publishing"
    TOPIC_TERMINATED = "topic_terminated"
    QUOTA_HOLD = "quota_hold"
    QUOTA_EXCEPTION = "quota_exception"
    PUBLISH_RATE_LIMITED = "publish_rate_limited"
    ENCRYPTION_REQUIRED = "encryption_required"
    SCHEMA_INCOMPATIBLE = "schema_incompatible"
    PRODUCERS_CAP = "producers_cap"
    EXCLUSIVE_PRODUCER = "exclusive_producer"
    PRODUCER_FENCED = "producer_fenced"
    RIGHT_MISSING = "right_missing"
    BOOKIES_MISSING = "bookies_missing"
    PUBLISH_FAILED = "publish_failed"
    PRODUCER_REFUSED = "producer_refused"
    DELETED_AS_INACTIVE = "deleted_as_inactive"
    NOT_OFFLOADED = "not_offloaded"


MEANINGS: Final[dict[Code, str]] = {
    Code.TOPIC_MOVING: "This broker does not serve the topic now: it is being moved, closed or "
    "opened. Clients look it up again.",
    Code.TOPIC_UNREADABLE: "The topic's log cannot be opened: bookies or metadata do not answer.",
    Code.CURSOR_UNREADABLE: "The stored state of the subscription cannot be read. It keeps all "
    "messages of the topic.",
    Code.LEDGER_UNREADABLE: "An entry cannot be read. `missing_bookies` lists the bookies of its "
    "ledger that do not run.",
    Code.NO_CONSUMER: "No consumer is attached to the subscription.",
    Code.WRONG_INITIAL_POSITION: "The subscription was created behind the message (initial "
    "position Latest), so it never gets it.",
    Code.TERMINATED: "The topic is terminated and everything in it is acknowledged.",
    Code.CAUGHT_UP: "Every message is acknowledged: there is nothing to deliver.",
    Code.SWITCHING: "A Failover subscription is about to hand over to another consumer.",
    Code.STANDBY: "The other consumers of a Failover subscription stand by.",
    Code.UNACKED_CAP_CONSUMER: "Every consumer that could get messages has reached its cap of "
    "unacknowledged messages; it gets more when half of them are acknowledged.",
    Code.UNACKED_CAP_SUBSCRIPTION: "The consumers together have reached the subscription's cap of "
    "unacknowledged messages.",
    Code.UNACKED_CAP_BROKER: "The consumers of the broker together hold more unacknowledged "
    "messages than its cap, and those of the subscription more than their share.",
    Code.NO_PERMITS: "The consumers' receive queues are full: their applications take no messages.",
    Code.SLOW_CONNECTION: "The consumer's connection does not drain: network, or a client that "
    "does not read its socket.",
    Code.RATE_LIMITED: "A dispatch rate holds the subscription back. `level` says where it is set.",
    Code.DELAYED: "The delivery time of the message is still to come.",
    Code.HASH_DRAINING: "Key_Shared: the key's hash has a new owner, and its former owner still "
    "holds messages of it.",
    Code.KEY_HELD: "Key_Shared: the key belongs to a consumer that takes no messages now.",
    Code.NO_OWNER_OF_KEY: "Key_Shared with ranges chosen by the consumers: none has the key's "
    "hash.",
    Code.LOOK_AHEAD_FULL: "Key_Shared: so many messages wait for their consumers that the "
    "dispatcher reads no further.",
    Code.TRANSACTION_OPEN: "The message belongs to an open transaction, or is behind its first "
    "message.",
    Code.TRANSACTION_RECOVERY: "The topic was opened lately: its log is searched for open "
    "transactions, or their records cannot be read. `error`, `failed_attempts` and `since` say why "
    "and how long.",
    Code.ACKED_IN_TRANSACTION: "An open transaction has acknowledged the message; it comes again "
    "if that aborts.",
    Code.TRANSACTION_ABORTED: "The message belongs to an aborted transaction and is never "
    "delivered.",
    Code.IN_FLIGHT: "The message was delivered and is not acknowledged.",
    Code.AWAITS_REDELIVERY: "The message was returned and waits to be delivered again.",
    Code.READING: "The broker reads the messages from bookies or object storage.",
    Code.DISPATCH_STALL: "The consumer has permits and messages are readable, but nothing is "
    "dispatched: a fault of the broker. `state` is what to report.",
    Code.FLOWING: "Messages are being delivered.",
    Code.EXPIRED: "The message was older than the TTL, which acknowledged it.",
    Code.EVICTED: "A backlog quota with consumer_backlog_eviction has skipped the message.",
    Code.SKIPPED: "An administrator or a seek has moved the subscription past the message.",
    Code.FILTERED: "Entry filters reject the message: the subscription acknowledges it without "
    "delivering it.",
    Code.ACKNOWLEDGED: "The subscription has acknowledged the message.",
    Code.TRIMMED: "The message was deleted: every subscription had acknowledged it, and retention "
    "does not keep it.",
    Code.COMPACTED_AWAY: "The topic is compacted, and a later message has the same key; the "
    "consumer reads compacted.",
    Code.NOT_STORED: "The topic has no such message.",
    Code.AFTER_CURSOR: "The message comes after others that are not delivered yet.",
    Code.ENCRYPTED: "The producer has encrypted the message. A consumer without the key fails or "
    "discards it, which the broker cannot see.",
    Code.POLICY_OVERRIDDEN: "A topic's own policy overrides that of its namespace.",
    Code.CONSUMER_REFUSED: "A consumer was refused lately. `error` is the text that its client "
    "got.",
    Code.PUBLISHING: "Nothing refuses or delays producers now.",
    Code.TOPIC_TERMINATED: "The topic is terminated: it takes no messages any more.",
    Code.QUOTA_HOLD: "A backlog quota with producer_request_hold is exceeded: producers wait.",
    Code.QUOTA_EXCEPTION: "A backlog quota with producer_exception is exceeded: producers are "
    "refused.",
    Code.PUBLISH_RATE_LIMITED: "The publish rate holds messages back. `level` says where it is "
    "set.",
    Code.ENCRYPTION_REQUIRED: "A producer without encryption was refused.",
    Code.SCHEMA_INCOMPATIBLE: "A client's schema was refused.",
    Code.PRODUCERS_CAP: "The topic has its maximum of producers.",
    Code.EXCLUSIVE_PRODUCER: "A producer has exclusive access; others wait or are refused.",
    Code.PRODUCER_FENCED: "A producer was fenced: another one has taken the exclusive access.",
    Code.RIGHT_MISSING: "A client was refused because its role lacks a right.",
    Code.BOOKIES_MISSING: "Fewer bookies run than a ledger needs copies.",
    Code.PUBLISH_FAILED: "Messages could not be stored lately.",
    Code.PRODUCER_REFUSED: "A producer was refused lately. `error` is the text that its client "
    "got.",
    Code.DELETED_AS_INACTIVE: "This broker has deleted the topic because it was unused.",
    Code.NOT_OFFLOADED: "Closed ledgers are not offloaded; `why` gives the reason.",
}

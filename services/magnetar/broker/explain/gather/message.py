"""Gathers the state of one message, seen from a subscription."""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.metadata import sticky_key_of
from magnetar.broker.explain.gather.filters import rejected_message
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.gather.subscription import (
    open_in,
    subscription_state,
    with_bookies,
    with_records,
)
from magnetar.broker.explain.judge.delivery import SINGLE
from magnetar.broker.explain.state import (
    MessageState,
    ReadFailureState,
    SubscriptionState,
    TxnState,
)
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.policies.lifecycle import MESSAGE_TTL, RETENTION
from magnetar.transactions.model import TxnId
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

READ_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class MessageId:
    """An entry, and the index of a message in its batch; -1 means the whole entry."""

    position: Position
    batch_index: int = -1

    def __str__(self) -> str:
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        return f"{self.position}{batch}"

    @classmethod
    def parse(cls, text: str) -> "MessageId":
        """Reads `ledger:entry[:batch]`, or what clients print: `ledger:entry:partition:batch`."""
        parts = text.split(":")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if not 2 <= len(numbers) <= 4 or numbers[0] < 0 or numbers[1] < 0:
            raise PreconditionFailed(
                f"messageId {text!r} is not ledger:entry or ledger:entry:batch, such as 12:0 or "
                "12:0:3"
            )
        batch = numbers[-1] if len(numbers) > 2 else -1
        return cls(Position(numbers[0], numbers[1]), max(batch, -1))


async def message_state(
    parts: Parts, topic: PersistentTopic, subscription: PersistentSubscription, asked: MessageId
) -> tuple[SubscriptionState, MessageState]:
    """Returns the states of the subscription and of the message."""
    position = asked.position
    entry, failure = await _read(parts, topic, position)
    compacted = await _compacted_by(subscription, position)
    state = await subscription_state(parts, topic, subscription)
    # No await from here on, except for records: the parts of the answer must agree.
    message = _in_memory(topic, subscription, asked, state)
    message = replace(
        message,
        failure=failure,
        retention=parts.policy(topic.name, RETENTION),
        ttl=parts.policy(topic.name, MESSAGE_TTL),
    )
    if compacted is not None:
        message = replace(message, compacted_consumer=compacted[0], compaction_horizon=compacted[1])
    if entry is not None:
        message, state = _from_entry(topic, subscription, entry, message, state)
    (txn,) = await with_records(parts, (message.txn,)) if message.txn else (None,)
    return state, replace(message, txn=txn)


async def _read(
    parts: Parts, topic: PersistentTopic, position: Position
) -> tuple[Entry | None, ReadFailureState | None]:
    ledger = topic.managed_ledger
    if position.entry_id > ledger.index.last_entry_of(position.ledger_id):
        return None, None
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await ledger.read_entry(position), None
    except (MagnetarError, TimeoutError) as error:
        text = str(error) or f"no answer within {READ_TIMEOUT_S:g} s"
        return None, await with_bookies(parts, ReadFailureState(position, text, 1))


async def _compacted_by(
    subscription: PersistentSubscription, position: Position
) -> tuple[str, Position] | None:
    """Returns the consumer whose compacted log lacks the message, and its horizon."""
    for consumer in list(subscription.consumers):
        artifact = None if consumer.compacted is None else consumer.compacted.artifact
        if artifact is None or position > artifact.horizon:
            continue
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                rows = await artifact.read(position, 1, 1)
        except (MagnetarError, TimeoutError):
            return None
        if not rows or Position(*rows[0][:2]) != position:
            return consumer.label, artifact.horizon
    return None


def _in_memory(
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    asked: MessageId,
    state: SubscriptionState,
) -> MessageState:
    position, ledger, cursor = asked.position, topic.managed_ledger, subscription.cursor
    stored = position.entry_id <= ledger.index.last_entry_of(position.ledger_id)
    acked = cursor.is_acked(*position)
    left = cursor.remaining_batch(*position)
    if asked.batch_index >= 0 and left is not None and not acked:
        acked = not left >> asked.batch_index & 1
    ack_txn = _acked_by(subscription, position, state)
    holder, redeliveries = "", 0
    dispatcher = subscription.dispatcher
    waits = dispatcher is not None and dispatcher.waits(*position)
    if dispatcher is not None and not acked:
        redeliveries = dispatcher.redeliveries(*position)
        if ack_txn is None:
            holder = _holder(subscription, position, state)
    history = subscription.history
    after_ms, before_ms = (0, 0) if history is None else history.delivered(position)
    if redeliveries:
        after_ms = 0
    if holder and (redeliveries or not before_ms):
        before_ms = max(
            (consumer.last_consumed_ms for consumer in state.consumers if consumer.name == holder),
            default=0,
        )
    return MessageState(
        position=position,
        batch_index=asked.batch_index,
        stored=stored,
        trimmed=not stored and position <= ledger.trimmed_to,
        acked=acked,
        aborted=ledger.is_aborted(*position),
        ack_txn=None if acked else ack_txn,
        holder=holder,
        delivered_after_ms=after_ms,
        delivered_before_ms=before_ms,
        redeliveries=redeliveries,
        waits=waits,
        ahead=cursor.unacked_up_to(ledger.previous_position(position)),
        move=None if history is None else history.move_of(position),
    )


def _holder(
    subscription: PersistentSubscription, position: Position, state: SubscriptionState
) -> str:
    """Returns the consumer that the entry was delivered to, empty if it was not delivered."""
    for consumer in subscription.consumers:
        if consumer.held(*position):
            return consumer.label
    if state.type in SINGLE and not state.switching and position < state.read_position:
        return next((consumer.name for consumer in state.consumers if consumer.active), "")
    return ""


def _acked_by(
    subscription: PersistentSubscription, position: Position, state: SubscriptionState
) -> TxnState | None:
    """Returns the open transaction that has acknowledged the entry, None if none has."""
    pending = subscription.cursor.pending
    if pending is None:
        return None
    for txn, acks in pending.by_txn.items():
        upto = None if acks.cumulative is None else acks.cumulative[0]
        if position in acks.keys or (upto is not None and position <= upto):
            known = {
                (txn_state.most, txn_state.least): txn_state for txn_state in state.ack_transactions
            }
            return known.get(txn)
    return None


def _from_entry(
    topic: PersistentTopic,
    subscription: PersistentSubscription,
    entry: Entry,
    message: MessageState,
    state: SubscriptionState,
) -> tuple[MessageState, SubscriptionState]:
    """Adds what the entry's metadata says, and its key's hash."""
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return message, state
    if message.batch_index >= max(metadata.num_messages_in_batch, 1):
        raise PreconditionFailed(
            f"messageId {message.position}:{message.batch_index}: the entry has "
            f"{max(metadata.num_messages_in_batch, 1)} messages; their indexes count from 0"
        )
    message = replace(
        message,
        publish_ms=metadata.publish_time,
        producer=metadata.producer_name,
        messages=max(metadata.num_messages_in_batch, 1),
        encryption_keys=tuple(key.key for key in metadata.encryption_keys),
        delayed_until_ms=metadata.deliver_at_time if subscription.delays(message.position) else 0,
        txn=_transaction_of(topic, metadata.txnid_most_bits, metadata.txnid_least_bits)
        if metadata.HasField("txnid_most_bits")
        else None,
    )
    rejected = rejected_message(subscription, entry, message.batch_index)
    if rejected is not None:
        properties = tuple(sorted(rejected.properties.items()))
        message = replace(message, filtered=True, key=rejected.key, properties=properties)
    dispatcher = subscription.dispatcher
    if isinstance(dispatcher, KeySharedDispatcher):
        sticky_hash = dispatcher.selector.hash_of(sticky_key_of(entry))
        message = replace(message, sticky_hash=sticky_hash)
        if all(facts.sticky_hash != sticky_hash for facts in state.hashes):
            facts = dispatcher.hash_facts(sticky_hash)
            state = replace(state, hashes=(*state.hashes, facts))
    return message, state


def _transaction_of(topic: PersistentTopic, most: int, least: int) -> TxnState | None:
    """Returns the transaction if it is open here."""
    if not topic.transactional:
        return None
    return open_in(topic, TxnId(most, least))

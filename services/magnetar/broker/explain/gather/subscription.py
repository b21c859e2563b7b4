"""Gathers the state of a subscription.

`snapshot` reads memory only, in one turn of the loop, so its parts agree. `subscription_state` adds
what metadata has: the owners of transactions, and the bookies of an unreadable ledger. Such a read
that fails leaves its fields empty: an answer with less evidence is better than none.
"""

from dataclasses import replace
from typing import Final

from magnetar.broker.dispatch.facts import DispatchFacts
from magnetar.broker.dispatch.reader import ReadFailure
from magnetar.broker.explain.gather.filters import filter_state
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.state import (
    BROKER_CAP,
    SHARED_RATE,
    ConsumerState,
    PolicyValue,
    RateState,
    ReadFailureState,
    RecoveryState,
    SubscriptionState,
    TxnState,
)
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.transactions.attempts import Attempts
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.policies import caps, rates
from magnetar.transactions.model import TxnId

TRANSACTIONS_MAX: Final = 20
"""Open transactions whose records are read for one answer."""


def snapshot(
    parts: Parts, topic: PersistentTopic, subscription: PersistentSubscription
) -> SubscriptionState:
    """Returns the state in memory, at this moment."""
    ledger, cursor = topic.managed_ledger, subscription.cursor
    index, visible = ledger.index, ledger.last_visible
    dispatcher = subscription.dispatcher
    facts = DispatchFacts() if dispatcher is None else dispatcher.facts()
    before_read = ledger.previous_position(cursor.read_position)
    delivered = cursor.unacked_up_to(min(before_read, visible))
    record = None if cursor.log is None else cursor.log.record
    initial = None if record is None else record.initial
    passed = 0 if initial is None else ledger.entries_between(ledger.first_position, initial)
    failure = facts.failure
    return SubscriptionState(
        topic=topic.name,
        name=subscription.name,
        now_ms=parts.clock.now_ms(),
        serving=topic.serving and not subscription.closed,
        durable=subscription.durable,
        type="None" if subscription.type is None else subscription.type.name,
        terminated_at=ledger.terminated_at,
        created_ms=0 if record is None else record.created_ms,
        initial=initial,
        backlog=cursor.backlog,
        mark_delete=cursor.mark_delete,
        next_unacked=cursor.oldest_unacked,
        read_position=cursor.read_position,
        first_stored=ledger.first_position,
        last_confirmed=ledger.last_confirmed,
        last_visible=visible,
        horizon=ledger.horizon,
        stored_entries=index.entries,
        stored_before_creation=passed,
        consumers=tuple(_consumer(consumer, facts.active) for consumer in subscription.consumers),
        switching=facts.switching,
        suspended=subscription.suspended,
        buffered=facts.buffered,
        reading=facts.reading,
        turn_due=facts.turn_due,
        waiting=facts.waiting,
        parked=facts.parked,
        delivered=delivered,
        unread=max(0, cursor.unacked_up_to(visible) - delivered - facts.buffered),
        delayed=subscription.delayed_count,
        next_delivery_ms=_next_delivery_ms(topic),
        unacked=facts.unacked,
        blocked=facts.blocked,
        consumer_cap=parts.policy(topic.name, caps.MAX_UNACKED_PER_CONSUMER),
        subscription_cap=_subscription_cap(parts, topic, subscription),
        hashes=facts.hashes,
        look_ahead_max=facts.look_ahead_max,
        rate=_rate(parts, topic, subscription),
        failure=None if failure is None else _failure(failure),
        transactions=_open(topic),
        recovery=_scan(topic),
        ack_transactions=_acking(subscription),
        refusals=parts.refusals.of(topic.full_name),
        filters=filter_state(parts, topic, subscription),
        dump=subscription.state(),
    )


def broken(parts: Parts, topic: PersistentTopic, name: str) -> SubscriptionState:
    """Returns the state of a subscription whose cursor cannot be read."""
    return SubscriptionState(
        topic=topic.name,
        name=name,
        now_ms=parts.clock.now_ms(),
        serving=topic.serving,
        cursor_error=topic.broken_subscriptions[name].message,
        last_confirmed=topic.managed_ledger.last_confirmed,
        refusals=parts.refusals.of(topic.full_name),
    )


async def subscription_state(
    parts: Parts, topic: PersistentTopic, subscription: PersistentSubscription
) -> SubscriptionState:
    """Returns the state, with what metadata says about its transactions and ledgers."""
    state = snapshot(parts, topic, subscription)
    failure = state.failure
    return replace(
        state,
        failure=None if failure is None else await with_bookies(parts, failure),
        recovery=await _with_bookies_of_scan(parts, state.recovery),
        transactions=await with_records(parts, state.transactions),
        ack_transactions=await with_records(parts, state.ack_transactions),
    )


def _consumer(consumer: Consumer, active: str | None) -> ConsumerState:
    ledger_id = min(consumer.pending, default=-1)
    oldest = None if ledger_id < 0 else Position(ledger_id, min(consumer.pending[ledger_id]))
    return ConsumerState(
        consumer.label,
        address=consumer.sink.address,
        client_version=consumer.sink.client_version,
        connected_ms=consumer.connected_since_ms,
        permits=consumer.permits,
        unacked=consumer.unacked,
        blocked=consumer.blocked,
        writable=consumer.sink.writable,
        active=active is None or consumer.label == active,
        last_flow_ms=consumer.last_flow_ms,
        last_consumed_ms=consumer.last_consumed_ms,
        last_acked_ms=consumer.last_acked_ms,
        pending_entries=consumer.pending_count,
        oldest_pending=oldest,
    )


def _subscription_cap(
    parts: Parts, topic: PersistentTopic, subscription: PersistentSubscription
) -> PolicyValue:
    """Returns the cap in force: the policy's, or a smaller share of the broker's."""
    policy = parts.policy(topic.name, caps.MAX_UNACKED_PER_SUBSCRIPTION)
    limit = subscription.limits.max_unacked_per_subscription
    return policy if limit == policy.value else PolicyValue(BROKER_CAP, limit, "broker")


def _rate(
    parts: Parts, topic: PersistentTopic, subscription: PersistentSubscription
) -> RateState | None:
    """Returns the rate without tokens, None if none holds the subscription back."""
    throttle = subscription.throttle
    if throttle is None or throttle.is_free or not throttle.needed:
        return None
    for limiter in throttle.limiters:
        if not limiter.waiting and limiter.may_go():
            continue
        policy = PolicyValue(SHARED_RATE, None, "broker")
        if limiter is throttle.own:
            policy = parts.policy(topic.name, rates.SUBSCRIPTION_DISPATCH_RATE)
        elif limiter is throttle.topic:
            policy = parts.policy(topic.name, rates.DISPATCH_RATE)
        out_of = "bytes" if limiter.out_of_bytes else "messages"
        return RateState(policy, out_of, limiter.waiting)
    return None


def _next_delivery_ms(topic: PersistentTopic) -> int:
    schedule = None if topic.delays is None else topic.delays.schedule
    return 0 if schedule is None else schedule.next_ms or 0


def _failure(failure: ReadFailure) -> ReadFailureState:
    return ReadFailureState(failure.position, failure.error, failure.attempts)


def _scan(topic: PersistentTopic) -> RecoveryState | None:
    scan = topic.transactions.scan if topic.transactional else None
    if scan is None:
        return None
    failed = ReadFailureState(scan.at, scan.error, scan.failures) if scan.failures else None
    return replace(_recovery(scan), read=failed)


async def _with_bookies_of_scan(
    parts: Parts, recovery: RecoveryState | None
) -> RecoveryState | None:
    if recovery is None or recovery.read is None:
        return recovery
    return replace(recovery, read=await with_bookies(parts, recovery.read))


def _recovery(attempts: Attempts | None) -> RecoveryState:
    if attempts is None:  # it begins in the next turn of the loop
        return RecoveryState()
    return RecoveryState(attempts.began_ms, attempts.failures, attempts.error, attempts.failed_ms)


def _open(topic: PersistentTopic) -> tuple[TxnState, ...]:
    if not topic.transactional:
        return ()
    opened = topic.transactions.buffer.open
    states = [open_in(topic, txn) for txn, open_txn in opened.items() if open_txn.first is not None]
    return tuple(sorted(filter(None, states), key=lambda state: state.first or EARLIEST))


def open_in(topic: PersistentTopic, txn: TxnId) -> TxnState | None:
    """Returns a transaction with messages in the topic, None if it is not open there."""
    transactions = topic.transactions
    if (opened := transactions.buffer.get(txn)) is None:
        return None
    recovery = None if opened.looked_up else _recovery(transactions.lookups)
    return TxnState(*txn, first=opened.first, deadline_ms=opened.deadline_ms, recovery=recovery)


def _acking(subscription: PersistentSubscription) -> tuple[TxnState, ...]:
    pending = subscription.cursor.pending
    if pending is None:
        return ()
    transactions = subscription.transactions
    looked_up = _recovery(transactions.lookups)
    return tuple(
        TxnState(
            *txn,
            acked_entries=len(set(acks.keys)) + (acks.cumulative is not None),
            recovery=None if transactions.is_looked_up(TxnId(*txn)) else looked_up,
        )
        for txn, acks in pending.by_txn.items()
    )


async def with_bookies(parts: Parts, failure: ReadFailureState) -> ReadFailureState:
    """Adds the bookies of the ledger, and those of them that do not run."""
    client = parts.ledgers.client
    try:
        metadata = await client.describe(failure.position.ledger_id)
    except (MagnetarError, TimeoutError):
        return failure
    running = {info.identity for info in client.living()}
    entry_id = max(failure.position.entry_id, 0)
    ensemble = [part for part in metadata.ensembles if part.first_entry <= entry_id][-1:]
    bookies = ensemble[0].bookies if ensemble else ()
    return replace(
        failure,
        ensemble=tuple(bookie.bookie_id for bookie in bookies),
        missing=tuple(bookie.bookie_id for bookie in bookies if bookie not in running),
        write_quorum=metadata.write_quorum,
    )


async def with_records(parts: Parts, transactions: tuple[TxnState, ...]) -> tuple[TxnState, ...]:
    """Adds what the records of the first TRANSACTIONS_MAX transactions say."""
    read = [await _with_record(parts, txn) for txn in transactions[:TRANSACTIONS_MAX]]
    return (*read, *transactions[TRANSACTIONS_MAX:])


async def _with_record(parts: Parts, txn: TxnState) -> TxnState:
    try:
        record = await parts.records.record(TxnId(txn.most, txn.least))
    except (MagnetarError, TimeoutError):
        return txn
    if record is None:
        return replace(txn, state="ended")
    return replace(
        txn,
        opened_ms=record.opened_ms,
        deadline_ms=record.deadline_ms,
        owner=record.owner,
        state=record.state.value,
    )

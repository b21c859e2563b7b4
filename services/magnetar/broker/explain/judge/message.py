"""Why one message is not delivered to a subscription. Pure: the first finding is the reason.

What has happened to the message itself comes first: it was deleted, acknowledged, aborted or
delivered. If it only waits, the reasons of the whole subscription follow.
"""

from collections.abc import Iterator

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import finding, policy_evidence, time
from magnetar.broker.explain.judge import delays, filters, keys, transactions
from magnetar.broker.explain.judge.delivery import judge_subscription, wrong_position
from magnetar.broker.explain.judge.readers import unreadable
from magnetar.broker.explain.state import MessageState, SubscriptionState
from magnetar.core.ids import Position
from magnetar.documents.explain import Evidence, Finding, utc


def judge_message(state: SubscriptionState, message: MessageState) -> list[Finding]:
    """Returns the reasons why the message is not delivered now; at least one."""
    final = [*_gone(state, message)] or [*_passed(state, message)]
    if final:
        return [*final, *_notes(message)]
    if state.serving and not state.cursor_error and state.consumers:
        if message.holder:
            return [_held(state, message), *_notes(message)]
        own = [*_waits(state, message)]
    else:
        own = []
    known = {cause.code for cause in own} | _of_others(state, message)
    causes = judge_subscription(state)
    # At least one stays: without an own reason, that of the subscription is the answer.
    findings = own + [cause for cause in causes if cause.code not in known] or causes
    if message.ahead and not own:
        findings.append(_after(state, message))
    return [*findings, *_notes(message)]


def _of_others(state: SubscriptionState, message: MessageState) -> set[Code]:
    """Returns the reasons of the subscription that hold other messages back, and not this one."""
    codes = {Code.DELAYED, Code.ACKED_IN_TRANSACTION}
    if message.position != state.next_unacked:
        codes.add(Code.IN_FLIGHT)
    if state.horizon is None or message.position < state.horizon:
        codes |= {Code.TRANSACTION_OPEN, Code.TRANSACTION_RECOVERY}
    return codes


def _name(message: MessageState) -> str:
    batch = f":{message.batch_index}" if message.batch_index >= 0 else ""
    return f"{message.position}{batch}"


def _basics(message: MessageState) -> Evidence:
    return {
        "published": time(message.publish_ms),
        "producer": message.producer or None,
        "messages_in_entry": message.messages,
    }


def _gone(state: SubscriptionState, message: MessageState) -> Iterator[Finding]:
    """The topic has no such message (any more)."""
    if message.trimmed:
        if message.compacted_consumer:
            return
        yield finding(
            Code.TRIMMED,
            f"Message {_name(message)} was deleted: every subscription had acknowledged it, and "
            "retention does not keep it.",
            {
                "first_stored": str(state.first_stored),
                **policy_evidence(message.retention),
            },
            steps.advise(
                "It cannot come back. To keep acknowledged messages, set a retention: pulsar-admin "
                f"namespaces set-retention {state.topic.namespace} --time 7d --size 10G."
            ),
        )
    elif not message.stored:
        yield finding(
            Code.NOT_STORED,
            f"The topic has no message {_name(message)}; its last one is {state.last_confirmed}.",
            {"last_message": str(state.last_confirmed), "first_stored": str(state.first_stored)},
            steps.advise(
                "See the id that the producer got for the message. A message of a partition has "
                "its id there: ask about the partition."
            ),
        )


_CAUSES = {
    "expired": (Code.EXPIRED, "was older than the TTL and was acknowledged by it"),
    "evicted": (Code.EVICTED, "was skipped by a backlog quota"),
    "skipped": (Code.SKIPPED, "was skipped by an administrator"),
    "seek": (Code.SKIPPED, "was skipped by a seek or a reset of the cursor"),
}


def _passed(state: SubscriptionState, message: MessageState) -> Iterator[Finding]:
    """The subscription is done with the message, or will never get it."""
    if message.aborted:
        yield finding(
            Code.TRANSACTION_ABORTED,
            f"Message {_name(message)} belongs to an aborted transaction: no consumer gets it.",
            _basics(message),
            steps.advise("Publish it again, in a transaction that is committed."),
        )
    elif message.compacted_consumer:
        yield finding(
            Code.COMPACTED_AWAY,
            f"Consumer {message.compacted_consumer} reads compacted, and {_name(message)} was "
            "compacted away: a later message has its key, or it has none.",
            {
                **_basics(message),
                "consumer": message.compacted_consumer,
                "compacted_up_to": str(message.compaction_horizon),
            },
            steps.advise(
                "The compacted topic has the last value of each key only. To get every message, "
                "read without readCompacted, as far as the topic still holds them."
            ),
        )
    elif message.acked:
        yield _acknowledged(state, message)
    elif state.filters is not None and message.filtered and _is_to_be_judged(message):
        yield filters.rejected(state, message, state.filters, _name(message))


def _is_to_be_judged(message: MessageState) -> bool:
    """Whether entry filters will judge the message; one that has passed is not judged again."""
    return not (message.holder or message.waits or message.redeliveries)


def _acknowledged(state: SubscriptionState, message: MessageState) -> Finding:
    move = message.move
    again = steps.reset_cursor(
        state.topic,
        state.name,
        message.position,
        "To get it again, with all later messages, move the subscription back:",
    )
    if move is not None:
        code, what = _CAUSES[move.cause]
        evidence = {
            **_basics(message),
            "at": utc(move.at_ms),
            "up_to": str(move.upto),
            **policy_evidence(message.ttl if code is Code.EXPIRED else None),
        }
        summary = f"Message {_name(message)} {what} at {utc(move.at_ms)}, up to {move.upto}."
        return finding(code, summary, evidence, again, move.at_ms)
    if state.initial is not None and message.position <= state.initial:
        before = wrong_position(state)
        before.summary = (
            f"Subscription {state.name} was created behind message {_name(message)}, at "
            f"{state.initial}: it never got it."
        )
        before.evidence |= _basics(message)
        before.next_step = again
        return before
    if message.filtered and state.filters is not None:
        return filters.rejected(state, message, state.filters, _name(message))
    return finding(
        Code.ACKNOWLEDGED,
        f"Subscription {state.name} has acknowledged message {_name(message)}.",
        {**_basics(message), "mark_delete": str(state.mark_delete)},
        again,
    )


def _waits(state: SubscriptionState, message: MessageState) -> Iterator[Finding]:
    """The message was not delivered, for a reason of its own."""
    if message.failure is not None:
        yield unreadable(state.topic, message.failure)
    if message.ack_txn is not None:
        yield transactions.acked(message.ack_txn)
        return
    if state.horizon is not None and message.position >= state.horizon:
        if state.recovery is not None:
            yield transactions.recovery(state, state.recovery)
            return
        blocking = message.txn or next(iter(state.transactions), None)
        if blocking is not None:
            yield transactions.open_transaction(state, blocking, message.position)
        if message.delayed_until_ms:
            yield delays.delayed(state, message)
        return
    if message.delayed_until_ms:
        yield delays.delayed(state, message)
        return
    for facts in state.hashes:
        if facts.sticky_hash == message.sticky_hash and message.sticky_hash:
            reason = keys.hash_finding(state, facts)
            if reason is not None:
                yield reason
                return
    if message.waits:
        yield finding(
            Code.AWAITS_REDELIVERY,
            f"Message {_name(message)} waits to be delivered"
            + (f" again, for the {message.redeliveries}. time." if message.redeliveries else "."),
            {**_basics(message), "redelivery_count": message.redeliveries},
            steps.advise("See the other findings: they say why its consumers take nothing."),
        )


def _held(state: SubscriptionState, message: MessageState) -> Finding:
    holder = next(
        (consumer for consumer in state.consumers if consumer.name == message.holder), None
    )
    after, before = message.delivered_after_ms, message.delivered_before_ms
    when = f" before {utc(before)}" if before else ""
    if after and before:
        when = f" between {utc(after)} and {utc(before)}"
    return finding(
        Code.IN_FLIGHT,
        f"Message {_name(message)} was delivered to consumer {message.holder}{when}, and is not "
        "acknowledged.",
        {
            **_basics(message),
            "consumer": message.holder,
            "address": None if holder is None else holder.address,
            "delivered_after": time(after),
            "delivered_before": time(before),
            "redelivery_count": message.redeliveries,
            "last_ack": None if holder is None else time(holder.last_acked_ms),
        },
        steps.unload(
            state.topic,
            f"See why the application of {message.holder} does not acknowledge it. To have it "
            "delivered again, restart the consumer, or disconnect all clients of the topic:",
        ),
        after,
    )


def _after(state: SubscriptionState, message: MessageState) -> Finding:
    return finding(
        Code.AFTER_CURSOR,
        f"{message.ahead} unacknowledged entries come before message {_name(message)}.",
        {
            **_basics(message),
            "entries_ahead": message.ahead,
            "read_position": str(state.read_position),
        },
        steps.advise("It comes after them; the other findings say why they wait."),
    )


def _notes(message: MessageState) -> Iterator[Finding]:
    """What may also matter, and the broker cannot know."""
    if message.encryption_keys:
        names = ", ".join(message.encryption_keys)
        yield finding(
            Code.ENCRYPTED,
            f"The producer {message.producer} has encrypted message {_name(message)} with the keys "
            f"{names}; a consumer without one of them fails or discards it.",
            {
                "keys": list(message.encryption_keys),
                "producer": message.producer,
                "position": str(Position(*message.position)),
            },
            steps.advise(
                "Give the consumers the private key (CryptoKeyReader). Their cryptoFailureAction "
                "says what they do without: FAIL, DISCARD (acknowledges it) or CONSUME."
            ),
        )

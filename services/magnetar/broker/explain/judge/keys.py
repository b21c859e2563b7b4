"""Key_Shared: hashes that drain, or whose consumer takes nothing now. Pure."""

from collections.abc import Iterator

from magnetar.broker.dispatch.facts import HashFacts
from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import finding, time
from magnetar.broker.explain.state import ConsumerState, SubscriptionState
from magnetar.documents.explain import Evidence, Finding

KEY_SHARED = "Key_Shared"


def deliverable(state: SubscriptionState) -> bool:
    """Whether some message that the dispatcher has, or may read, has a consumer that takes it."""
    if state.type != KEY_SHARED:
        return True
    if any(_holds(state, facts) is None for facts in state.hashes if facts.waiting):
        return True
    return bool(state.unread + state.buffered) and state.waiting < state.look_ahead_max


def blocking(state: SubscriptionState) -> Iterator[Finding]:
    """Yields a finding for each hash that waits, and one if too many messages wait."""
    if state.type != KEY_SHARED:
        return
    for facts in state.hashes:
        if facts.waiting and (reason := _holds(state, facts)) is not None:
            yield reason
    if state.waiting >= state.look_ahead_max > 0:
        yield finding(
            Code.LOOK_AHEAD_FULL,
            f"{state.waiting} messages wait for their consumers, so the dispatcher reads no "
            "further.",
            {"waiting": state.waiting, "look_ahead_max": state.look_ahead_max},
            steps.advise(
                "Have the consumers named here acknowledge or take messages; close those that do "
                "not."
            ),
        )


def hash_finding(state: SubscriptionState, facts: HashFacts) -> Finding | None:
    """Returns what holds one hash back, None if its consumer takes messages."""
    return _holds(state, facts)


def _holds(state: SubscriptionState, facts: HashFacts) -> Finding | None:
    evidence: Evidence = {
        "hash": facts.sticky_hash,
        "oldest": None if facts.head is None else str(facts.head),
        "waiting": facts.waiting,
        "owner": facts.owner,
    }
    if facts.holder is not None:
        return _draining(state, facts, evidence)
    if facts.owner is None:
        return finding(
            Code.NO_OWNER_OF_KEY,
            f"No consumer has the key hash {facts.sticky_hash}; {facts.waiting} messages wait.",
            evidence,
            steps.advise(
                "Start a consumer whose ranges (KeySharedPolicy sticky ranges) contain the hash."
            ),
        )
    owner = next((consumer for consumer in state.consumers if consumer.name == facts.owner), None)
    if owner is None or owner.available:
        return None
    return _held(owner, facts, evidence)


def _draining(state: SubscriptionState, facts: HashFacts, evidence: Evidence) -> Finding:
    holder = next((consumer for consumer in state.consumers if consumer.name == facts.holder), None)
    evidence |= {
        "holder": facts.holder,
        "holder_address": None if holder is None else holder.address,
        "held_entries": facts.held_entries,
        "blocked_attempts": facts.blocked_attempts,
    }
    return finding(
        Code.HASH_DRAINING,
        f"Key hash {facts.sticky_hash} moved to {facts.owner}, but {facts.holder} still holds "
        f"{facts.held_entries} entries of it; {facts.waiting} messages wait for their order.",
        evidence,
        steps.unload(
            state.topic,
            f"Have {facts.holder} acknowledge, or close it. If it hangs, disconnect all clients of "
            "the topic; its messages are then delivered again:",
        ),
        facts.since_ms,
    )


def _held(owner: ConsumerState, facts: HashFacts, evidence: Evidence) -> Finding:
    why = "takes no permits"
    if owner.blocked:
        why = f"holds {owner.unacked} unacknowledged messages, its cap"
    elif owner.permits > 0:
        why = "has a connection that does not drain"
    evidence |= {
        "owner_address": owner.address,
        "permits": owner.permits,
        "unacked_messages": owner.unacked,
        "last_delivery": time(owner.last_consumed_ms),
        "last_ack": time(owner.last_acked_ms),
    }
    return finding(
        Code.KEY_HELD,
        f"Key hash {facts.sticky_hash} belongs to {owner.name}, which {why}; {facts.waiting} "
        "messages wait.",
        evidence,
        steps.advise(
            f"See what the application of {owner.name} at {owner.address} does, or close it: its "
            "keys then move to the other consumers."
        ),
        owner.last_consumed_ms or owner.connected_ms,
    )

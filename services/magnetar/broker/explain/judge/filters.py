"""Messages that entry filters reject. Pure."""

from collections.abc import Iterable, Iterator

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import finding, policy_evidence
from magnetar.broker.explain.state import FilterState, MessageState, SubscriptionState
from magnetar.documents.explain import Evidence, Finding, NextStep
from magnetar.policies.filters import ENTRY_FILTERS


def rejected_all(state: SubscriptionState) -> Iterator[Finding]:
    """Yields the reason if the filters have rejected all messages that they judged."""
    if state.filters is not None and state.filters.rejected and not state.filters.accepted:
        yield _counted(state, state.filters)


def rejected_some(state: SubscriptionState) -> Iterator[Finding]:
    """Yields what contributes if the filters have rejected some of the messages."""
    if state.filters is not None and state.filters.rejected and state.filters.accepted:
        yield _counted(state, state.filters)


def _counted(state: SubscriptionState, filters: FilterState) -> Finding:
    judged = filters.accepted + filters.rejected
    return finding(
        Code.FILTERED,
        f"The entry filters of subscription {state.name} have rejected {filters.rejected} of the "
        f"{judged} messages that they judged: those are acknowledged and not delivered.",
        {**_evidence(filters), "judged_messages": judged, "rejected_messages": filters.rejected},
        _step(state, filters),
    )


def rejected(
    state: SubscriptionState, message: MessageState, filters: FilterState, name: str
) -> Finding:
    """Returns the finding for a message that the filters reject."""
    what = (
        "acknowledged it instead of delivering it"
        if message.acked
        else "acknowledge it instead of delivering it, when its turn comes"
    )
    return finding(
        Code.FILTERED,
        f"The entry filters of subscription {state.name} reject message {name}: they {what}.",
        {
            **_evidence(filters),
            "acknowledged": message.acked,
            "message_key": message.key,
            "message_properties": _texts(message.properties),
        },
        _step(state, filters),
    )


def _evidence(filters: FilterState) -> Evidence:
    return {
        "filters": list(filters.names),
        "policy_parameters": _texts(filters.parameters),
        "subscription_parameters": _texts(filters.properties),
        **policy_evidence(filters.policy),
    }


def _texts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name}: {value}" for name, value in pairs]


def _step(state: SubscriptionState, filters: FilterState) -> NextStep:
    return steps.remove_policy(
        state.topic,
        ENTRY_FILTERS,
        filters.policy.level,
        "Compare the parameters with the properties and the key of the message. They are in the "
        "policy and in the subscription's properties (pulsar-admin topics get-subscription-"
        "properties). To deliver later messages without filters, remove the policy:",
    )

"""Messages whose delivery time is still to come. Pure."""

from collections.abc import Iterator

from magnetar.broker.explain import steps
from magnetar.broker.explain.codes import Code
from magnetar.broker.explain.finding import finding
from magnetar.broker.explain.state import MessageState, SubscriptionState
from magnetar.documents.explain import Finding, NextStep, utc


def blocking(state: SubscriptionState) -> Iterator[Finding]:
    """Yields the reason if nothing but delayed messages is left to deliver."""
    if not state.delayed or state.readable:
        return
    yield finding(
        Code.DELAYED,
        f"{state.delayed} of the {state.backlog} entries that subscription {state.name} has not "
        f"acknowledged are delayed; the topic's next delivery time is "
        f"{utc(state.next_delivery_ms)}.",
        {
            "delayed_entries": state.delayed,
            "next_delivery": utc(state.next_delivery_ms),
            "backlog": state.backlog,
        },
        _now(state),
    )


def delayed(state: SubscriptionState, message: MessageState) -> Finding:
    """Returns the finding for a delayed message."""
    at = utc(message.delayed_until_ms)
    return finding(
        Code.DELAYED,
        f"Message {message.position} is delayed until {at}, as its producer wanted.",
        {"delivery_time": at},
        _now(state),
    )


def _now(state: SubscriptionState) -> NextStep:
    return steps.deliver_delayed(
        state.topic,
        "Wait. To have all delayed messages of the topic delivered now, switch its delayed "
        "delivery off; later messages are then delivered at once, too:",
    )

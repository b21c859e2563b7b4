"""Next steps: what to do, the command of `pulsar-admin`, and the request that it sends."""

import shlex
from typing import Final
from urllib.parse import quote

from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, TopicName
from magnetar.documents.explain import NextStep
from magnetar.policies.policy import Policy, Rest

_POLICY_COMMANDS: Final = {
    "max_unacked_per_consumer": "max-unacked-messages-per-consumer",
    "max_unacked_per_subscription": "max-unacked-messages-per-subscription",
    "dispatch_rate": "dispatch-rate",
    "subscription_dispatch_rate": "subscription-dispatch-rate",
    "publish_rate": "publish-rate",
    "max_producers": "max-producers",
    "max_consumers": "max-consumers",
    "max_consumers_per_subscription": "max-consumers-per-subscription",
    "entry_filters": "entry-filters-per-topic",
}
"""The part of a policy's commands after `set-` and `remove-`, in `pulsar-admin topicPolicies`."""
_ON_NAMESPACES: Final = {
    "max_producers": "max-producers-per-topic",
    "max_consumers": "max-consumers-per-topic",
    "entry_filters": "entry-filters",
}
"""The same in `pulsar-admin namespaces`, where it differs."""


def topic_path(topic: TopicName) -> str:
    """Returns the topic's path in the admin REST."""
    return f"/admin/v2/{topic.domain}/{topic.tenant}/{topic.namespace_local}/{topic.encoded_local}"


def _admin(*words: object) -> str:
    return shlex.join(["pulsar-admin", *map(str, words)])


def advise(text: str) -> NextStep:
    """Returns a step without a command."""
    return NextStep(text)


def unload(topic: TopicName, text: str) -> NextStep:
    """Unloads the topic: all clients reattach, and unacknowledged messages come again."""
    return NextStep(text, _admin("topics", "unload", topic), "PUT", topic_path(topic) + "/unload")


def consume(topic: TopicName, subscription: str) -> NextStep:
    """Attaches a consumer."""
    command = shlex.join(["pulsar-client", "consume", "-s", subscription, "-n", "0", str(topic)])
    return NextStep(
        "Start a consumer of the subscription. If nobody needs the subscription, delete it "
        f"(pulsar-admin topics unsubscribe -s {shlex.quote(subscription)} {topic}): it keeps all "
        "its messages.",
        command,
    )


def reset_cursor(
    topic: TopicName, subscription: str, position: Position | None, text: str
) -> NextStep:
    """Moves the subscription back to a message; None: to the earliest."""
    where = "earliest" if position is None else str(position)
    at = Position(-1, -1) if position is None else position
    return NextStep(
        text,
        _admin("topics", "reset-cursor", "-s", subscription, "-m", where, topic),
        "POST",
        f"{topic_path(topic)}/subscription/{_segment(subscription)}/resetcursor",
        {"ledgerId": at.ledger_id, "entryId": at.entry_id},
    )


def skip_all(topic: TopicName, subscription: str, text: str) -> NextStep:
    """Acknowledges the whole backlog of a subscription."""
    return NextStep(
        text,
        _admin("topics", "clear-backlog", "-s", subscription, topic),
        "POST",
        f"{topic_path(topic)}/subscription/{_segment(subscription)}/skip_all",
    )


def delete_subscription(topic: TopicName, subscription: str, text: str) -> NextStep:
    """Deletes a subscription."""
    return NextStep(
        text,
        _admin("topics", "unsubscribe", "-s", subscription, topic),
        "DELETE",
        f"{topic_path(topic)}/subscription/{_segment(subscription)}",
    )


def abort(most: int, least: int, text: str) -> NextStep:
    """Aborts a transaction."""
    return NextStep(
        text,
        _admin("transactions", "abort-transaction", "-m", most, "-l", least),
        "POST",
        f"/admin/v3/transactions/abortTransaction/{most}/{least}",
    )


def raise_cap(topic: TopicName, policy: Policy, cap: int, text: str) -> NextStep:
    """Doubles a cap for this topic; the topic's own value precedes all others."""
    assert policy.topic is not None  # noqa: S101 - all caps can be set on a topic
    value = max(cap, 1) * 2
    flag = "-c" if policy.name.startswith("max_consumers") else "-m"
    if policy.name == "max_producers":
        flag = "-p"
    return NextStep(
        text,
        _admin("topicPolicies", f"set-{_POLICY_COMMANDS[policy.name]}", flag, value, topic),
        policy.topic.set_verb,
        f"{topic_path(topic)}/{policy.topic.setting_path}",
        value,
    )


def remove_policy(topic: TopicName, policy: Policy, level: str, text: str) -> NextStep:
    """Removes a policy where it is set: from the topic or from its namespace."""
    command = _POLICY_COMMANDS[policy.name]
    if level == "topic":
        rest, where, group = policy.topic, topic_path(topic), "topicPolicies"
        target: object = topic
    elif level == "namespace":
        namespace = topic.namespace
        rest, where, group = policy.namespace, namespace_path(namespace), "namespaces"
        target, command = namespace, _ON_NAMESPACES.get(policy.name, command)
    else:
        return NextStep(
            f"{text} It is a setting of the brokers: {policy.broker_setting} "
            f"(magnetar config explain {policy.broker_setting.partition(',')[0]})."
        )
    assert isinstance(rest, Rest)  # noqa: S101 - the policy has a value at this level
    return NextStep(
        text,
        _admin(group, f"remove-{command}", target),
        rest.remove_verb,
        f"{where}/{rest.removing_path}",
    )


def grant(topic: TopicName, role: str, action: str) -> NextStep:
    """Grants a role an action on the topic."""
    if not role:
        return NextStep("The client has no role: give it credentials.")
    return NextStep(
        f"Grant the role {role} the action {action} on the topic, or on its namespace:",
        _admin("topics", "grant-permission", "-r", role, "-a", action, topic),
        "POST",
        f"{topic_path(topic)}/permissions/{_segment(role)}",
        [action],
    )


def schema(topic: TopicName) -> NextStep:
    """Shows the topic's schema, to compare it with the client's."""
    return NextStep(
        "Compare the client's schema with the topic's. Change the client's so that it is "
        "compatible, or change the strategy of the namespace (pulsar-admin namespaces "
        f"set-schema-compatibility-strategy {topic.namespace}).",
        _admin("schemas", "get", topic),
        "GET",
        f"/admin/v2/schemas/{topic.tenant}/{topic.namespace_local}/{topic.encoded_local}/schema",
    )


def check_ledger(ledger: int, text: str) -> NextStep:
    """Checks the copies of one ledger."""
    return NextStep(text, shlex.join(["magnetar", "ledger", "check", str(ledger)]))


def keep_inactive(topic: TopicName) -> NextStep:
    """Creates a deleted topic again, and says how to keep it."""
    return NextStep(
        "Its messages are gone. To keep unused topics of the namespace: pulsar-admin namespaces "
        f"set-inactive-topic-policies --disable-delete-while-inactive -t 1d -m "
        f"delete_when_no_subscriptions {topic.namespace}. To create the topic again:",
        _admin("topics", "create", topic),
        "PUT",
        topic_path(topic),
    )


def list_bookies(text: str) -> NextStep:
    """Lists the bookies and their states."""
    return NextStep(text, "magnetar bookie list")


def offload(topic: TopicName, text: str) -> NextStep:
    """Requests that all closed ledgers are offloaded."""
    return NextStep(text, _admin("topics", "offload", "-s", "0", topic))


def encryption_off(topic: TopicName, text: str) -> NextStep:
    """Admits producers without encryption to all topics of the namespace."""
    return NextStep(
        text,
        _admin("namespaces", "set-encryption-required", "--disable", topic.namespace),
        "POST",
        f"{namespace_path(topic.namespace)}/encryptionRequired",
        body=False,
    )


def namespace_path(namespace: NamespaceName) -> str:
    """Returns the namespace's path in the admin REST."""
    return f"/admin/v2/namespaces/{namespace}"


def _segment(name: str) -> str:
    return quote(name, safe="")


def deliver_delayed(topic: TopicName, text: str) -> NextStep:
    """Switches delayed delivery off for the topic, which releases all delayed messages."""
    return NextStep(
        text,
        _admin("topicPolicies", "set-delayed-delivery", "--disable", topic),
        "POST",
        f"{topic_path(topic)}/delayedDelivery",
        {"active": False, "tickTime": 1_000},
    )

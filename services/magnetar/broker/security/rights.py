"""The table of rights that the commands of the binary protocol need.

The guard of sessions checks these rights before it handles a command. The documentation and the
test matrix are generated from the table. The broker does not start if a command has no entry.

Commands of an attached producer or consumer (SEND, FLOW, ACK, …) need no further right: the guard
checked its right on attach, and checks it again whenever grants change. Unlike Pulsar,
schemas and transactions need rights, and the later commands of a consumer as well.

Texts of refusals are Pulsar's where Pulsar refuses the command.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.broker.security.needs import (
    AnyRoleNeed,
    NamespaceNeed,
    NamespaceOperation,
    Need,
    PublicNeed,
    SuperUserNeed,
    TopicNeed,
    TopicOperation,
)
from magnetar.broker.transactions.assignment import is_assignment
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.wire.commands import CommandType


class Attached(Protocol):
    """The consumers of the connection that sent a command."""

    def subscription_of(self, consumer_id: int) -> tuple[TopicName, str] | None:
        """Returns the topic and subscription of a consumer, None if there is none."""


Needs = Callable[[Any, Attached], tuple[Need, ...]]
"""Returns the needs of a command, all of which must be met; raises MagnetarError."""


@dataclass(frozen=True, slots=True)
class Right:
    """The needs of one command, and the text of its refusal."""

    needs: Needs
    words: str
    """The needs, for the documentation."""
    refusal: str = "Client is not authorized"
    """The text of AuthorizationError."""

    @property
    def checked(self) -> bool:
        """Whether the guard must check the right."""
        return self.needs not in (_public, _any_role)


def _public(command: Any, attached: Attached) -> tuple[Need, ...]:
    return (PublicNeed(),)


def _find_topic(command: Any, attached: Attached) -> tuple[Need, ...]:
    """The needs of a look-up. All who may use transactions may find their coordinators."""
    topic = parse_topic(command.topic)
    if is_assignment(topic):
        return (AnyRoleNeed(),)
    return (TopicNeed(topic, TopicOperation.LOOKUP),)


def _any_role(command: Any, attached: Attached) -> tuple[Need, ...]:
    return (AnyRoleNeed(),)


def _super_user(command: Any, attached: Attached) -> tuple[Need, ...]:
    return (SuperUserNeed(),)


def _on_topic(operation: TopicOperation) -> Needs:
    def needs(command: Any, attached: Attached) -> tuple[Need, ...]:
        return (TopicNeed(parse_topic(command.topic), operation),)

    return needs


def _on_namespace(operation: NamespaceOperation) -> Needs:
    def needs(command: Any, attached: Attached) -> tuple[Need, ...]:
        return (NamespaceNeed(NamespaceName.parse(command.namespace), operation),)

    return needs


def _of_consumer(operation: TopicOperation) -> Needs:
    """The needs of a command that names a consumer of its connection.

    A consumer that does not exist needs nothing: the answer is that it does not exist.
    """

    def needs(command: Any, attached: Attached) -> tuple[Need, ...]:
        consumed = attached.subscription_of(command.consumer_id)
        if consumed is None:
            return (AnyRoleNeed(),)
        return (TopicNeed(consumed[0], operation, consumed[1]),)

    return needs


def _produce(command: Any, attached: Attached) -> tuple[Need, ...]:
    topic = parse_topic(command.topic)
    produce = TopicNeed(topic, TopicOperation.PRODUCE)
    if not command.initial_subscription_name:
        return (produce,)
    name = command.initial_subscription_name
    return (produce, TopicNeed(topic, TopicOperation.SUBSCRIBE, name))


def _subscribe(command: Any, attached: Attached) -> tuple[Need, ...]:
    topic = parse_topic(command.topic)
    return (TopicNeed(topic, TopicOperation.CONSUME, command.subscription),)


def _partitions_of_transaction(command: Any, attached: Attached) -> tuple[Need, ...]:
    topics = map(parse_topic, command.partitions)
    return tuple(TopicNeed(topic, TopicOperation.PRODUCE) for topic in topics) or (AnyRoleNeed(),)


def _subscriptions_of_transaction(command: Any, attached: Attached) -> tuple[Need, ...]:
    return tuple(
        TopicNeed(parse_topic(used.topic), TopicOperation.CONSUME, used.subscription)
        for used in command.subscription
    ) or (AnyRoleNeed(),)


_CONNECTING: Final = Right(_public, "none: the command belongs to authentication or keep-alive")
_ATTACHED: Final = Right(_any_role, "that of PRODUCER or SUBSCRIBE, checked when it attached")
_UNSUPPORTED: Final = Right(_any_role, "none: the command is refused to all clients")
_WATCH_CLOSE: Final = Right(_any_role, "none: the command ends a watch of its own connection")

_BY_NAME: Final[dict[str, Right]] = {
    "CONNECT": _CONNECTING,
    "AUTH_RESPONSE": _CONNECTING,
    "PING": _CONNECTING,
    "PONG": _CONNECTING,
    "LOOKUP": Right(
        _find_topic,
        "LOOKUP of the topic; none for the assign topic of transaction coordinators",
        "Client is not authorized to Lookup",
    ),
    "PARTITIONED_METADATA": Right(
        _find_topic,
        "LOOKUP of the topic; none for the assign topic of transaction coordinators",
        "Client is not authorized to Get Partition Metadata",
    ),
    "GET_TOPICS_OF_NAMESPACE": Right(
        _on_namespace(NamespaceOperation.GET_TOPICS),
        "GET_TOPICS of the namespace",
        "Client is not authorized to GetTopicsOfNamespace",
    ),
    "WATCH_TOPIC_LIST": Right(
        _on_namespace(NamespaceOperation.GET_TOPICS),
        "GET_TOPICS of the namespace",
        "Proxy Client is not authorized to watchTopicList",
    ),
    "WATCH_TOPIC_LIST_CLOSE": _WATCH_CLOSE,
    "PRODUCER": Right(
        _produce,
        "PRODUCE of the topic; with an initial subscription also SUBSCRIBE of it",
        "Client is not authorized to Produce",
    ),
    "SUBSCRIBE": Right(
        _subscribe,
        "CONSUME of the topic with the subscription",
        "Client is not authorized to subscribe",
    ),
    "SEND": _ATTACHED,
    "CLOSE_PRODUCER": _ATTACHED,
    "FLOW": _ATTACHED,
    "ACK": _ATTACHED,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": _ATTACHED,
    "CLOSE_CONSUMER": _ATTACHED,
    "UNSUBSCRIBE": Right(
        _of_consumer(TopicOperation.UNSUBSCRIBE),
        "UNSUBSCRIBE of the consumer's topic and subscription",
        "Client is not authorized to unsubscribe",
    ),
    "SEEK": Right(
        _of_consumer(TopicOperation.RESET_CURSOR),
        "RESET_CURSOR of the consumer's topic and subscription",
        "Client is not authorized to seek",
    ),
    "GET_LAST_MESSAGE_ID": Right(
        _of_consumer(TopicOperation.PEEK_MESSAGES),
        "PEEK_MESSAGES of the consumer's topic and subscription",
        "Client is not authorized to get the last message id",
    ),
    "CONSUMER_STATS": Right(
        _of_consumer(TopicOperation.GET_STATS),
        "GET_STATS of the consumer's topic",
        "Client is not authorized to get consumer stats",
    ),
    "GET_SCHEMA": Right(
        _on_topic(TopicOperation.GET_METADATA),
        "GET_METADATA of the topic",
        "Client is not authorized to get the schema",
    ),
    "GET_OR_CREATE_SCHEMA": Right(
        _on_topic(TopicOperation.PRODUCE),
        "PRODUCE of the topic",
        "Client is not authorized to register a schema",
    ),
    "NEW_TXN": Right(_any_role, "none: the transaction belongs to the principal"),
    "TC_CLIENT_CONNECT_REQUEST": Right(_any_role, "none"),
    "ADD_PARTITION_TO_TXN": Right(
        _partitions_of_transaction,
        "PRODUCE of each partition",
        "Client is not authorized to add the partitions to a transaction",
    ),
    "ADD_SUBSCRIPTION_TO_TXN": Right(
        _subscriptions_of_transaction,
        "CONSUME of each topic with the subscription",
        "Client is not authorized to add the subscriptions to a transaction",
    ),
    "END_TXN": Right(_any_role, "none: only the principal that began it, or a super user, may"),
    "END_TXN_ON_PARTITION": Right(_super_user, "super user"),
    "END_TXN_ON_SUBSCRIPTION": Right(_super_user, "super user"),
    "SCALABLE_TOPIC_LOOKUP": _UNSUPPORTED,
    "SCALABLE_TOPIC_SUBSCRIBE": _UNSUPPORTED,
    "SCALABLE_TOPIC_CLOSE": _UNSUPPORTED,
    "WATCH_SCALABLE_TOPICS": _UNSUPPORTED,
    "WATCH_SCALABLE_TOPICS_CLOSE": _UNSUPPORTED,
    "WATCH_TC_ASSIGNMENTS": _UNSUPPORTED,
    "WATCH_TC_ASSIGNMENTS_CLOSE": _UNSUPPORTED,
}

RIGHTS: Final[dict[int, Right]] = {
    int(CommandType.Value(name)): right for name, right in _BY_NAME.items()
}
"""The right of each command that a client may send."""

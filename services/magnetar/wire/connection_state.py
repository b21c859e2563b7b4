"""Which command a client may send in which state of its connection, as tables.

    CONNECTING --CONNECT--> AUTHENTICATING --(CONNECTED sent)--> CONNECTED --(closed)--> CLOSED

A client's first command is CONNECT, and it sends CONNECT once. While the broker still asks for
proof of identity, only AUTH_RESPONSE may follow. PING and PONG are allowed in every open state. The
broker closes the connection of a client that breaks these rules, without an answer, as Pulsar's
broker does.
"""

from enum import Enum, auto
from typing import Final

from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.framing import ProtocolError


class State(Enum):
    """The states of a connection."""

    CONNECTING = auto()
    AUTHENTICATING = auto()
    CONNECTED = auto()
    CLOSED = auto()


KEEP_ALIVE: Final = frozenset({CommandType.PING, CommandType.PONG})

FROM_CLIENT: Final = frozenset(
    {
        CommandType.SUBSCRIBE,
        CommandType.PRODUCER,
        CommandType.SEND,
        CommandType.ACK,
        CommandType.FLOW,
        CommandType.UNSUBSCRIBE,
        CommandType.CLOSE_PRODUCER,
        CommandType.CLOSE_CONSUMER,
        CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        CommandType.PARTITIONED_METADATA,
        CommandType.LOOKUP,
        CommandType.CONSUMER_STATS,
        CommandType.SEEK,
        CommandType.GET_LAST_MESSAGE_ID,
        CommandType.GET_TOPICS_OF_NAMESPACE,
        CommandType.GET_SCHEMA,
        CommandType.GET_OR_CREATE_SCHEMA,
        CommandType.AUTH_RESPONSE,
        CommandType.NEW_TXN,
        CommandType.ADD_PARTITION_TO_TXN,
        CommandType.ADD_SUBSCRIPTION_TO_TXN,
        CommandType.END_TXN,
        CommandType.END_TXN_ON_PARTITION,
        CommandType.END_TXN_ON_SUBSCRIPTION,
        CommandType.TC_CLIENT_CONNECT_REQUEST,
        CommandType.WATCH_TOPIC_LIST,
        CommandType.WATCH_TOPIC_LIST_CLOSE,
        CommandType.SCALABLE_TOPIC_LOOKUP,
        CommandType.SCALABLE_TOPIC_CLOSE,
        CommandType.SCALABLE_TOPIC_SUBSCRIBE,
        CommandType.WATCH_SCALABLE_TOPICS,
        CommandType.WATCH_SCALABLE_TOPICS_CLOSE,
        CommandType.WATCH_TC_ASSIGNMENTS,
        CommandType.WATCH_TC_ASSIGNMENTS_CLOSE,
    }
)
"""The commands of a connected client, besides PING and PONG."""

BROKER_ACCEPTS: Final[dict[State, frozenset[int]]] = {
    State.CONNECTING: KEEP_ALIVE | {CommandType.CONNECT},
    State.AUTHENTICATING: KEEP_ALIVE | {CommandType.AUTH_RESPONSE},
    State.CONNECTED: KEEP_ALIVE | FROM_CLIENT,
    State.CLOSED: frozenset(),
}

_NEXT: Final[dict[tuple[State, int], State]] = {
    (State.CONNECTING, CommandType.CONNECT): State.AUTHENTICATING,
    (State.AUTHENTICATING, CommandType.CONNECTED): State.CONNECTED,
}


class ConnectionState:
    """The state of one connection, as the broker sees it."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.CONNECTING

    @property
    def connected(self) -> bool:
        """Whether the client has finished CONNECT and the connection is open."""
        return self.state is State.CONNECTED

    def received(self, command_type: int) -> None:
        """Records a command of the client; raises ProtocolError if the state forbids it."""
        if command_type not in BROKER_ACCEPTS[self.state]:
            name = command_name(command_type)
            raise ProtocolError(f"{name} may not come while {self.state.name.lower()}")
        self.state = _NEXT.get((self.state, command_type), self.state)

    def sent(self, command_type: int) -> None:
        """Records a command of the broker, after the transport has taken it."""
        self.state = _NEXT.get((self.state, command_type), self.state)

    def closed(self) -> None:
        """Records that the connection is closed; no command is accepted any more."""
        self.state = State.CLOSED

"""Which command may arrive in which state of a connection, as tables.

    CONNECTING --CONNECT--> AUTHENTICATING --(CONNECTED sent)--> CONNECTED --(closed)--> CLOSED

A client's first command is CONNECT, and there is only one. While the broker still asks for proof of
identity only AUTH_RESPONSE may follow. Keep-alive is allowed always. A peer that breaks this is not
answered: its connection is closed, as Pulsar's broker does. The broker's table is followed by the
client's mirror image. All changes of state are made here.
"""

from enum import Enum, auto
from typing import Final

from magnetar.wire.commands import CommandType
from magnetar.wire.framing import ProtocolError


class State(Enum):
    """Where a connection is in its life."""

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
"""What a connected client may send; CLOSE_PRODUCER and CLOSE_CONSUMER go both ways."""

FROM_BROKER: Final = (
    frozenset(CommandType.values())
    - (FROM_CLIENT - {CommandType.CLOSE_PRODUCER, CommandType.CLOSE_CONSUMER})
    - {CommandType.CONNECT, CommandType.CONNECTED}
)

_NOTHING: Final[frozenset[int]] = frozenset()

BROKER_ACCEPTS: Final[dict[State, frozenset[int]]] = {
    State.CONNECTING: KEEP_ALIVE | {CommandType.CONNECT},
    State.AUTHENTICATING: KEEP_ALIVE | {CommandType.AUTH_RESPONSE},
    State.CONNECTED: KEEP_ALIVE | FROM_CLIENT,
    State.CLOSED: _NOTHING,
}

CLIENT_ACCEPTS: Final[dict[State, frozenset[int]]] = {
    State.CONNECTING: _NOTHING,
    State.AUTHENTICATING: KEEP_ALIVE
    | {CommandType.CONNECTED, CommandType.AUTH_CHALLENGE, CommandType.ERROR},
    State.CONNECTED: FROM_BROKER,
    State.CLOSED: _NOTHING,
}

_NEXT: Final[dict[tuple[State, int], State]] = {
    (State.CONNECTING, CommandType.CONNECT): State.AUTHENTICATING,
    (State.AUTHENTICATING, CommandType.CONNECTED): State.CONNECTED,
}


class ConnectionState:
    """The state of one connection, as one of its ends sees it."""

    __slots__ = ("_accepts", "state")

    def __init__(self, accepts: dict[State, frozenset[int]] = BROKER_ACCEPTS) -> None:
        self._accepts = accepts
        self.state = State.CONNECTING

    def received(self, command_type: int) -> None:
        """Notes a command of the peer; ProtocolError where it may not come now."""
        if command_type not in self._accepts[self.state]:
            name = CommandType.Name(command_type)  # type: ignore[arg-type]  # a number seen by upb
            raise ProtocolError(f"{name} may not come while {self.state.name.lower()}")
        self.state = _NEXT.get((self.state, command_type), self.state)

    def sent(self, command_type: int) -> None:
        """Notes a command of our own, after it was handed to the transport."""
        self.state = _NEXT.get((self.state, command_type), self.state)

    def closed(self) -> None:
        """Nothing is accepted any more."""
        self.state = State.CLOSED

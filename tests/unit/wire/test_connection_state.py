"""Which command may come when: the tables, and a connection's walk through them."""

import pytest

from magnetar.wire.commands import CommandType
from magnetar.wire.connection_state import (
    BROKER_ACCEPTS,
    CLIENT_ACCEPTS,
    FROM_BROKER,
    FROM_CLIENT,
    ConnectionState,
    State,
)
from magnetar.wire.framing import ProtocolError

BOTH_WAYS = {
    CommandType.CLOSE_PRODUCER,
    CommandType.CLOSE_CONSUMER,
    CommandType.PING,
    CommandType.PONG,
}
ALL = set(CommandType.values())


def connected() -> ConnectionState:
    state = ConnectionState()
    state.received(CommandType.CONNECT)
    state.sent(CommandType.CONNECTED)
    return state


def test_every_command_has_a_direction() -> None:
    assert FROM_CLIENT | FROM_BROKER | {CommandType.CONNECT, CommandType.CONNECTED} == ALL
    assert BOTH_WAYS - {CommandType.PING, CommandType.PONG} == FROM_CLIENT & FROM_BROKER


def test_connect_comes_first_and_once() -> None:
    state = ConnectionState()
    with pytest.raises(ProtocolError, match="LOOKUP may not come while connecting"):
        state.received(CommandType.LOOKUP)
    state = connected()
    state.received(CommandType.LOOKUP)
    assert state.state is State.CONNECTED
    with pytest.raises(ProtocolError, match="CONNECT may not come while connected"):
        state.received(CommandType.CONNECT)


@pytest.mark.parametrize("number", sorted(ALL))
def test_what_a_broker_takes_before_and_during_authentication(number: int) -> None:
    keep_alive = {CommandType.PING, CommandType.PONG}
    assert (number in BROKER_ACCEPTS[State.CONNECTING]) == (
        number in keep_alive | {CommandType.CONNECT}
    )
    assert (number in BROKER_ACCEPTS[State.AUTHENTICATING]) == (
        number in keep_alive | {CommandType.AUTH_RESPONSE}
    )


@pytest.mark.parametrize("number", sorted(ALL))
def test_nothing_is_taken_after_the_end(number: int) -> None:
    state = connected()
    state.closed()
    with pytest.raises(ProtocolError):
        state.received(number)


def test_answers_are_not_for_a_broker() -> None:
    for number in (CommandType.SEND_RECEIPT, CommandType.MESSAGE, CommandType.SUCCESS):
        with pytest.raises(ProtocolError):
            connected().received(number)


def test_the_client_sees_the_mirror_image() -> None:
    state = ConnectionState(CLIENT_ACCEPTS)
    state.sent(CommandType.CONNECT)
    state.received(CommandType.AUTH_CHALLENGE)
    state.received(CommandType.CONNECTED)
    state.received(CommandType.MESSAGE)
    with pytest.raises(ProtocolError):
        state.received(CommandType.SUBSCRIBE)

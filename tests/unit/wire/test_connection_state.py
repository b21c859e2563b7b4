"""Which command may come when: the tables, and a connection's walk through them."""

import pytest

from magnetar.wire.commands import CommandType
from magnetar.wire.connection_state import (
    BROKER_ACCEPTS,
    FROM_CLIENT,
    KEEP_ALIVE,
    ConnectionState,
    State,
)
from magnetar.wire.framing import ProtocolError

ALL = set(CommandType.values())


def connected() -> ConnectionState:
    state = ConnectionState()
    state.received(CommandType.CONNECT)
    state.sent(CommandType.CONNECTED)
    return state


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


@pytest.mark.parametrize("number", sorted(ALL))
def test_a_connected_client_sends_its_own_commands_and_no_other(number: int) -> None:
    state = connected()
    if number in FROM_CLIENT | KEEP_ALIVE:
        state.received(number)
        assert state.connected
    else:
        with pytest.raises(ProtocolError, match="may not come while connected"):
            state.received(number)


def test_connected_is_the_time_from_the_answer_to_connect_until_the_end() -> None:
    state = ConnectionState()
    assert not state.connected
    state.received(CommandType.CONNECT)
    assert not state.connected, "CONNECTED is not sent yet"
    state.sent(CommandType.CONNECTED)
    assert state.connected
    state.closed()
    assert not state.connected

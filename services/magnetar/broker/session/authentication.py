"""CONNECT and AUTH_RESPONSE while authentication is on.

Until the client has its CONNECTED, it may send nothing but PING and PONG: the connection's state
refuses every other command and ends the connection, so no command waits or overtakes another.
"""

from collections.abc import Coroutine
from typing import Any, Final

from magnetar.broker.session import handshake
from magnetar.broker.session.access import Access
from magnetar.broker.session.link import CLIENT_VERSION_CHARS_MAX
from magnetar.broker.session.session import Handler, Session
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType


def on_connect(session: Session, command: pb.CommandConnect) -> Coroutine[Any, Any, None] | None:
    """Verifies the credentials of a client, then answers CONNECTED or ERROR."""
    security = session.service.security
    assert security is not None  # noqa: S101 - these handlers serve only with it
    session.link.client_version = command.client_version[:CLIENT_VERSION_CHARS_MAX]
    session.access = access = Access(session.link, security, session.wire.peer)
    proven = access.prove_now(command)
    if proven is None:
        return _connect(session, access, command)
    if proven:
        handshake.on_connect(session, command)
    return None


async def _connect(session: Session, access: Access, command: pb.CommandConnect) -> None:
    if await access.prove(command):
        handshake.on_connect(session, command)


def on_auth_response(
    session: Session, command: pb.CommandAuthResponse
) -> Coroutine[Any, Any, None] | None:
    """Verifies the credentials that answer a challenge."""
    assert session.access is not None  # noqa: S101 - CONNECT came first
    session.access.expect_response(command)
    return session.access.renew(command)


HANDLERS: Final[dict[int, Handler]] = {
    CommandType.CONNECT: on_connect,
    CommandType.AUTH_RESPONSE: on_auth_response,
}

"""CONNECT, and the keep-alive of a connection."""

from functools import lru_cache

from magnetar.broker.session.link import CLIENT_VERSION_CHARS_MAX
from magnetar.broker.session.session import Session
from magnetar.core.errors import UnsupportedVersion
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PONG_FRAME, encode_command
from magnetar.wire.framing import PROTOCOL_VERSION


def on_connect(session: Session, command: pb.CommandConnect) -> None:
    """Answers CONNECTED. The connection's state accepts CONNECT only as the first command."""
    link = session.link
    link.client_version = command.client_version[:CLIENT_VERSION_CHARS_MAX]
    link.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
    link.entry_metadata = (
        command.feature_flags.supports_broker_entry_metadata
        and session.service.settings.producers.expose_entry_metadata
    )
    session.wire.send(
        _connected(
            session.service.server_version,
            link.protocol_version,
            session.service.settings.producers.message_bytes_max,
        )
    )
    session.state.sent(CommandType.CONNECTED)
    session.wire.admit()


@lru_cache(maxsize=PROTOCOL_VERSION)
def _connected(server_version: str, protocol_version: int, message_bytes_max: int) -> bytes:
    """Encodes CONNECTED, which all clients of a version share."""
    # Clients act on these flags, so the broker sets only those of features that it has.
    flags = pb.FeatureFlags(
        supports_broker_entry_metadata=True,
        supports_partial_producer=True,
        supports_topic_watchers=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_topic_watcher_reconcile=True,
        supports_joint_commit=True,
    )
    connected = pb.CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=message_bytes_max,
        feature_flags=flags,
    )
    return encode_command(CommandType.CONNECTED, connected)


def on_auth_response(session: Session, command: pb.CommandAuthResponse) -> None:
    """Refuses AUTH_RESPONSE: the broker challenges no client while authentication is off."""
    raise UnsupportedVersion("Authentication is not enabled on this broker")


def on_ping(session: Session, command: pb.CommandPing) -> None:
    """Answers PONG."""
    session.wire.send(PONG_FRAME)


def on_pong(session: Session, command: pb.CommandPong) -> None:
    """Ends the wait for a PONG, if the broker waits for one."""
    session.link.ponged()

"""CONNECT, and the keep-alive of a connection."""

from magnetar.broker.session.link import CLIENT_VERSION_CHARS_MAX
from magnetar.broker.session.session import Session
from magnetar.core.errors import UnsupportedVersion
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PONG_FRAME
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
    # Clients act on these flags, so the broker sets only those of features that it has.
    flags = pb.FeatureFlags(
        supports_broker_entry_metadata=True,
        supports_partial_producer=True,
        supports_topic_watchers=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_topic_watcher_reconcile=True,
        supports_joint_commit=True,
    )
    link.answer(
        CommandType.CONNECTED,
        pb.CommandConnected(
            server_version=session.service.server_version,
            protocol_version=link.protocol_version,
            max_message_size=session.service.settings.producers.message_bytes_max,
            feature_flags=flags,
        ),
    )
    session.state.sent(CommandType.CONNECTED)
    session.wire.admit()


def on_auth_response(session: Session, command: pb.CommandAuthResponse) -> None:
    """Refuses AUTH_RESPONSE: the broker challenges no client while authentication is off."""
    raise UnsupportedVersion("Authentication is not enabled on this broker")


def on_ping(session: Session, command: pb.CommandPing) -> None:
    """Answers PONG."""
    session.wire.send(PONG_FRAME)


def on_pong(session: Session, command: pb.CommandPong) -> None:
    """Ends the wait for a PONG, if the broker waits for one."""
    session.link.ponged()

"""Commands that this broker does not serve: each gets the error that the protocol defines for it.

Transactions answer as a Pulsar broker with transactions off; scalable topics (PIP-460) carry the
error in their own update messages, as their clients expect. `refusal` refuses single fields that
request features the broker lacks.
"""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.session.session import Session
from magnetar.core.errors import NotAllowed, ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import error_number

_NO_SCALABLE: Final = "Scalable topics are not enabled on this broker"
_NO_WATCH: Final = "Transaction coordinator discovery is not enabled on this broker"
_NOT_ALLOWED: Final = error_number(ServerError.NOT_ALLOWED_ERROR)


def _no_transactions(session: Session, command: Any) -> None:
    # The doubled word is Pulsar's own text, which clients know.
    raise NotAllowed("Transaction manager is not not enabled")


def _on_scalable_lookup(session: Session, command: pb.CommandScalableTopicLookup) -> None:
    update = pb.CommandScalableTopicUpdate(session_id=command.session_id)
    update.error = _NOT_ALLOWED
    update.message = _NO_SCALABLE
    session.link.answer(CommandType.SCALABLE_TOPIC_UPDATE, update)


def _on_scalable_subscribe(session: Session, command: pb.CommandScalableTopicSubscribe) -> None:
    response = pb.CommandScalableTopicSubscribeResponse(request_id=command.request_id)
    response.error = _NOT_ALLOWED
    response.message = _NO_SCALABLE
    session.link.answer(CommandType.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, response)


def _on_watch_scalable(session: Session, command: pb.CommandWatchScalableTopics) -> None:
    update = pb.CommandWatchScalableTopicsUpdate(watch_id=command.watch_id)
    update.error = _NOT_ALLOWED
    update.message = _NO_SCALABLE
    session.link.answer(CommandType.WATCH_SCALABLE_TOPICS_UPDATE, update)


def _on_watch_coordinators(session: Session, command: pb.CommandWatchTcAssignments) -> None:
    update = pb.CommandWatchTcAssignmentsUpdate(watch_id=command.watch_id)
    update.error = _NOT_ALLOWED
    update.message = _NO_WATCH
    session.link.answer(CommandType.WATCH_TC_ASSIGNMENTS_UPDATE, update)


def _nothing_to_close(session: Session, command: Any) -> None:
    """Ignores the close of a watch that was never opened; these commands have no answer."""


HANDLERS: Final[dict[int, Callable[[Any, Any], None]]] = {
    CommandType.NEW_TXN: _no_transactions,
    CommandType.ADD_PARTITION_TO_TXN: _no_transactions,
    CommandType.ADD_SUBSCRIPTION_TO_TXN: _no_transactions,
    CommandType.END_TXN: _no_transactions,
    CommandType.END_TXN_ON_PARTITION: _no_transactions,
    CommandType.END_TXN_ON_SUBSCRIPTION: _no_transactions,
    CommandType.TC_CLIENT_CONNECT_REQUEST: _no_transactions,
    CommandType.SCALABLE_TOPIC_LOOKUP: _on_scalable_lookup,
    CommandType.SCALABLE_TOPIC_SUBSCRIBE: _on_scalable_subscribe,
    CommandType.SCALABLE_TOPIC_CLOSE: _nothing_to_close,
    CommandType.WATCH_SCALABLE_TOPICS: _on_watch_scalable,
    CommandType.WATCH_SCALABLE_TOPICS_CLOSE: _nothing_to_close,
    CommandType.WATCH_TC_ASSIGNMENTS: _on_watch_coordinators,
    CommandType.WATCH_TC_ASSIGNMENTS_CLOSE: _nothing_to_close,
}

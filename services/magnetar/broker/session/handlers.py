"""The handler of each command that a client may send."""

from typing import TYPE_CHECKING, Final

from magnetar.broker.session import (
    consumers,
    discovery,
    handshake,
    producers,
    schemas,
    transactions,
    unsupported,
)
from magnetar.broker.session.session import Handler
from magnetar.wire.commands import CommandType

if TYPE_CHECKING:
    from magnetar.broker.rates.request_limit import RequestLimit
    from magnetar.broker.security.broker_security import BrokerSecurity

HANDLERS: Final[dict[int, Handler]] = {
    CommandType.CONNECT: handshake.on_connect,
    CommandType.AUTH_RESPONSE: handshake.on_auth_response,
    CommandType.PING: handshake.on_ping,
    CommandType.PONG: handshake.on_pong,
    CommandType.PARTITIONED_METADATA: discovery.on_partitioned_metadata,
    CommandType.LOOKUP: discovery.on_lookup,
    CommandType.GET_TOPICS_OF_NAMESPACE: discovery.on_topics_of_namespace,
    CommandType.WATCH_TOPIC_LIST: discovery.on_watch_topic_list,
    CommandType.WATCH_TOPIC_LIST_CLOSE: discovery.on_watch_topic_list_close,
    CommandType.PRODUCER: producers.on_producer,
    CommandType.CLOSE_PRODUCER: producers.on_close_producer,
    CommandType.SUBSCRIBE: consumers.on_subscribe,
    CommandType.FLOW: consumers.on_flow,
    CommandType.ACK: consumers.on_ack,
    CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES: consumers.on_redeliver,
    CommandType.UNSUBSCRIBE: consumers.on_unsubscribe,
    CommandType.CLOSE_CONSUMER: consumers.on_close_consumer,
    CommandType.SEEK: consumers.on_seek,
    CommandType.GET_LAST_MESSAGE_ID: consumers.on_get_last_message_id,
    CommandType.CONSUMER_STATS: consumers.on_consumer_stats,
    CommandType.GET_SCHEMA: schemas.on_get_schema,
    CommandType.GET_OR_CREATE_SCHEMA: schemas.on_get_or_create_schema,
    **unsupported.HANDLERS,
}


def handlers(
    security: "BrokerSecurity | None",
    *,
    transactional: bool = False,
    limit: "RequestLimit | None" = None,
) -> dict[int, Handler]:
    """Returns the handlers of a broker: with authorization, each checks the rights first.

    `transactional`: whether clients may use transactions. With an audit log, permitted attachments
    are written to it. `limit` is that of requests.

    Raises LookupError if the table of rights lacks a command.
    """
    handlers_by_kind = _handlers(security, transactional)
    if limit is None:
        return handlers_by_kind
    # Imported here: most brokers have no limit.
    from magnetar.broker.session.request_rate import limited

    return limited(handlers_by_kind, limit)


def _handlers(security: "BrokerSecurity | None", transactional: bool) -> dict[int, Handler]:
    served = {**HANDLERS, **transactions.HANDLERS} if transactional else HANDLERS
    if security is None:
        return served
    # Imported here: an open process does not need them.
    from magnetar.broker.session import authentication
    from magnetar.broker.session.audited import audited
    from magnetar.broker.session.guard import guarded

    proving = {**served, **authentication.HANDLERS}
    if security.audit is not None:
        proving = audited(proving, security.audit, security.attached)
    if security.authorizer is None:
        return proving
    return guarded(proving, security.authorizer)

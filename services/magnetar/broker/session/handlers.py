"""Which function handles which command. A coroutine that comes back is run as a task."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from magnetar.broker.session import consuming, discovery, greeting, producing, refused, schemas
from magnetar.wire.commands import CommandType

Handler = Callable[[Any, Any], Coroutine[Any, Any, None] | None]

HANDLERS: Final[dict[int, Handler]] = {
    CommandType.CONNECT: greeting.on_connect,
    CommandType.AUTH_RESPONSE: greeting.on_auth_response,
    CommandType.PING: greeting.on_ping,
    CommandType.PONG: greeting.on_pong,
    CommandType.PARTITIONED_METADATA: discovery.on_partitioned_metadata,
    CommandType.LOOKUP: discovery.on_lookup,
    CommandType.GET_TOPICS_OF_NAMESPACE: discovery.on_topics_of_namespace,
    CommandType.WATCH_TOPIC_LIST: discovery.on_watch_topic_list,
    CommandType.WATCH_TOPIC_LIST_CLOSE: discovery.on_watch_topic_list_close,
    CommandType.PRODUCER: producing.on_producer,
    CommandType.CLOSE_PRODUCER: producing.on_close_producer,
    CommandType.SUBSCRIBE: consuming.on_subscribe,
    CommandType.FLOW: consuming.on_flow,
    CommandType.ACK: consuming.on_ack,
    CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES: consuming.on_redeliver,
    CommandType.UNSUBSCRIBE: consuming.on_unsubscribe,
    CommandType.CLOSE_CONSUMER: consuming.on_close_consumer,
    CommandType.SEEK: consuming.on_seek,
    CommandType.GET_LAST_MESSAGE_ID: consuming.on_get_last_message_id,
    CommandType.CONSUMER_STATS: consuming.on_consumer_stats,
    CommandType.GET_SCHEMA: schemas.on_get_schema,
    CommandType.GET_OR_CREATE_SCHEMA: schemas.on_get_or_create_schema,
    **refused.HANDLERS,
}

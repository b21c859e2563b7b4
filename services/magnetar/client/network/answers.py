"""Which command answers which request.

A broker that answers with another command has lost track of the connection, or is none: its answer
is not read.
"""

from typing import Final

from magnetar.wire.commands import CommandType

_T = CommandType
ANSWER_OF: Final[dict[int, int]] = {
    int(request): int(answer)
    for request, answer in (
        (_T.PARTITIONED_METADATA, _T.PARTITIONED_METADATA_RESPONSE),
        (_T.LOOKUP, _T.LOOKUP_RESPONSE),
        (_T.GET_TOPICS_OF_NAMESPACE, _T.GET_TOPICS_OF_NAMESPACE_RESPONSE),
        (_T.GET_SCHEMA, _T.GET_SCHEMA_RESPONSE),
        (_T.PRODUCER, _T.PRODUCER_SUCCESS),
        (_T.CLOSE_PRODUCER, _T.SUCCESS),
        (_T.SUBSCRIBE, _T.SUCCESS),
        (_T.UNSUBSCRIBE, _T.SUCCESS),
        (_T.SEEK, _T.SUCCESS),
        (_T.CLOSE_CONSUMER, _T.SUCCESS),
        (_T.GET_LAST_MESSAGE_ID, _T.GET_LAST_MESSAGE_ID_RESPONSE),
        (_T.ACK, _T.ACK_RESPONSE),
        (_T.WATCH_TOPIC_LIST, _T.WATCH_TOPIC_LIST_SUCCESS),
        (_T.TC_CLIENT_CONNECT_REQUEST, _T.TC_CLIENT_CONNECT_RESPONSE),
        (_T.NEW_TXN, _T.NEW_TXN_RESPONSE),
        (_T.ADD_PARTITION_TO_TXN, _T.ADD_PARTITION_TO_TXN_RESPONSE),
        (_T.ADD_SUBSCRIPTION_TO_TXN, _T.ADD_SUBSCRIPTION_TO_TXN_RESPONSE),
        (_T.END_TXN, _T.END_TXN_RESPONSE),
    )
}
"""The type of the answer by that of the request; ERROR answers all."""

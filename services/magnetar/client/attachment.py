"""Which errors end a producer or consumer, and which only delay its reconnect.

Creation gives up on every error that is not retryable. A producer or consumer that was attached
before keeps trying on more: a name may still be held by its previous connection, a quota may be
freed, credentials may be renewed.
"""

from typing import Final

from magnetar.client.errors import (
    AlreadyClosed,
    ClientError,
    EncryptionRequired,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowed,
    ProducerFenced,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
    UnsupportedVersion,
)

_ENDS: Final = (
    AlreadyClosed,
    EncryptionRequired,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowed,
    ProducerFenced,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
    UnsupportedVersion,
)


def ends_attachment(error: ClientError) -> bool:
    """Whether an attached producer or consumer gives up after this error."""
    return isinstance(error, _ENDS)

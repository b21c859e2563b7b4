"""All errors that clients may receive: the binary protocol's code, the REST status and the text.

Codes are the protocol's `ServerError`. Clients decide by code whether to retry, and some match
texts, so both are API. `ServiceNotReady` makes a client retry; clients treat most other codes as
final (pulsar-client-cpp `lib/ResultUtils.h`).
"""

from enum import IntEnum


class ServerError(IntEnum):
    """Error codes of the binary protocol."""

    UNKNOWN_ERROR = 0
    METADATA_ERROR = 1
    PERSISTENCE_ERROR = 2
    AUTHENTICATION_ERROR = 3
    AUTHORIZATION_ERROR = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM_ERROR = 9
    UNSUPPORTED_VERSION_ERROR = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED_ERROR = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN_ERROR = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED_ERROR = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class MagnetarError(Exception):
    """Base of every error that a client may receive.

    `code` goes out on the binary protocol, `http_status` on the REST side, and the message is the
    text (REST: `reason`) of both. A raise site may override the status for one case.
    """

    code = ServerError.UNKNOWN_ERROR
    http_status = 500

    def __init__(self, message: str, *, http_status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if http_status is not None:
            self.http_status = http_status


class MetadataError(MagnetarError):
    """Metadata could not be read or written, or a request contradicts it."""

    code = ServerError.METADATA_ERROR


class PersistenceError(MagnetarError):
    """An entry could not be made durable or read back."""

    code = ServerError.PERSISTENCE_ERROR


class AuthenticationError(MagnetarError):
    """The peer could not prove its identity."""

    code = ServerError.AUTHENTICATION_ERROR
    http_status = 401


class AuthorizationError(MagnetarError):
    """The peer may not do this."""

    code = ServerError.AUTHORIZATION_ERROR
    http_status = 403


class ConsumerBusy(MagnetarError):
    """The subscription cannot take this consumer now."""

    code = ServerError.CONSUMER_BUSY
    http_status = 412


class ServiceNotReady(MagnetarError):
    """Temporary: the client looks up again and retries."""

    code = ServerError.SERVICE_NOT_READY
    http_status = 503


class BacklogQuotaExceeded(MagnetarError):
    """The topic's backlog exceeds its quota: the producer waits until the backlog shrinks."""

    code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
    http_status = 412


class BacklogQuotaExceededException(MagnetarError):
    """The topic's backlog exceeds its quota: the client fails its pending sends."""

    code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION
    http_status = 412


class ChecksumError(MagnetarError):
    """A message's CRC-32C does not match its bytes; nothing was stored."""

    code = ServerError.CHECKSUM_ERROR
    http_status = 400


class UnsupportedVersion(MagnetarError):
    """The request needs a newer or switched-off part of the protocol."""

    code = ServerError.UNSUPPORTED_VERSION_ERROR
    http_status = 400


class TopicNotFound(MagnetarError):
    """No such topic, and it may not be created here."""

    code = ServerError.TOPIC_NOT_FOUND
    http_status = 404


class SubscriptionNotFound(MagnetarError):
    """No such subscription, and it may not be created here."""

    code = ServerError.SUBSCRIPTION_NOT_FOUND
    http_status = 404


class ConsumerNotFound(MagnetarError):
    """No such consumer on this connection."""

    code = ServerError.CONSUMER_NOT_FOUND
    http_status = 404


class TooManyRequests(MagnetarError):
    """A bound on concurrent requests was reached."""

    code = ServerError.TOO_MANY_REQUESTS
    http_status = 429


class TopicTerminated(MagnetarError):
    """The topic takes no more messages, ever."""

    code = ServerError.TOPIC_TERMINATED_ERROR
    http_status = 412


class ProducerBusy(MagnetarError):
    """Another live producer holds the name, or a cap on producers was reached."""

    code = ServerError.PRODUCER_BUSY
    http_status = 409


class InvalidTopicName(MagnetarError):
    """The name does not follow `domain://tenant/namespace/topic`."""

    code = ServerError.INVALID_TOPIC_NAME
    http_status = 412


class IncompatibleSchema(MagnetarError):
    """The schema does not fit the topic's under its compatibility strategy."""

    code = ServerError.INCOMPATIBLE_SCHEMA
    http_status = 409


class ConsumerAssignError(MagnetarError):
    """The consumer's hash ranges conflict with those held by others."""

    code = ServerError.CONSUMER_ASSIGN_ERROR
    http_status = 412


class NotAllowed(MagnetarError):
    """The request is well formed, but not permitted by policy or state."""

    code = ServerError.NOT_ALLOWED_ERROR
    http_status = 405


class ProducerFenced(MagnetarError):
    """A newer exclusive producer took over; this one must not come back."""

    code = ServerError.PRODUCER_FENCED
    http_status = 409


class TransactionCoordinatorNotFound(MagnetarError):
    """No transaction coordinator with that id is served here."""

    code = ServerError.TRANSACTION_COORDINATOR_NOT_FOUND
    http_status = 404


class InvalidTxnStatus(MagnetarError):
    """The transaction is in a state that does not permit this."""

    code = ServerError.INVALID_TXN_STATUS
    http_status = 409


class TransactionConflict(MagnetarError):
    """The ack conflicts with another ack or with another open transaction."""

    code = ServerError.TRANSACTION_CONFLICT
    http_status = 409


class TransactionNotFound(MagnetarError):
    """No such transaction, or it belongs to another principal."""

    code = ServerError.TRANSACTION_NOT_FOUND
    http_status = 404


class NotFound(MetadataError):
    """REST: the named resource does not exist."""

    http_status = 404


class Conflict(MetadataError):
    """REST: the resource exists already, or changed meanwhile."""

    http_status = 409


class PreconditionFailed(MetadataError):
    """REST: a name or a policy is not valid, or contradicts another."""

    http_status = 412


def drop_frames(error: BaseException) -> None:
    """Frees the frames that an error keeps alive. Call it after the error has been answered.

    A task or a future keeps the error that it ended with. The error's traceback keeps the frames,
    and these refer to the task: each refused request leaves a cycle with all that it references.
    """
    chain: list[BaseException] = [error]
    for link in chain:
        link.__traceback__ = None
        chain += [
            linked
            for linked in (link.__cause__, link.__context__)
            if linked is not None and linked.__traceback__ is not None
        ]

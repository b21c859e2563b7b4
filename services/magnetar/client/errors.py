"""The errors of the client: one tree, whose leaves name the topic, the broker and the remedy.

Every error that a call of this package raises is a `ClientError`, except `asyncio.CancelledError`
and the errors of users' own code (schemas, interceptors, listeners). `code` is the protocol's
number if a broker sent the error. `retryable` says whether the same call may succeed later; the
client itself retries such errors until the call's timeout.
"""

from collections.abc import Mapping
from typing import Final


class ClientError(Exception):
    """Base of all errors of the client."""

    remedy: str = ""
    """What to do about it; empty if the message says so already."""
    retryable: bool = False

    def __init__(
        self, message: str, *, topic: str = "", broker: str = "", code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.topic = topic
        self.broker = broker
        self.code = code

    def __str__(self) -> str:
        named = [
            f"{name} {value}"
            for name, value in (("topic", self.topic), ("broker", self.broker))
            if value and value not in self.message
        ]
        text = f"{self.message} ({', '.join(named)})" if named else self.message
        return f"{text}. {self.remedy}" if self.remedy else text


class InvalidConfiguration(ClientError, ValueError):
    """An argument or a combination of arguments is not valid."""


class MissingExtra(ClientError, ImportError):
    """A feature needs a library that is not installed."""


class AlreadyClosed(ClientError):
    """The client, producer, consumer or reader is closed."""


class UsedAfterFork(ClientError):
    """The client was created in the parent of this process, and its connections belong there."""

    remedy = "Create a new client in the child process"


class OperationTimeout(ClientError, TimeoutError):
    """No answer came within the timeout of the call."""

    retryable = True


class ConnectFailed(ClientError, ConnectionError):
    """No connection to a broker: refused, unreachable, or lost before it was ready."""

    retryable = True


class CertificateRejected(ConnectFailed):
    """The certificate of a server has another host name, or no trusted authority has issued it."""

    retryable = False
    remedy = "Check `tls`: its trust_certificates_file, and the host name in the service URL"


class Disconnected(ClientError, ConnectionError):
    """The connection was lost while a request waited for its answer."""

    retryable = True


class LookupFailed(ClientError):
    """The broker that serves the topic could not be determined."""

    retryable = True


class ServerFailed(ClientError):
    """The broker refused the request for a reason without a class of its own."""


class ServiceNotReady(ServerFailed):
    """The broker cannot serve the request now."""

    retryable = True


class TooManyRequests(ServerFailed):
    """The broker has reached a bound on concurrent requests."""

    retryable = True
    remedy = "Send fewer requests at a time"


class MetadataFailed(ServerFailed):
    """The broker could not read or write metadata."""

    retryable = True


class PersistenceFailed(ServerFailed):
    """The broker could not store or read an entry."""

    retryable = True


class AuthenticationFailed(ServerFailed):
    """The broker did not accept the credentials."""

    remedy = "Check the client's `auth`, and that the broker knows this method"


class AuthorizationFailed(ServerFailed):
    """The role of this client may not do this."""

    remedy = "Grant the role `produce` or `consume` on the topic or its namespace"


class UnsupportedVersion(ServerFailed):
    """The broker does not have this feature, or it is off."""


class NotAllowed(ServerFailed):
    """A policy or the state of the topic does not permit the request."""


class InvalidTopicName(ServerFailed, ValueError):
    """The name does not have the form `domain://tenant/namespace/topic`."""


class TopicNotFound(ServerFailed):
    """The topic does not exist and may not be created automatically."""

    remedy = "Create the topic, or allow automatic creation in its namespace"


class TopicTerminated(ServerFailed):
    """The topic is terminated and takes no more messages."""


class SubscriptionNotFound(ServerFailed):
    """The subscription does not exist and may not be created automatically."""


class ConsumerNotFound(ServerFailed):
    """The broker does not know the consumer."""

    retryable = True


class IncompatibleSchema(ServerFailed):
    """The schema does not fit the schemas of the topic."""


class SchemaFailed(ClientError, ValueError):
    """A value cannot be encoded, or bytes cannot be decoded, by the schema."""


class ProducerError(ServerFailed):
    """The broker refuses the producer."""


class ProducerBusy(ProducerError):
    """Another producer has this name, or the topic has as many producers as it may."""

    remedy = "Choose another producer name, or leave it out"


class ProducerFenced(ProducerError):
    """Another producer has exclusive access to the topic."""


class QuotaExceeded(ProducerError):
    """The backlog of the topic exceeds its quota."""

    remedy = "Consume the backlog, or raise the quota of the namespace"


class ConsumerBusy(ServerFailed):
    """The subscription does not take this consumer."""

    remedy = "Use another subscription name, or the type that its consumers have"


class ConsumerAssignFailed(ServerFailed):
    """The hash ranges of this consumer overlap with those of another."""


class SendFailed(ClientError):
    """A message was not sent. Base of the errors of single messages."""


class ProducerQueueIsFull(SendFailed):
    """As many messages wait for receipts as `max_pending_messages` permits."""

    retryable = True
    remedy = "Await `send()`, which waits for room, or raise max_pending_messages"


class MemoryBufferIsFull(SendFailed):
    """The messages that wait for receipts hold the client's whole `memory_limit_bytes`."""

    retryable = True
    remedy = "Await `send()`, which waits for room, or raise memory_limit_bytes"


class MessageTooBig(SendFailed, ValueError):
    """The message exceeds the broker's maximum size."""

    remedy = "Enable `chunking`, or compress the message"


class SendTimeout(SendFailed, TimeoutError):
    """No receipt came within `send_timeout_s`; whether the message is stored is unknown."""

    retryable = True


class ChecksumFailed(SendFailed):
    """The broker received other bytes than those that were sent."""


class DuplicateUnknown(SendFailed):
    """The broker cannot tell yet whether the message is a duplicate."""

    retryable = True


class MalformedMessage(ClientError):
    """A received message cannot be read: its checksum, compression or layout is wrong."""


class EncryptionFailed(ClientError):
    """A message cannot be encrypted or decrypted."""


class EncryptionRequired(ServerFailed):
    """The namespace takes encrypted messages only."""

    remedy = "Give the producer `encryption`"


class AckFailed(ServerFailed):
    """The broker did not record an acknowledgment."""


class TransactionError(ServerFailed):
    """Base of the errors of transactions."""


class TransactionConflict(TransactionError):
    """Another transaction has acknowledged the message, or it is acknowledged already."""


class TransactionNotFound(TransactionError):
    """The coordinator does not know the transaction: it has ended, or belongs to another role."""


class TransactionOutcomeUnknown(TransactionError):
    """The end of a transaction was requested twice, and the first request had no final answer.

    The coordinator no longer knows the transaction, so the first request may have succeeded: read
    the results before the work is repeated.
    """


class InvalidTransactionState(TransactionError):
    """The transaction has ended, or is ending."""


class TransactionLost(TransactionError):
    """The client has left the cluster in which the transaction began: it is aborted there."""

    remedy = "Begin another transaction"


class CoordinatorNotFound(TransactionError):
    """No broker serves the transaction coordinator now."""

    retryable = True


class TransactionsDisabled(TransactionError):
    """The cluster has no transaction coordinators."""

    remedy = "Enable transactions: `transactionCoordinatorEnabled=true` in the broker's settings"


class TransactionHasFailures(TransactionError):
    """A message or acknowledgment of the transaction failed, so it was aborted."""


_BY_CODE: Final[Mapping[int, type[ClientError]]] = {
    0: ServerFailed,
    1: MetadataFailed,
    2: PersistenceFailed,
    3: AuthenticationFailed,
    4: AuthorizationFailed,
    5: ConsumerBusy,
    6: ServiceNotReady,
    7: QuotaExceeded,
    8: QuotaExceeded,
    9: ChecksumFailed,
    10: UnsupportedVersion,
    11: TopicNotFound,
    12: SubscriptionNotFound,
    13: ConsumerNotFound,
    14: TooManyRequests,
    15: TopicTerminated,
    16: ProducerBusy,
    17: InvalidTopicName,
    18: IncompatibleSchema,
    19: ConsumerAssignFailed,
    20: CoordinatorNotFound,
    21: InvalidTransactionState,
    22: NotAllowed,
    23: TransactionConflict,
    24: TransactionNotFound,
    25: ProducerFenced,
}


def server_error(code: int, text: str, *, topic: str = "", broker: str = "") -> ClientError:
    """Returns the error for a `ServerError` number of the protocol and the broker's text."""
    kind = _BY_CODE.get(code, ServerFailed)
    if kind is MetadataFailed and text.startswith("Encryption is required"):
        kind = EncryptionRequired
    return kind(text or kind.__name__, topic=topic, broker=broker, code=code)

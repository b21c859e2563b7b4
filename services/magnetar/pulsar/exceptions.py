"""The exceptions of the official client: one class for each `Result`, all below PulsarException."""

from magnetar.pulsar.enums import Result


class PulsarException(Exception):
    """Base of all errors; its text names what happened, the topic, and what to do."""

    result: Result = Result.UnknownError


class UnknownError(PulsarException):
    """`Result.UnknownError`."""

    result = Result.UnknownError


class InvalidConfiguration(PulsarException):
    """`Result.InvalidConfiguration`."""

    result = Result.InvalidConfiguration


class Timeout(PulsarException):
    """`Result.Timeout`."""

    result = Result.Timeout


class LookupError(PulsarException):  # noqa: A001
    """`Result.LookupError`."""

    result = Result.LookupError


class ConnectError(PulsarException):
    """`Result.ConnectError`."""

    result = Result.ConnectError


class ReadError(PulsarException):
    """`Result.ReadError`."""

    result = Result.ReadError


class AuthenticationError(PulsarException):
    """`Result.AuthenticationError`."""

    result = Result.AuthenticationError


class AuthorizationError(PulsarException):
    """`Result.AuthorizationError`."""

    result = Result.AuthorizationError


class ErrorGettingAuthenticationData(PulsarException):
    """`Result.ErrorGettingAuthenticationData`."""

    result = Result.ErrorGettingAuthenticationData


class BrokerMetadataError(PulsarException):
    """`Result.BrokerMetadataError`."""

    result = Result.BrokerMetadataError


class BrokerPersistenceError(PulsarException):
    """`Result.BrokerPersistenceError`."""

    result = Result.BrokerPersistenceError


class ChecksumError(PulsarException):
    """`Result.ChecksumError`."""

    result = Result.ChecksumError


class ConsumerBusy(PulsarException):
    """`Result.ConsumerBusy`."""

    result = Result.ConsumerBusy


class NotConnected(PulsarException):
    """`Result.NotConnected`."""

    result = Result.NotConnected


class AlreadyClosed(PulsarException):
    """`Result.AlreadyClosed`."""

    result = Result.AlreadyClosed


class InvalidMessage(PulsarException):
    """`Result.InvalidMessage`."""

    result = Result.InvalidMessage


class ConsumerNotInitialized(PulsarException):
    """`Result.ConsumerNotInitialized`."""

    result = Result.ConsumerNotInitialized


class ProducerNotInitialized(PulsarException):
    """`Result.ProducerNotInitialized`."""

    result = Result.ProducerNotInitialized


class ProducerBusy(PulsarException):
    """`Result.ProducerBusy`."""

    result = Result.ProducerBusy


class TooManyLookupRequestException(PulsarException):
    """`Result.TooManyLookupRequestException`."""

    result = Result.TooManyLookupRequestException


class InvalidTopicName(PulsarException):
    """`Result.InvalidTopicName`."""

    result = Result.InvalidTopicName


class InvalidUrl(PulsarException):
    """`Result.InvalidUrl`."""

    result = Result.InvalidUrl


class ServiceUnitNotReady(PulsarException):
    """`Result.ServiceUnitNotReady`."""

    result = Result.ServiceUnitNotReady


class OperationNotSupported(PulsarException):
    """`Result.OperationNotSupported`."""

    result = Result.OperationNotSupported


class ProducerBlockedQuotaExceededError(PulsarException):
    """`Result.ProducerBlockedQuotaExceededError`."""

    result = Result.ProducerBlockedQuotaExceededError


class ProducerBlockedQuotaExceededException(PulsarException):
    """`Result.ProducerBlockedQuotaExceededException`."""

    result = Result.ProducerBlockedQuotaExceededException


class ProducerQueueIsFull(PulsarException):
    """`Result.ProducerQueueIsFull`."""

    result = Result.ProducerQueueIsFull


class MessageTooBig(PulsarException):
    """`Result.MessageTooBig`."""

    result = Result.MessageTooBig


class TopicNotFound(PulsarException):
    """`Result.TopicNotFound`."""

    result = Result.TopicNotFound


class SubscriptionNotFound(PulsarException):
    """`Result.SubscriptionNotFound`."""

    result = Result.SubscriptionNotFound


class ConsumerNotFound(PulsarException):
    """`Result.ConsumerNotFound`."""

    result = Result.ConsumerNotFound


class UnsupportedVersionError(PulsarException):
    """`Result.UnsupportedVersionError`."""

    result = Result.UnsupportedVersionError


class TopicTerminated(PulsarException):
    """`Result.TopicTerminated`."""

    result = Result.TopicTerminated


class CryptoError(PulsarException):
    """`Result.CryptoError`."""

    result = Result.CryptoError


class IncompatibleSchema(PulsarException):
    """`Result.IncompatibleSchema`."""

    result = Result.IncompatibleSchema


class ConsumerAssignError(PulsarException):
    """`Result.ConsumerAssignError`."""

    result = Result.ConsumerAssignError


class CumulativeAcknowledgementNotAllowedError(PulsarException):
    """`Result.CumulativeAcknowledgementNotAllowedError`."""

    result = Result.CumulativeAcknowledgementNotAllowedError


class TransactionCoordinatorNotFoundError(PulsarException):
    """`Result.TransactionCoordinatorNotFoundError`."""

    result = Result.TransactionCoordinatorNotFoundError


class InvalidTxnStatusError(PulsarException):
    """`Result.InvalidTxnStatusError`."""

    result = Result.InvalidTxnStatusError


class NotAllowedError(PulsarException):
    """`Result.NotAllowedError`."""

    result = Result.NotAllowedError


class TransactionConflict(PulsarException):
    """`Result.TransactionConflict`."""

    result = Result.TransactionConflict


class TransactionNotFound(PulsarException):
    """`Result.TransactionNotFound`."""

    result = Result.TransactionNotFound


class ProducerFenced(PulsarException):
    """`Result.ProducerFenced`."""

    result = Result.ProducerFenced


class MemoryBufferIsFull(PulsarException):
    """`Result.MemoryBufferIsFull`."""

    result = Result.MemoryBufferIsFull


class Interrupted(PulsarException):
    """`Result.Interrupted`."""

    result = Result.Interrupted


BY_RESULT: dict[Result, type[PulsarException]] = {
    kind.result: kind for kind in PulsarException.__subclasses__()
}
"""The class of each result but Ok."""
__all__ = [
    "AlreadyClosed",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "ChecksumError",
    "ConnectError",
    "ConsumerAssignError",
    "ConsumerBusy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "CryptoError",
    "CumulativeAcknowledgementNotAllowedError",
    "ErrorGettingAuthenticationData",
    "IncompatibleSchema",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "LookupError",
    "MemoryBufferIsFull",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "PulsarException",
    "ReadError",
    "ServiceUnitNotReady",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "UnknownError",
    "UnsupportedVersionError",
]

"""Which result and exception of the official client stands for an error of `magnetar.client`."""

import concurrent.futures
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from magnetar.client import errors
from magnetar.pulsar.enums import Result
from magnetar.pulsar.exceptions import (
    BY_RESULT,
    Interrupted,
    OperationNotSupported,
    PulsarException,
)

_RESULTS: Final[tuple[tuple[type[errors.ClientError], Result], ...]] = (
    (errors.AlreadyClosed, Result.AlreadyClosed),
    (errors.UsedAfterFork, Result.OperationNotSupported),
    (errors.MissingExtra, Result.OperationNotSupported),
    (errors.InvalidTopicName, Result.InvalidTopicName),
    (errors.InvalidConfiguration, Result.InvalidConfiguration),
    (errors.SendTimeout, Result.Timeout),
    (errors.OperationTimeout, Result.Timeout),
    (errors.CertificateRejected, Result.ConnectError),
    # The official client tries to connect until the timeout of the operation, and reports that.
    (errors.ConnectFailed, Result.Timeout),
    (errors.Disconnected, Result.NotConnected),
    (errors.LookupFailed, Result.LookupError),
    (errors.TooManyRequests, Result.TooManyLookupRequestException),
    (errors.ServiceNotReady, Result.ServiceUnitNotReady),
    (errors.MetadataFailed, Result.BrokerMetadataError),
    (errors.PersistenceFailed, Result.BrokerPersistenceError),
    (errors.AuthenticationFailed, Result.AuthenticationError),
    (errors.AuthorizationFailed, Result.AuthorizationError),
    (errors.UnsupportedVersion, Result.UnsupportedVersionError),
    (errors.NotAllowed, Result.NotAllowedError),
    (errors.TopicNotFound, Result.TopicNotFound),
    (errors.TopicTerminated, Result.TopicTerminated),
    (errors.SubscriptionNotFound, Result.SubscriptionNotFound),
    (errors.ConsumerNotFound, Result.ConsumerNotFound),
    (errors.IncompatibleSchema, Result.IncompatibleSchema),
    (errors.SchemaFailed, Result.InvalidMessage),
    (errors.MalformedMessage, Result.InvalidMessage),
    (errors.ProducerFenced, Result.ProducerFenced),
    (errors.ProducerBusy, Result.ProducerBusy),
    (errors.ConsumerBusy, Result.ConsumerBusy),
    (errors.ConsumerAssignFailed, Result.ConsumerAssignError),
    (errors.ProducerQueueIsFull, Result.ProducerQueueIsFull),
    (errors.MemoryBufferIsFull, Result.MemoryBufferIsFull),
    (errors.MessageTooBig, Result.MessageTooBig),
    (errors.ChecksumFailed, Result.ChecksumError),
    (errors.EncryptionFailed, Result.CryptoError),
    (errors.EncryptionRequired, Result.BrokerMetadataError),
)
_QUOTA_EXCEPTION: Final = 8
"""The protocol's number of a quota whose producers get an exception."""
_PREFIXED: Final = (
    Result.ConsumerAssignError,
    Result.CumulativeAcknowledgementNotAllowedError,
    Result.Interrupted,
    Result.InvalidTxnStatusError,
    Result.MemoryBufferIsFull,
    Result.NotAllowedError,
    Result.ProducerFenced,
    Result.TransactionConflict,
    Result.TransactionCoordinatorNotFoundError,
    Result.TransactionNotFound,
)
_OTHER_NAMES: Final = {
    Result.Timeout: "TimeOut",
    **{result: f"Result{result.name}" for result in _PREFIXED},
}
"""In texts, the official client names these otherwise."""


def result_of(error: BaseException) -> Result:
    """Returns the official client's result for an error."""
    if isinstance(error, PulsarException):
        return error.result
    if isinstance(error, errors.QuotaExceeded):
        if error.code == _QUOTA_EXCEPTION:
            return Result.ProducerBlockedQuotaExceededException
        return Result.ProducerBlockedQuotaExceededError
    for kind, result in _RESULTS:
        if isinstance(error, kind):
            return result
    if isinstance(error, concurrent.futures.CancelledError):
        return Result.AlreadyClosed
    return Result.UnknownError


def text_of(result: Result) -> str:
    """Returns the official client's name of a result in its texts."""
    return _OTHER_NAMES.get(result, result.name)


def exception_of(error: errors.ClientError) -> PulsarException:
    """Returns the official client's exception for an error."""
    result = result_of(error)
    return BY_RESULT[result](f"Pulsar error: {text_of(result)}: {error}")


@contextmanager
def translated() -> Iterator[None]:
    """Raises the official client's exceptions instead of those of `magnetar.client`."""
    try:
        yield
    except errors.ClientError as error:
        raise exception_of(error) from error
    except KeyboardInterrupt as error:
        # The official client ends a waiting call so, and not by KeyboardInterrupt.
        raise Interrupted(f"Pulsar error: {text_of(Result.Interrupted)}") from error


@contextmanager
def translated_values() -> Iterator[None]:
    """Raises ValueError for arguments that `magnetar.client` refuses."""
    try:
        yield
    except errors.InvalidConfiguration as error:
        raise ValueError(str(error)) from error


def refuse_closed(refusal: BaseException | None) -> None:
    """Raises the official client's exception for what is closed already."""
    if isinstance(refusal, errors.AlreadyClosed):
        raise exception_of(refusal)


@contextmanager
def translated_ids() -> Iterator[None]:
    """Raises the official client's exception for an id that belongs to no topic of a consumer."""
    try:
        yield
    except errors.InvalidConfiguration as error:
        raise OperationNotSupported(f"Pulsar error: OperationNotSupported: {error}") from error

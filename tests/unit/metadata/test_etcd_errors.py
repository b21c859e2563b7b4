"""What a failed call says of the request: done never, perhaps, or refused for a reason."""

import grpc
import pytest
from grpc import StatusCode as Code
from grpc.aio import Metadata

from magnetar.core.errors import MetadataError
from magnetar.metadata.etcd.errors import (
    AnswerTooLarge,
    MetadataFull,
    MetadataRefused,
    Outcome,
    PassingFault,
    translate,
)
from magnetar.metadata.store import Compacted, InvalidOperation, LeaseLost


def failed(code: Code, text: str | None) -> MetadataError | PassingFault:
    return translate(grpc.aio.AioRpcError(code, Metadata(), Metadata(), text))


@pytest.mark.parametrize(
    ("code", "text", "outcome"),
    [
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Outcome.TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Outcome.TOKEN),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Outcome.TOKEN),
        (Code.UNAVAILABLE, "etcdserver: no leader", Outcome.NOT_DONE),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Outcome.NOT_DONE),
        # etcd may have executed all of these.
        (Code.UNAVAILABLE, "etcdserver: request timed out", Outcome.UNKNOWN),
        (Code.UNAVAILABLE, "etcdserver: leader changed", Outcome.UNKNOWN),
        (Code.UNAVAILABLE, "failed to connect to all addresses", Outcome.UNKNOWN),
        (Code.UNAVAILABLE, None, Outcome.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Outcome.UNKNOWN),
        (Code.CANCELLED, "", Outcome.UNKNOWN),
        (Code.INTERNAL, "Received RST_STREAM", Outcome.UNKNOWN),
        (Code.UNKNOWN, "panic", Outcome.UNKNOWN),
        (Code.RESOURCE_EXHAUSTED, "out of memory", Outcome.UNKNOWN),
    ],
)
def test_a_failure_that_may_pass_says_whether_the_request_was_executed(
    code: Code, text: str | None, outcome: Outcome
) -> None:
    fault = failed(code, text)
    assert isinstance(fault, PassingFault)
    assert fault.outcome is outcome
    if outcome is Outcome.UNKNOWN:
        assert fault.text == f"{code.name}: {text or ''}"
    else:
        assert fault.text == text


@pytest.mark.parametrize(
    ("code", "text", "error", "said"),
    [
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseLost, "expired"),
        (
            Code.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted",
            Compacted,
            "compacted",
        ),
        (
            Code.INVALID_ARGUMENT,
            "etcdserver: request is too large",
            InvalidOperation,
            "--max-request-bytes",
        ),
        (
            Code.INVALID_ARGUMENT,
            "etcdserver: too many operations in txn request",
            InvalidOperation,
            "--max-txn-ops",
        ),
        (
            Code.RESOURCE_EXHAUSTED,
            "etcdserver: mvcc: database space exceeded",
            MetadataFull,
            "--quota-backend-bytes",
        ),
        (
            Code.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (9 vs. 8)",
            AnswerTooLarge,
            "larger than max",
        ),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", MetadataRefused, "role"),
        (Code.INVALID_ARGUMENT, "etcdserver: key is not provided", MetadataError, "refused"),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: a future revision", MetadataError, "refused"),
        (Code.FAILED_PRECONDITION, "etcdserver: not enabled", MetadataError, "refused"),
        (Code.UNIMPLEMENTED, "unknown service", MetadataError, "v3 API"),
    ],
)
def test_a_final_failure_names_its_reason_and_what_to_do(
    code: Code, text: str, error: type[MetadataError], said: str
) -> None:
    found = failed(code, text)
    assert type(found) is error
    assert said in found.message

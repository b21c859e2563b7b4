"""Translation of gRPC's errors into the outcome of a request to etcd.

Three kinds of failure may be retried: NOT_DONE, etcd did not execute the request; TOKEN, etcd did
not execute it because it refused the token; UNKNOWN, etcd may have executed it, and the answer is
missing. All others are final, and become errors of `store`.
"""

import asyncio
from enum import Enum
from typing import Final

import grpc

from magnetar.core.errors import MetadataError
from magnetar.metadata.store import Compacted, InvalidOperation, LeaseLost

Code = grpc.StatusCode


class Outcome(Enum):
    """The possible outcome of a request that failed temporarily."""

    NOT_DONE = "not done"
    TOKEN = "token refused"  # noqa: S105 - no password
    UNKNOWN = "unknown"


class PassingFault(Exception):
    """A call failed temporarily."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome, self.text = outcome, text


class MetadataRefused(MetadataError):
    """etcd refuses our user, or requires one. Not about the authentication of clients."""


class MetadataWentBack(MetadataError):
    """etcd is at an older revision than before: this process's view of it is not valid."""


class AnswerTooLarge(MetadataError):
    """The answer exceeds the size of a message: request less at once."""


class MetadataFull(MetadataError):
    """etcd refuses writes until it gets more space."""


TOKEN_TEXTS: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
NOT_DONE_TEXTS: Final = ("etcdserver: no leader", "etcdserver: too many requests")


def translate(error: grpc.aio.AioRpcError) -> MetadataError | PassingFault:
    """Returns the error to raise for a failed call."""
    code, text = error.code(), error.details() or ""
    if any(part in text for part in TOKEN_TEXTS):
        return PassingFault(Outcome.TOKEN, text)
    if any(part in text for part in NOT_DONE_TEXTS):
        return PassingFault(Outcome.NOT_DONE, text)
    if (final := _final(code, text)) is not None:
        return final
    return PassingFault(Outcome.UNKNOWN, f"{code.name}: {text}")


def _final(code: grpc.StatusCode, text: str) -> MetadataError | None:
    if "requested lease not found" in text:
        return LeaseLost("the lease has expired or was revoked")
    if "required revision has been compacted" in text:
        return Compacted("the revision asked for is compacted")
    if "request is too large" in text or "too many operations" in text:
        return InvalidOperation(
            f"{text}: write less at once (etcd's --max-request-bytes, --max-txn-ops)"
        )
    if "space exceeded" in text:
        return MetadataFull(
            f"{text}: etcd refuses writes until it is compacted and defragmented and its alarm is "
            "disarmed, or --quota-backend-bytes is raised"
        )
    if code is Code.RESOURCE_EXHAUSTED and "larger than max" in text:
        return AnswerTooLarge(text)
    if code is Code.PERMISSION_DENIED:
        return MetadataRefused(
            f"etcd: {text}: the user's role lacks a key range (`magnetar etcd roles` lists them)"
        )
    if code in (Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.FAILED_PRECONDITION):
        return MetadataError(f"etcd refused: {text}")
    if code is Code.UNIMPLEMENTED:
        return MetadataError(f"not an etcd with the v3 API (3.4 or newer): {text}")
    return None


def by_peer() -> bool:
    """Whether a CancelledError comes from gRPC, and not from the cancellation of this task.

    gRPC cancels calls when their channel is closed. Call it in the handler of the error.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0

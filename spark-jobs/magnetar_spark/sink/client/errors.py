"""What can go wrong with a request to a broker."""

from typing import Final

from magnetar.core.errors import MagnetarError, ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb


class Refused(MagnetarError):
    """A broker answered with an error."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{_name(number)}: {text}")
        self.number = number


class Unavailable(MagnetarError):
    """There is no connection, or no answer in time; the outcome of the request is unknown."""


PASSING: Final = frozenset(
    (
        ServerError.METADATA_ERROR,
        ServerError.PERSISTENCE_ERROR,
        ServerError.SERVICE_NOT_READY,
        ServerError.TOO_MANY_REQUESTS,
        ServerError.PRODUCER_BUSY,
        ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
    )
)
"""Answers upon which a request is repeated after a new look-up."""


def passes(error: MagnetarError) -> bool:
    """Whether the request may succeed when it is repeated."""
    if isinstance(error, Refused):
        return error.number in PASSING
    return isinstance(error, Unavailable)


def _name(number: int) -> str:
    try:
        return pb.ServerError.Name(pb.ServerError.ValueType(number))
    except ValueError:
        return f"error {number}"

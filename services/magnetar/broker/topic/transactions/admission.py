"""The answers to a message of a transaction, or with a delivery time."""

from typing import Final

from magnetar.core.errors import MagnetarError


class Undecided:
    """The record of the transaction is being read, or the index of delays is being created."""


UNDECIDED: Final = Undecided()

Admission = MagnetarError | Undecided | None
"""None: the message may be stored. An error: it is refused."""

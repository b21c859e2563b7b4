"""The answers to a message of a transaction."""

from typing import Final

from magnetar.core.errors import MagnetarError


class Undecided:
    """The record of the transaction is being read."""


UNDECIDED: Final = Undecided()

Admission = MagnetarError | Undecided | None
"""None: the message may be stored. An error: it is refused."""

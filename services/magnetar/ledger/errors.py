"""Errors of ledgers that are on several bookies."""

from magnetar.bookie.api import BookieError, BookieLate, BookieUnavailable
from magnetar.core.errors import PersistenceError, ServerError


class LedgerClosed(PersistenceError):
    """The ledger was closed by its own writer."""


class NotEnoughBookies(BookieError):
    """Fewer bookies take adds than the ack quorum asks for; the text names those left out."""


class ReadTimeout(BookieLate):
    """No bookie answered a read in time."""


class RecoveryFailed(BookieUnavailable):
    """Where the ledger ends cannot be known now; it stays in recovery. To be tried again."""

    code = ServerError.SERVICE_NOT_READY
    http_status = 503

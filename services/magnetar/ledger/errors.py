"""Errors of replicated ledgers."""

from magnetar.bookie.api import BookieError, BookieLate, BookieUnavailable
from magnetar.core.errors import PersistenceError, ServerError


class LedgerClosed(PersistenceError):
    """The ledger was closed by its own writer."""


class NotEnoughBookies(BookieError):
    """Fewer bookies take adds than the ack quorum needs; the text names the excluded ones."""


class ReadTimeout(BookieLate):
    """No bookie answered a read in time."""


class RecoveryFailed(BookieUnavailable):
    """The ledger's end cannot be determined now; the ledger stays in recovery. Retry later."""

    code = ServerError.SERVICE_NOT_READY
    http_status = 503

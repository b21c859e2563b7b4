"""Limits uvicorn's warnings about clients, so that a client cannot fill the log.

uvicorn warns of every malformed request, of every offer to switch to another protocol (Java's
client offers HTTP/2 in each request), and of every request beyond its limit of connections. Each of
these texts passes once an hour; errors always pass.
"""

import logging
from typing import Final

from magnetar.core.causes import Causes

LOGGER: Final = "uvicorn.error"


class OncePerText(logging.Filter):
    """Passes a warning unless the same text passed lately."""

    def __init__(self) -> None:
        super().__init__()
        self._causes = Causes()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        return record.levelno != logging.WARNING or self._causes.is_new(record.getMessage())


_FILTER: Final = OncePerText()


def install() -> None:
    """Limits the warnings of this process. Idempotent."""
    logging.getLogger(LOGGER).addFilter(_FILTER)

"""Where the client's log goes: the official client's loggers, as handlers of Python's logging."""

import logging
from typing import Final

from magnetar.pulsar.enums import LoggerLevel
from magnetar.pulsar.policies import ConsoleLogger, FileLogger

NAME: Final = "magnetar"
"""The logger whose lines are those of the client."""
FORMAT: Final = "%(asctime)s %(levelname)-5s %(name)s: %(message)s"
_LEVELS: Final = {
    LoggerLevel.Debug: logging.DEBUG,
    LoggerLevel.Info: logging.INFO,
    LoggerLevel.Warn: logging.WARNING,
    LoggerLevel.Error: logging.ERROR,
}


class _Forward(logging.Handler):
    """Hands lines to a logger of the program."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__(target.getEffectiveLevel())
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self._target.isEnabledFor(record.levelno):
            self._target.handle(record)


def handler_of(logger: object) -> logging.Handler | None:
    """Returns what a `logger=` argument stands for; raises ValueError."""
    if logger is None:
        return None
    if isinstance(logger, logging.Logger):
        own = logger is logging.getLogger() or logger.name.split(".")[0] == NAME
        return None if own else _Forward(logger)  # those get the lines already
    handler: logging.Handler
    if isinstance(logger, FileLogger):
        handler = logging.FileHandler(logger.log_file, delay=True)
    elif isinstance(logger, ConsoleLogger):
        handler = logging.StreamHandler()
    else:
        raise ValueError(
            "Argument logger must be None, a logging.Logger, a ConsoleLogger or a FileLogger"
        )
    handler.setLevel(_LEVELS[logger.log_level])
    handler.setFormatter(logging.Formatter(FORMAT))
    return handler


def attach(handler: logging.Handler | None) -> None:
    """Adds a client's handler; lines of all clients of the process go to it."""
    if handler is not None:
        logging.getLogger(NAME).addHandler(handler)
        _set_level()


def detach(handler: logging.Handler | None) -> None:
    """Removes a client's handler."""
    if handler is not None:
        logging.getLogger(NAME).removeHandler(handler)
        handler.close()
        _set_level()


def _set_level() -> None:
    """Makes the logger pass on what the handlers want; without any, what the program wants."""
    logger = logging.getLogger(NAME)
    logger.setLevel(min((handler.level for handler in logger.handlers), default=logging.NOTSET))

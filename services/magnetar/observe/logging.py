"""Log lines, for people on a terminal and as JSON for collectors.

Both formats print the fields of a line (`magnetar.core.log`) after its event. Records of libraries
(uvicorn, asyncio) use the same handler, so the process has one stream in one format. The handler
drops the lines of HTTP clients about single requests (QUIET_LIBRARIES), because an admin request
may fan out to all brokers.
"""

import json
import logging
import sys
import time
from typing import Final, TextIO

from magnetar.core.log import FIELDS
from magnetar.observe.role_log import AS_IT_IS, ROLE_FIELDS, shown_role

_COLOURS: Final = {"DEBUG": "36", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}
QUIET_LIBRARIES: Final = ("httpx", "httpcore")
"""Libraries that log at WARNING and above only, at any level of the process."""


def configure(
    log_format: str = "auto",
    level: str = "info",
    stream: TextIO | None = None,
    role_log: str = AS_IT_IS,
) -> None:
    """Sets up the process's log: `auto` is console on a terminal and JSON elsewhere.

    `role_log`: how lines show roles, one of the modes of `magnetar.observe.role_log`.
    """
    out = stream or sys.stderr
    terminal = out.isatty()
    handler = logging.StreamHandler(out)
    if log_format == "console" or (log_format == "auto" and terminal):
        handler.setFormatter(ConsoleFormatter(colour=terminal, role_log=role_log))
    else:
        handler.setFormatter(JsonFormatter(role_log=role_log))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for library in QUIET_LIBRARIES:
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, event, then the fields."""

    def __init__(self, *, role_log: str = AS_IT_IS) -> None:
        super().__init__()
        self._role_log = role_log

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record, self._role_log),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class ConsoleFormatter(logging.Formatter):
    """`12:30:01.250 info    magnetar.broker  event  key=value`, coloured on a terminal."""

    def __init__(self, *, colour: bool, role_log: str = AS_IT_IS) -> None:
        super().__init__()
        self._role_log = role_log
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower():<7}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        fields = _fields(record, self._role_log)
        pairs = "".join(f" {key}={_shown(value)}" for key, value in fields.items())
        head = (
            f"{clock}.{int(record.msecs):03d} {level} {record.name}  {record.getMessage()}{pairs}"
        )
        return f"{head}\n{self.formatException(record.exc_info)}" if record.exc_info else head


def _fields(record: logging.LogRecord, role_log: str) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, FIELDS, {})
    if role_log == AS_IT_IS or ROLE_FIELDS.isdisjoint(fields):
        return fields
    return {
        key: shown_role(str(value), role_log) if key in ROLE_FIELDS and value is not None else value
        for key, value in fields.items()
    }


def _shown(value: object) -> str:
    """Returns a value as text, quoted if it has characters that a terminal would act on."""
    text = str(value)
    quoted = not text or not text.isprintable() or any(c in ' "=' for c in text)
    return json.dumps(text) if quoted else text


def _utc(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"

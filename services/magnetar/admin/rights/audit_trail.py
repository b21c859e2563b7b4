"""Writes the audit records of requests once their answer is known, with its status.

The guard knows who sends a request and whether it is admitted; the status of the answer is known
only outside of the application, which turns errors into answers. `AuditTrail` therefore gives each
request a list, to which the guard adds its record, and writes the list when the request has ended.
A request whose connection was lost before the answer has no status: it may have had its effect.
"""

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magnetar.observe.audit import AuditLog, AuditRecord

_KEY: Final = "magnetar.audit"


class AuditTrail:
    """ASGI middleware around the whole application of a broker that has an audit log."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        records: list[AuditRecord] = []
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app({**scope, _KEY: records}, receive, watch)
        finally:
            for record in records:
                self._audit.record(replace(record, status=status))


def note(scope: MutableMapping[str, Any], record: AuditRecord) -> None:
    """Records the request once it has ended; does nothing without an audit log."""
    records: list[AuditRecord] | None = scope.get(_KEY)
    if records is not None:
        records.append(record)

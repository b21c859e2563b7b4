"""Writes permitted PRODUCER and SUBSCRIBE commands to the audit log.

A client may attach and close as fast as it can, and would fill the log, whose oldest files are
deleted. So the same attachment (roles, address, topic, subscription) is written once an hour.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from magnetar.broker.session.session import Handler, Session
from magnetar.core.causes import Causes
from magnetar.observe.audit import AuditLog, AuditRecord
from magnetar.wire.commands import CommandType, command_name

ATTACHING: Final = (CommandType.PRODUCER, CommandType.SUBSCRIBE)


def audited(
    handlers: Mapping[int, Handler], audit: AuditLog, attached: Causes
) -> dict[int, Handler]:
    """Returns the handlers; those that attach a producer or consumer write a record first.

    They run after the check of rights, so they record permitted commands only. `attached` are the
    attachments that were written lately.
    """
    attaching: dict[int, Handler] = {
        kind: _Audited(kind, handlers[kind], audit, attached) for kind in ATTACHING
    }
    return {**handlers, **attaching}


class _Audited:
    """The handler of one command, behind a record of it."""

    __slots__ = ("_audit", "_handler", "_name", "_seen")

    def __init__(self, kind: int, handler: Handler, audit: AuditLog, seen: Causes) -> None:
        self._handler = handler
        self._name = command_name(kind)
        self._audit = audit
        self._seen = seen

    def __call__(self, session: Session, command: Any) -> Coroutine[Any, Any, None] | None:
        principal, address = session.principal, session.wire.peer.address
        topic: str = command.topic
        subscription: str = getattr(command, "subscription", "")
        if self._seen.is_new(str(principal), address, self._name, topic, subscription):
            self._audit.record(
                AuditRecord(
                    action=self._name,
                    target=topic,
                    role=principal.role,
                    original=principal.original or "",
                    address=address,
                    allowed=True,
                    subscription=subscription,
                )
            )
        return self._handler(session, command)

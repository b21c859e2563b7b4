"""Limits the rate of the commands that look up, list or attach, for each address and each role.

Only these cost a client nothing and the broker something: messages and acks need a producer or a
consumer first. The limit of an address does not hold for what a proxy passes on, since all of its
clients have its address, and that of a role not for super users: brokers are some.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from magnetar.broker.rates.request_limit import RequestLimit
from magnetar.broker.session.refusals import REFUSALS
from magnetar.broker.session.session import Handler, Session
from magnetar.core.errors import TooManyRequests
from magnetar.wire.commands import CommandType

LIMITED: Final = (
    CommandType.LOOKUP,
    CommandType.PARTITIONED_METADATA,
    CommandType.GET_TOPICS_OF_NAMESPACE,
    CommandType.WATCH_TOPIC_LIST,
    CommandType.PRODUCER,
    CommandType.SUBSCRIBE,
    CommandType.GET_SCHEMA,
    CommandType.GET_OR_CREATE_SCHEMA,
)
TOO_MANY: Final = "Too many requests of this {} (requests_per_s_max), please retry"


def limited(handlers: Mapping[int, Handler], limit: RequestLimit) -> dict[int, Handler]:
    """Returns the handlers; those of LIMITED refuse what exceeds the rate, before anything else."""
    return {
        **handlers,
        **{kind: _Limited(kind, handlers[kind], limit) for kind in LIMITED},
    }


class _Limited:
    """The handler of one command, behind the limit."""

    __slots__ = ("_handler", "_limit", "_refuse")

    def __init__(self, kind: int, handler: Handler, limit: RequestLimit) -> None:
        self._handler = handler
        self._limit = limit
        self._refuse = REFUSALS.get(kind)

    def __call__(self, session: Session, command: Any) -> Coroutine[Any, Any, None] | None:
        if (exceeded := self._exceeded(session)) is None:
            return self._handler(session, command)
        error = TooManyRequests(TOO_MANY.format(exceeded))
        if self._refuse is None:
            raise error  # the session answers with ERROR
        self._refuse(session, command, error)
        return None

    def _exceeded(self, session: Session) -> str | None:
        """Returns which limit the command exceeds."""
        principal = None if session.access is None else session.principal
        proxied = principal is not None and principal.original is not None
        if not proxied and not self._limit.admits_address(session.wire.peer.address):
            return "address"
        if principal is None:
            return None
        security = session.service.security
        authorizer = None if security is None else security.authorizer
        if authorizer is not None and authorizer.is_super_user(principal):
            return None
        role = principal.original or principal.role
        return None if self._limit.admits_role(role) else "role"

"""Checks the rights of a command before it is handled, and refuses it in its response.

Decisions come from records in memory, so a permitted command is handled at once and in order, as
without authorization. If the records are not loaded, the client gets ServiceNotReady and retries.

A right may be withdrawn while a command attaches a producer or consumer, so these are checked again
once they are attached, and then whenever rights change (`recheck`).
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from magnetar.broker.rates.subscribe_rate import host_of
from magnetar.broker.security.authorizer import Authorizer
from magnetar.broker.security.needs import Need
from magnetar.broker.security.principal import Principal
from magnetar.broker.security.rights import RIGHTS, Right
from magnetar.broker.session.recheck import check_consumer, check_producer
from magnetar.broker.session.refusals import REFUSALS
from magnetar.broker.session.session import Handler, Session
from magnetar.core.errors import AuthorizationError, MagnetarError, ServiceNotReady
from magnetar.wire.commands import CommandType, command_name

NOT_LOADED: Final = "The broker has not loaded the rights of roles, please retry"

CheckAgain = Callable[[Session, Any, Authorizer], None]

_CHECKS_AGAIN: Final[dict[int, CheckAgain]] = {
    CommandType.PRODUCER: lambda session, command, authorizer: check_producer(
        session, command.producer_id, authorizer
    ),
    CommandType.SUBSCRIBE: lambda session, command, authorizer: check_consumer(
        session, command.consumer_id, authorizer
    ),
}
"""The commands that attach something."""


def guarded(handlers: Mapping[int, Handler], authorizer: Authorizer) -> dict[int, Handler]:
    """Returns handlers that check the rights of each command.

    Raises LookupError if the table of rights has no entry for a command.
    """
    missing = [command_name(kind) for kind in handlers if kind not in RIGHTS]
    if missing:
        raise LookupError(f"no rights are defined for the commands {', '.join(missing)}")
    return {
        kind: _Guard(kind, handler, RIGHTS[kind], authorizer) if RIGHTS[kind].checked else handler
        for kind, handler in handlers.items()
    }


class _Guard:
    """The handler of one command, behind the check of its rights."""

    __slots__ = ("_authorizer", "_check_again", "_handler", "_name", "_refuse", "_right")

    def __init__(self, kind: int, handler: Handler, right: Right, authorizer: Authorizer) -> None:
        self._handler = handler
        self._name = command_name(kind)
        self._right = right
        self._authorizer = authorizer
        self._refuse = REFUSALS.get(kind)
        self._check_again = _CHECKS_AGAIN.get(kind)

    def __call__(self, session: Session, command: Any) -> Coroutine[Any, Any, None] | None:
        try:
            self.check(session, command)
        except MagnetarError as error:
            if self._refuse is None:
                raise  # the session answers with ERROR
            self._refuse(session, command, error)
            return None
        pending = self._handler(session, command)
        if pending is None or self._check_again is None:
            return pending
        return self._attach(pending, session, command, self._check_again)

    def check(self, session: Session, command: Any) -> None:
        """Raises AuthorizationError, or ServiceNotReady if it cannot be decided now."""
        principal = session.principal
        for need in self._right.needs(command, session):
            try:
                self._check_need(principal, need)
            except AuthorizationError:
                # Without the port, which a client chooses: refusals count per address.
                address = host_of(session.link.address)
                self._authorizer.denials.record(principal, need, address, self._name)
                raise

    def _check_need(self, principal: Principal, need: Need) -> None:
        allowed = self._authorizer.allowed_now(principal, need)
        if allowed is None:
            raise ServiceNotReady(NOT_LOADED)
        if not allowed:
            raise AuthorizationError(self._right.refusal)

    async def _attach(
        self,
        attaching: Coroutine[Any, Any, None],
        session: Session,
        command: Any,
        check_again: CheckAgain,
    ) -> None:
        await attaching
        check_again(session, command, self._authorizer)

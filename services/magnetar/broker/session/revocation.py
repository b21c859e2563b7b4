"""Closes the connections whose key or password is no longer accepted.

A token without an expiry is valid as long as the key that signed it. If an operator removes that
key, or a user from the file of passwords, open connections must end, too. Every CHECK_S the
authenticator reads changed files; after a change, all sessions are checked, CHECKS_PER_TURN per
turn of the event loop. A proof in progress checks itself when it is complete
(`Access.check_holds`).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.broker.session.session import Session
from magnetar.core.log import get_logger
from magnetar.security.api import Authenticator

log = get_logger("magnetar.authentication")

CHECK_S: Final = 0.5
CHECKS_PER_TURN: Final = 256


class Revocation:
    """Follows the keys and passwords of a broker for its open connections."""

    def __init__(
        self, sessions: Callable[[], Iterable[Session]], authenticator: Authenticator
    ) -> None:
        self._sessions = sessions
        self._authenticator = authenticator
        self._changes = 0

    async def run(self) -> None:
        """Checks until it is cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except Exception:
                # The next check must come: without it, no removed key would count.
                log.exception("keys and passwords were not checked")

    async def check(self) -> None:
        """Closes connections if keys or passwords have changed since the last check."""
        changes = await self._authenticator.reload()
        if changes == self._changes:
            return
        for number, session in enumerate(list(self._sessions()), 1):
            try:
                if session.access is not None:
                    session.access.check_holds()
            except Exception:
                # Its key may be one that was removed, and the other connections must be checked.
                log.exception("key or password not checked", peer=session.link.address)
                session.link.close()
            if not number % CHECKS_PER_TURN:
                await asyncio.sleep(0)
        self._changes = changes

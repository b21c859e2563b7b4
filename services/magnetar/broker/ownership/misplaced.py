"""Moves the bundles of this broker that the rules of placement do not allow here.

Each broker checks its own bundles: after a change of the rules, when a broker joins or leaves, and
every CHECK_S seconds, because rules also depend on loads. Without rules it does nothing. A bundle
moves only to a broker that the rules allow; if there is none, it stays, because a bundle that is
misplaced serves its clients and one without an owner does not.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from magnetar.broker.ownership.api import Rules
from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import Claim, ClaimState
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger

CHECK_S: Final = 30.0
RETRY_S: Final = 1.0
"""The pause after a move that failed."""

log = get_logger("magnetar.ownership.misplaced")


class Owner(Protocol):
    """The bundles of this broker."""

    brokers: BrokerRegistry

    @property
    def serving(self) -> bool:
        """Whether this broker may serve its claims now."""

    @property
    def draining(self) -> bool:
        """Whether this broker is handing over all its bundles."""

    def owned(self) -> Mapping[Bundle, Claim]:
        """Returns this broker's claims by bundle."""

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None:
        """Moves a bundle of this broker to another."""


class Misplaced:
    """Finds and moves misplaced bundles while `run` runs."""

    def __init__(self, owner: Owner, rules: Rules) -> None:
        self._owner = owner
        self._rules = rules
        self._news = asyncio.Event()
        rules.listen(self._news.set)
        owner.brokers.add_listener(lambda _: self._news.set())

    async def run(self) -> None:
        """Checks this broker's bundles after each change, for ever."""
        while True:
            pause_s = None
            if self._rules.active:
                pause_s = CHECK_S if await self.check() else RETRY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            except TimeoutError:
                continue
            finally:
                self._news.clear()

    async def check(self) -> bool:
        """Moves what is misplaced, bundle by bundle; returns whether every move succeeded."""
        owner, succeeded = self._owner, True
        unloads = self._rules.take_unloading()
        own_id = owner.brokers.own.broker_id
        for bundle, claim in list(owner.owned().items()):
            if not owner.serving or owner.draining:
                return True  # the drain hands all bundles over
            namespace = str(bundle.namespace)
            living = [broker.broker_id for broker in owner.brokers.living() if broker.active]
            whole = unloads(namespace, claim.origin)
            if claim.state is not ClaimState.HELD or not (
                whole or self._rules.misplaced(namespace, own_id, living)
            ):
                continue
            reason = "all of its isolation policy's" if whole else "not allowed here"
            log.info("bundle moves by the rules", bundle=str(bundle), reason=reason)
            try:
                await owner.unload(bundle)
            except MagnetarError as error:
                log.info("bundle not moved", bundle=str(bundle), error=str(error))
                succeeded = False
            except Exception:
                # If this task ended, no bundle would follow the rules any more.
                log.exception("bundle not moved", bundle=str(bundle))
                succeeded = False
        return succeeded

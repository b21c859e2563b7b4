"""Moves this broker's bundles to other brokers, and splits them.

A move: choose the new owner; accept nothing more for the bundle; close its topics with everything
durable; hand the record over to the new owner's lease in one transaction that checks that the owner
is registered, or delete it; then send the new owner's address to the clients (PIP-307). If clients
were notified earlier, they would reach a broker that may not serve them yet. Topics that do not
close in time are abandoned: the new owner's recovery closes their ledgers.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.broker.ownership.api import INACTIVE_DESTINATION, ServedTopics
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import Claim, ClaimState
from magnetar.broker.ownership.lookup import OwnershipView
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.ownership.split_algorithms import split_positions
from magnetar.core.errors import (
    Conflict,
    MagnetarError,
    MetadataError,
    NotFound,
    PreconditionFailed,
)
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

UNLOAD_TIMEOUT_S: Final = 60.0
"""Deadline for closing the topics of a bundle."""
UNLOADED_AT_ONCE_MAX: Final = 4
"""Bundles that a draining broker hands over at the same time."""

log = get_logger("magnetar.ownership.moves")


class Moves:
    """Unloads and splits the bundles that this broker owns."""

    def __init__(self, view: OwnershipView, topics: ServedTopics, tasks: TaskSet) -> None:
        self._view = view
        self._topics = topics
        self._tasks = tasks

    async def unload(self, bundle: Bundle, destination: str | None) -> str | None:
        """Hands the bundle over, even if the caller is cancelled; returns the new owner's id.

        Raises NotFound, Conflict, PreconditionFailed.
        """
        claim = self._held(bundle)
        to = None if destination is None else self._view.brokers.get(destination)
        if destination == self._view.brokers.own.broker_id:
            return destination  # it is there
        if destination is not None and (to is None or not to.active):
            raise Conflict(INACTIVE_DESTINATION)
        if to is not None and to not in self._view.allowed(bundle):
            raise PreconditionFailed(
                f"{destination} may not own {bundle}: an isolation policy reserves other brokers "
                "for its namespace, or this broker for other namespaces"
            )
        return await self._tasks.finish(self._move(claim, to or self._choose(bundle)), f"{bundle}")

    async def drain(self) -> None:
        """Hands over all bundles, UNLOADED_AT_ONCE_MAX at a time."""
        while held := [c for c in self._view.claims.all.values() if c.state is ClaimState.HELD]:
            await asyncio.gather(*(self._drain_one(claim) for claim in held[:UNLOADED_AT_ONCE_MAX]))

    async def _drain_one(self, claim: Claim) -> None:
        try:
            await self._move(claim, self._choose(claim.bundle))
        except MetadataError as error:
            log.warning("bundle not handed over", bundle=str(claim.bundle), error=str(error))

    async def release(self, claim: Claim) -> None:
        """Releases a bundle that its namespace no longer has."""
        if claim.state is ClaimState.HELD and self._view.claims.get(claim.bundle) is claim:
            await self._move(claim, None)

    async def split(self, bundle: Bundle, algorithm: str, positions: Sequence[int]) -> list[Bundle]:
        """Splits the bundle; returns the parts. Raises PreconditionFailed without positions."""
        claim = self._held(bundle)
        loads = self._topics.loads(bundle.holds)
        cuts = split_positions(bundle, algorithm, loads, positions)
        if not cuts:
            raise PreconditionFailed(f"{bundle} cannot be split by {algorithm}")
        return await self._tasks.finish(self._split(claim, cuts), f"split {bundle}")

    async def _split(self, claim: Claim, cuts: Sequence[int]) -> list[Bundle]:
        try:
            return await self._view.claims.split(claim, cuts)
        except MagnetarError:
            if self._view.claims.get(claim.bundle) is not claim:
                # It was dropped. A later claim of the bundle or of its parts is a new one, and
                # their topics must be opened under that.
                self._topics.abandon(claim.bundle.holds)
            raise

    def _held(self, bundle: Bundle, expected: Claim | None = None) -> Claim:
        claim = self._view.claims.get(bundle)
        if claim is None or claim is not (expected or claim):
            raise NotFound(f"{bundle} is not owned by this broker")
        if claim.state is not ClaimState.HELD:
            raise Conflict(f"{bundle} is being moved or split already")
        return claim

    def _choose(self, bundle: Bundle) -> BrokerRecord | None:
        """Returns the best of the other brokers for the bundle, None if there is no other."""
        own_id = self._view.brokers.own.broker_id
        others = [b for b in self._view.allowed(bundle) if b.broker_id != own_id]
        others = list(self._view.preferred(bundle, others))
        chosen = self._view.choose(bundle, others, self._view.bundle_counts(), own_id)
        return next((broker for broker in others if broker.broker_id == chosen), None)

    async def _move(self, claim: Claim, destination: BrokerRecord | None) -> str | None:
        # Again: this task may start after another that was requested at the same time. The bundle
        # must not be handed over by one move while the other closes its topics.
        self._held(claim.bundle, claim)
        claim.state = ClaimState.LEAVING
        inside = claim.bundle.holds
        owner: BrokerRecord | None = None
        try:
            try:
                async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                    await self._topics.drain(claim.bundle)
            except TimeoutError:
                log.warning("topics did not close in time", bundle=str(claim.bundle))
                self._topics.abandon(inside)
            owner = await self._view.claims.release(claim, destination)
        finally:
            # If the move was cut short before the release, this broker still owns the bundle.
            claim.state = ClaimState.HELD
            self._topics.dismiss(inside, owner)
        log.info(
            "bundle unloaded",
            bundle=str(claim.bundle),
            to=None if owner is None else owner.broker_id,
        )
        return None if owner is None else owner.broker_id

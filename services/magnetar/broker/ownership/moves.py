"""Moves bundles of this broker to others, and splits them.

A move goes: choose who is to have the bundle; take nothing more for it; close its topics, with all
that is known made durable; hand the record over to the new owner's lease in one transaction that
checks that it is alive, or delete it; then tell the clients, with the new owner's address
(PIP-307). Who is told earlier would come to a broker that may not serve yet. Topics that do not
close in time are given up: the new owner's recovery ends their ledgers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import Claim, Claims, ClaimState
from magnetar.broker.ownership.lookup import Chooser
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.ownership.splitting import split_positions
from magnetar.core.errors import Conflict, MetadataError, NotFound, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import MetadataUnavailable

if TYPE_CHECKING:
    from magnetar.broker.ownership.ownership import ServedTopics

UNLOAD_TIMEOUT_S: Final = 60.0
"""For closing the topics of one bundle."""
UNLOADED_AT_ONCE_MAX: Final = 4
"""Bundles that a broker hands over at the same time when it drains."""

log = get_logger("magnetar.ownership.moves")


class Known(Protocol):
    """What the ownership knows, seen from here."""

    brokers: BrokerRegistry
    claims: Claims
    choose: Chooser

    def bundle_counts(self) -> Mapping[str, int]: ...


class Moves:
    """See the module's text."""

    def __init__(self, known: Known, topics: "ServedTopics", tasks: TaskSet) -> None:
        self._known = known
        self._topics = topics
        self._tasks = tasks

    async def unload(self, bundle: Bundle, destination: str | None) -> str | None:
        """Runs to its end, whoever asked for it. Raises NotFound, Conflict, PreconditionFailed."""
        claim = self._held(bundle)
        to = None if destination is None else self._known.brokers.get(destination)
        own_id = self._known.brokers.own.broker_id
        if destination is not None and (to is None or not to.active or destination == own_id):
            raise PreconditionFailed(f"{destination} is no other broker that takes bundles")
        return await self._tasks.finish(self._move(claim, to or self._other(bundle)), f"{bundle}")

    async def drain(self) -> None:
        """All bundles, UNLOADED_AT_ONCE_MAX at a time."""
        while held := [c for c in self._known.claims.all.values() if c.state is ClaimState.HELD]:
            await asyncio.gather(*(self._drain_one(claim) for claim in held[:UNLOADED_AT_ONCE_MAX]))

    async def _drain_one(self, claim: Claim) -> None:
        try:
            await self._move(claim, self._other(claim.bundle))
        except MetadataError as error:
            log.warning("not handed over", bundle=str(claim.bundle), error=str(error))

    async def release(self, claim: Claim) -> None:
        """Lets go of a bundle that its namespace does not have any more."""
        if claim.state is ClaimState.HELD and self._known.claims.get(claim.bundle) is claim:
            await self._move(claim, None)

    async def split(self, bundle: Bundle, algorithm: str, positions: Sequence[int]) -> list[Bundle]:
        """The parts. Raises PreconditionFailed where there is nothing to be gained by it."""
        claim = self._held(bundle)
        loads = self._topics.loads(bundle.holds)
        cuts = split_positions(bundle, algorithm, loads, positions)
        if not cuts:
            raise PreconditionFailed(f"{bundle} cannot be split by {algorithm}")
        return await self._tasks.finish(self._split(claim, cuts), f"split {bundle}")

    async def _split(self, claim: Claim, cuts: Sequence[int]) -> list[Bundle]:
        try:
            return await self._known.claims.split(claim, cuts)
        except MetadataUnavailable:
            # The claim was dropped, and a claim of the parts is another one: its topics are opened
            # under that.
            self._topics.abandon(claim.bundle.holds)
            raise

    def _held(self, bundle: Bundle) -> Claim:
        claim = self._known.claims.get(bundle)
        if claim is None:
            raise NotFound(f"{bundle} is not owned by this broker")
        if claim.state is not ClaimState.HELD:
            raise Conflict(f"{bundle} is being moved or split already")
        return claim

    def _other(self, bundle: Bundle) -> BrokerRecord | None:
        """Who is to have it: the best of the other brokers, if there is any."""
        brokers = self._known.brokers
        own_id = brokers.own.broker_id
        others = [b for b in brokers.living() if b.active and b.broker_id != own_id]
        chosen = self._known.choose(bundle, others, self._known.bundle_counts(), own_id)
        return next((broker for broker in others if broker.broker_id == chosen), None)

    async def _move(self, claim: Claim, destination: BrokerRecord | None) -> str | None:
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
            owner = await self._known.claims.give(claim, destination)
        finally:
            # Where it was cut short before it was given away, it is still ours.
            claim.state = ClaimState.HELD
            self._topics.dismiss(inside, owner)
        log.info(
            "bundle unloaded",
            bundle=str(claim.bundle),
            to=None if owner is None else owner.broker_id,
        )
        return None if owner is None else owner.broker_id

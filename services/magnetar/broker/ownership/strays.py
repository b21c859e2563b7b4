"""Releases this broker's claims of bundles that their namespace does not have.

Such a claim can remain if a namespace is deleted, and perhaps created again with other bundles,
while a bundle is being split, claimed or handed over. No client looks such a bundle up, and no
bundle that overlaps it can be claimed while the claim exists.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from magnetar.broker.ownership.bundles import Bundle, Ring
from magnetar.broker.ownership.claims import Claims
from magnetar.broker.ownership.moves import Moves
from magnetar.broker.ownership.rings import Rings, policies_of
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName
from magnetar.core.tasks import TaskSet

RETRY_S: Final = 1.0
"""The pause before a claim that could not be released is tried again."""

log = get_logger("magnetar.ownership.strays")


class Owner(Protocol):
    """The claims of this broker, and the rings as it knows them."""

    claims: Claims
    rings: Rings

    def own_records(self, namespace: NamespaceName) -> Iterable[Bundle]:
        """Returns the bundles of the namespace that the store says this broker owns."""


class Strays:
    """Releases claims outside of the ring; has at most one task for each namespace."""

    def __init__(self, owner: Owner, moves: Moves, tasks: TaskSet) -> None:
        self._owner = owner
        self._moves = moves
        self._tasks = tasks
        self._at: set[NamespaceName] = set()

    def look(self, namespace: NamespaceName) -> None:
        """Call it after a change of the namespace's ring, or of a claim outside of the ring."""
        if namespace not in self._at and self._outside(namespace, self._owner.rings.get(namespace)):
            self._at.add(namespace)
            task = self._tasks.start(self._release_all(namespace), f"release strays of {namespace}")
            if task is None:
                self._at.discard(namespace)

    def _outside(self, namespace: NamespaceName, ring: Ring | None) -> list[Bundle]:
        own = self._owner.own_records(namespace)
        return [bundle for bundle in own if ring is None or bundle not in ring]

    async def _release_all(self, namespace: NamespaceName) -> None:
        """Returns once this broker has no claim outside of the ring that it knows."""
        try:
            while self._outside(namespace, self._owner.rings.get(namespace)):
                try:
                    await self._release(namespace)
                except MagnetarError as error:
                    log.info("claims not released", namespace=str(namespace), error=str(error))
                if self._outside(namespace, self._owner.rings.get(namespace)):
                    # The store is unavailable, or the bundle is being moved or split.
                    await asyncio.sleep(RETRY_S)
        finally:
            self._at.discard(namespace)

    async def _release(self, namespace: NamespaceName) -> None:
        # The watch may be behind the split or the creation that made the bundle.
        record = await self._owner.rings.read(namespace)
        ring = None if record is None else Ring.of(namespace, policies_of(record))
        for bundle in self._outside(namespace, ring):
            claim = await self._owner.claims.confirm(bundle)
            if claim is not None and claim.bundle == bundle:
                await self._moves.release(claim)

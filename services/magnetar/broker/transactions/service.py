"""The transactions of a broker: the parts that sessions and the admin REST use."""

import asyncio
from typing import Final

from magnetar.broker.catalog.resources import Resources
from magnetar.broker.peers.client import PeerClient
from magnetar.broker.transactions.assignment import ensure_assign_topic
from magnetar.broker.transactions.coordinators import Coordinators
from magnetar.broker.transactions.local import LocalParticipants
from magnetar.broker.transactions.participants import Notifier
from magnetar.core.deadlines import Deadlines

ANSWER_TIMEOUT_S: Final = 25.0
"""Less than the operation timeout of clients, 30 s: they get an answer on which they retry."""


class Transactions:
    """The coordinators of this broker, and its topics as participants."""

    def __init__(
        self,
        resources: Resources,
        cluster: str,
        coordinators: Coordinators,
        notifier: Notifier,
        local: LocalParticipants,
        peers: PeerClient,
        namespace_bundles: int,
    ) -> None:
        """`namespace_bundles`: the number of bundles of a namespace that is created."""
        self.coordinators = coordinators
        self.notifier = notifier
        self.local = local
        self.answers = Deadlines(ANSWER_TIMEOUT_S)
        """The commands of clients that wait for their answer."""
        self._resources = resources
        self._cluster = cluster
        self._peers = peers
        self._namespace_bundles = namespace_bundles
        self._creating = asyncio.Lock()

    async def coordinator_count(self) -> int:
        """Returns the number of coordinators; creates the assign topic at first use."""
        async with self._creating:
            return await ensure_assign_topic(
                self._resources, self._cluster, self._namespace_bundles
            )

    def start(self) -> None:
        """Starts to serve coordinators."""
        self.coordinators.start()

    async def stop(self) -> None:
        """Closes the coordinators and the connections to other brokers."""
        await self.coordinators.stop()
        self.answers.close()
        await self._peers.close()

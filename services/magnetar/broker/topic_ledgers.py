"""The managed ledgers of persistent topics: opened if they exist, created if they may be.

Opening writes nothing and checks nothing. Creating is one transaction that checks two records: the
namespace's, so that no topic is created in a namespace that is deleted (`deletion_mark`), and that
of the partitioned topic of the same name, so that no partition is created beside its deletion.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from magnetar.broker.deletion_mark import BeingDeleted
from magnetar.broker.partition_names import may_be_partition
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.resources import Resources
from magnetar.broker.topic_creation import TopicCreation
from magnetar.core.errors import NotFound, ServiceNotReady, TopicNotFound
from magnetar.core.names import TopicName
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import BadRevision, Check

CREATION_ATTEMPTS_MAX: Final = 16
"""Each follows a change of one of the two records, a split of a bundle for instance."""

T = TypeVar("T")


def ledger_name(topic: TopicName) -> str:
    """The managed ledger of a persistent topic."""
    return f"{topic.namespace}/persistent/{topic.encoded_local}"


class TopicLedgers:
    """Opens and creates topics' logs; raises TopicNotFound, NotAllowed and ServiceNotReady."""

    def __init__(
        self,
        ledgers: ManagedLedgerFactory,
        resources: Resources,
        creation: TopicCreation,
        policies: BrokerPolicies,
    ) -> None:
        self._ledgers = ledgers
        self._resources = resources
        self._creation = creation
        self._policies = policies

    async def open(self, name: TopicName, *, create: bool) -> tuple[ManagedLedger, bool]:
        """The topic's log, and whether it was created.

        A declared partition is created without `create`, and without counting against the cap of
        its namespace: it was counted with its topic.
        """
        with contextlib.suppress(NotFound):
            return await self._ledgers.open(ledger_name(name), create=False), False
        if await self.check_may_be_new(name, create=create):
            return await self._create(name), True
        await self._policies.begin(name)
        if not self._creation.capped(name):
            return await self._create(name), True
        async with self._creation.lock:
            await self._creation.check_topic(name)
            return await self._create(name), True

    async def declare(self, name: TopicName) -> None:
        """Records the log of a declared partition that another broker owns, if there is none."""
        await self._with_checks(
            name, lambda checks: self._ledgers.declare(ledger_name(name), checks)
        )

    async def check_may_be_new(self, name: TopicName, *, create: bool) -> bool:
        """Whether it is a declared partition; raises TopicNotFound or NotAllowed."""
        partitions, _ = await self._partitions(name)
        return may_be_partition(name, partitions, create=create)

    async def check_namespace(self, name: TopicName) -> None:
        """Raises TopicNotFound; answered from memory if namespaces are followed."""
        await self._namespace(name, fresh=False)

    async def _create(self, name: TopicName) -> ManagedLedger:
        return await self._with_checks(
            name, lambda checks: self._ledgers.open(ledger_name(name), create=True, checks=checks)
        )

    async def _with_checks(
        self, name: TopicName, create: Callable[[Sequence[Check]], Awaitable[T]]
    ) -> T:
        """What `create` returns; called again while a record that it checks has changed."""
        for attempt in range(CREATION_ATTEMPTS_MAX):
            partitions, parent = await self._partitions(name)
            namespace = await self._namespace(name, fresh=attempt > 0)
            may_be_partition(name, partitions, create=True)
            with contextlib.suppress(BadRevision):
                return await create((namespace, parent))
        raise ServiceNotReady(f"The policies of {name.namespace} keep changing, please retry")

    async def _namespace(self, name: TopicName, *, fresh: bool) -> Check:
        try:
            return await self._resources.namespace_check(name.namespace, fresh=fresh)
        except BeingDeleted as error:
            raise TopicNotFound(error.message) from error
        except NotFound as error:
            raise TopicNotFound(f"Namespace not found: {name.namespace}") from error

    async def _partitions(self, name: TopicName) -> tuple[int, Check]:
        """Of the topic that this is a partition of, or would be in the way of."""
        try:
            return await self._resources.partitions_check(name.base)
        except BeingDeleted as error:
            raise TopicNotFound(error.message) from error

"""Opens the managed ledgers of persistent topics, and creates them if that is allowed.

Opening writes nothing and checks nothing. Creating is a transaction that checks two records: the
namespace's, so that no topic is created in a namespace that is being deleted (`deletion_mark`), and
the partitioned topic's, so that no partition is created while its topic is being deleted.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from magnetar.broker.catalog.deletion_mark import BeingDeleted
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.catalog.topic_names import ledger_name, may_be_partition
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.topic.creation import TopicCreation
from magnetar.core.errors import NotFound, ServiceNotReady, TopicNotFound
from magnetar.core.names import TopicName
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import BadRevision, Check

CREATION_ATTEMPTS_MAX: Final = 16
"""An attempt fails when one of the two records changes, for instance by a split of a bundle."""

T = TypeVar("T")


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
        """Returns the topic's log, and whether it was created.

        A declared partition is created even without `create`, and is not counted against its
        namespace's cap: it was counted with its topic.
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
        """Creates the record of a declared partition that another broker owns, if it is missing."""
        await self._with_checks(
            name, lambda checks: self._ledgers.declare(ledger_name(name), checks)
        )

    async def check_may_be_new(self, name: TopicName, *, create: bool) -> bool:
        """Whether the topic is a declared partition; raises TopicNotFound or NotAllowed."""
        partitions, _ = await self._partitions(name)
        return may_be_partition(name, partitions, create=create)

    async def check_namespace(self, name: TopicName) -> None:
        """Raises TopicNotFound if the namespace is missing; reads memory if namespaces are
        followed."""
        await self._namespace(name, fresh=False)

    async def _create(self, name: TopicName) -> ManagedLedger:
        return await self._with_checks(
            name, lambda checks: self._ledgers.open(ledger_name(name), create=True, checks=checks)
        )

    async def _with_checks(
        self, name: TopicName, create: Callable[[Sequence[Check]], Awaitable[T]]
    ) -> T:
        """Calls `create` with the checks, again if a checked record has changed; returns its
        result."""
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
        """Returns the partition count of the partitioned topic with this base name, and its
        check."""
        try:
            return await self._resources.partitions_check(name.base)
        except BeingDeleted as error:
            raise TopicNotFound(error.message) from error

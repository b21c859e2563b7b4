"""The redrives of this broker: at most one per subscription, each as an owned task."""

import contextlib
from typing import TYPE_CHECKING, Final

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.peers.client import PeerClient
from magnetar.broker.redrive.targets import Targets
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.clock import Clock
from magnetar.core.errors import (
    Conflict,
    NotFound,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
    TooManyRequests,
)
from magnetar.core.tasks import TaskSet

if TYPE_CHECKING:
    from magnetar.broker.redrive.progress import Order, Progress, Rights

RUNNING_MAX: Final = 16
"""Redrives of a broker that run at once."""
KEPT_MAX: Final = 1_000
"""Redrives of a broker whose progress can be asked for; the oldest that has ended is forgotten."""

TRANSACTIONS_OFF: Final = (
    "A redrive needs transactions, so that it moves each message once: set "
    "transactions (transactionCoordinatorEnabled) to true on all brokers"
)

_Key = tuple[str, str]


class Redrives:
    """Starts, finds and stops redrives."""

    def __init__(
        self,
        record: BrokerRecord,
        peers: PeerClient,
        schemas: SchemaRegistry,
        targets: Targets,
        clock: Clock,
        *,
        transactions: bool,
        authenticated: bool,
    ) -> None:
        """`transactions` and `authenticated`: whether they are switched on."""
        self._record = record
        self._peers = peers
        self._schemas = schemas
        self.targets = targets
        self._clock = clock
        self._transactions = transactions
        self._authenticated = authenticated
        self._tasks = TaskSet("redrives")
        self._known: dict[_Key, Progress] = {}
        self._starting: set[_Key] = set()

    async def start(
        self, topic: PersistentTopic, subscription: str, order: "Order", rights: "Rights | None"
    ) -> "Progress":
        """Starts a redrive of an existing subscription.

        Raises Conflict if one runs, or a consumer holds the subscription; PreconditionFailed if
        settings forbid it; TooManyRequests at RUNNING_MAX.
        """
        if not self._transactions:
            raise PreconditionFailed(TRANSACTIONS_OFF)
        key = (topic.full_name, subscription)
        known = self._known.get(key)
        if key in self._starting or (known is not None and not known.ended):
            raise Conflict(f"A redrive of subscription {subscription} is running: stop it first")
        running = sum(not progress.ended for progress in self._known.values())
        if running + len(self._starting) >= RUNNING_MAX:
            raise TooManyRequests(f"{RUNNING_MAX} redrives run on this broker: wait for one to end")
        self._starting.add(key)
        try:
            return await self._start(key, topic, order, rights)
        finally:
            self._starting.discard(key)

    async def _start(
        self, key: _Key, topic: PersistentTopic, order: "Order", rights: "Rights | None"
    ) -> "Progress":
        # Imported here: a broker needs the client for a redrive only.
        from magnetar.broker.redrive.dead_letters import DeadLetters
        from magnetar.broker.redrive.job import Redrive
        from magnetar.broker.redrive.mover import Mover
        from magnetar.broker.redrive.own_client import own_client

        subscription = topic.subscriptions.get(key[1])
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {key[1]} not found for topic {key[0]}")
        letters = DeadLetters(subscription, self._clock)
        letters.check()
        job = Redrive(topic, letters, order, rights, self.targets, self._clock)
        mover = None
        if not order.dry_run:
            client = await own_client(self._record, self._peers, authenticated=self._authenticated)
            mover = Mover(letters, client, self._schemas)
        if self._tasks.start(job.run(mover), f"{key[0]} {key[1]}") is None:
            raise ServiceNotReady("The broker is shutting down, please retry")
        self._known.pop(key, None)
        self._known[key] = job.progress
        self._forget_oldest()
        return job.progress

    def _forget_oldest(self) -> None:
        if len(self._known) > KEPT_MAX:
            ended = (key for key, progress in self._known.items() if progress.ended)
            with contextlib.suppress(StopIteration):
                del self._known[next(ended)]

    def progress(self, topic: str, subscription: str, id_: str = "") -> "Progress":
        """Returns the progress of the redrive that was started last; raises NotFound.

        With `id_`, also if that is another one: this broker may have run the redrives of a topic
        that it lost, and got again.
        """
        progress = self._known.get((topic, subscription))
        if progress is None or id_ not in ("", progress.id):
            since = f" with the id {id_}, or another one since" if id_ else ""
            raise NotFound(
                f"This broker has started no redrive of subscription {subscription} of {topic}"
                f"{since}"
            )
        return progress

    async def stop(self) -> None:
        """Cancels all redrives. Their open transactions end by their timeout."""
        await self._tasks.stop()

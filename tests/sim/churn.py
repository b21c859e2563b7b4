"""A client that creates a subscription, uses it, deletes it, and creates it again.

It does so by the binary protocol and by the admin REST, in order or with its connection closed
while the command is under way. It is the only one to delete the subscription (and its topic, where
that is deleted too), so that it knows what must hold:

- A subscription that answered SUCCESS has its record in the store, and gets every message that is
  sent afterwards, until the client begins to delete it.
- An ack is receipted only by a subscription that has its record.
- Once a deletion was answered, nothing more comes to its consumer; what was receipted before comes
  to none that is made anew at the latest position, nor what a deleted topic had to any.
- A subscription that is there is found by whoever deletes it.
- No message is receipted for a namespace that does not exist.

Where an outcome is unknown, because the connection was closed or the store did not answer, nothing
is taken for granted before the next SUCCESS. A SUCCESS says as little if the broker's lease had
ended early before it was asked, and another owner has deleted the subscription since: the broker
answers from memory until it hears of it (docs/understand/guarantees.md, what is not guaranteed).
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.churn_faults import owner_of, serves_without_lease
from tests.sim.client import PASSING, Refused, Wire
from tests.sim.history import SubscriptionHistory
from tests.sim.recording import Session, answered
from tests.sim.workload import BACKOFF_S, EARLIEST, EXCLUSIVE, LATEST, SHARED, Consumer

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.core.errors import Conflict, MagnetarError, NotFound
from magnetar.core.names import parse_topic
from magnetar.managed_ledger.record import cursor_key
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of

if TYPE_CHECKING:
    from tests.sim.nodes import Node
    from tests.sim.world import World

STAYS_S: Final = 1.0
"""About how long a subscription is used between two actions."""
DELETE_CHANCE: Final = 0.3
"""That it deletes what a SUBSCRIBE without an answer may have made."""
ADMIN_S_MAX: Final = 30.0
STUCK_LOOKS: Final = 12
STUCK_LOOK_S: Final = 2.0
AGAIN_S: Final = 0.5
EARLIEST_ID: Final = (1 << 64) - 1

ACTIONS: Final = (
    "leave",
    "cut",
    "unsubscribe",
    "unsubscribe",
    "unsubscribe and cut",
    "delete by REST",
    "delete by REST",
    "seek",
)


@dataclass(slots=True)
class Deleted:
    """Stands for a consumer whose subscription was deleted: nothing may come to it."""

    number: int
    of: SubscriptionHistory
    topic: str
    violated: Any
    session: Session

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        assert payload is not None
        self.session.received(message, *messages_of(payload))
        self.violated(f"{self.topic}/{self.of.name}: a message came after it was deleted")

    def detached(self, redirect: str) -> None:
        """The connection is gone."""


class Churner(Consumer):
    """See the module's text; `run` until cancelled."""

    def __init__(
        self, world: "World", topic: str, name: str, rng: Random, *, until: float, deletes: bool
    ) -> None:
        kind = rng.choice((EXCLUSIVE, SHARED))
        client = world.client_of_its_own()
        super().__init__(client, world.history, topic, name, kind, rng, world.habits)
        del self._log.subscriptions[name]  # each life of it has its own
        self._world = world
        self._until = until
        self._deletes_topic = deletes
        self._namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        self._present = False
        self._absent = True
        """Nobody has made it since it was deleted for certain."""
        self._unanswered = False
        """A SUBSCRIBE since the last SUCCESS may still run, and make it after its deletion."""
        self._asked_at: float | None = None
        """The time of the first request since then."""
        self._lives = 0
        self._without_lease = False
        """The broker that was asked last served by a lease that had ended early."""
        self._topic_deleted_at = -1.0
        self._provoked = asyncio.Event()

    @property
    def _shown(self) -> str:
        return f"{self.topic}/{self.subscription}"

    async def run(self) -> None:
        rng = self._rng
        while True:
            try:
                wire = await self._client.broker_of(self.topic)
                if not self._present:
                    self._ask()
                await self._attach(wire)
                await self._use(wire)
            except (Refused, *PASSING):
                if not self._present and self._acts and rng.random() < DELETE_CHANCE:
                    await self._delete_by_rest()  # an attempt may have made it
            await self._leave()
            await asyncio.sleep(rng.uniform(*BACKOFF_S))

    @property
    def _acts(self) -> bool:
        """Whether it still deletes and cuts off; at the end it only stays."""
        return not self._habits.calm and self._history.now() < self._until

    def provoke(self) -> None:
        self._provoked.set()

    def _ask(self) -> None:
        self.initial = LATEST if self._rng.random() < 0.7 else EARLIEST
        if self._asked_at is None:
            self._asked_at = self._history.now()
        self._unanswered = True
        if self.initial == EARLIEST:
            self._absent = False  # whichever attempt it was that made it

    async def _attach(self, wire: Wire) -> None:
        host, _ = wire.transport.remote
        self._without_lease = serves_without_lease(self._world, host, self.topic)
        await super()._attach(wire)

    def _promised(self) -> bool:
        return not self._without_lease or self._present or self._cursor() is not None

    def _attached(self) -> None:
        if not self._promised():
            self._world.watching.counts["churn: deleted, and a former owner did not know"] += 1
            raise ConnectionError("answered by a broker that has lost the topic")
        super()._attached()
        if self._cursor() is None:
            self._violated(f"{self._shown}: SUCCESS, and it has no record in the store")
        self._unanswered = False
        if self._present:
            return
        self._present = True
        self._lives += 1
        of = self._log.subscription(f"{self.subscription}~{self._lives}")
        of.since = self._history.now()
        if self._absent and self._asked_at is not None:
            of.anew_at = self._asked_at
        of.deleted_at = self._topic_deleted_at
        self._of = of
        self._world.watching.counts["churn: subscribed"] += 1

    def _ack_receipted(self, of: SubscriptionHistory) -> None:
        if of is self._of and self._present and self._cursor() is None:
            self._violated(f"{self._shown}: an ack was receipted, and it has no record")

    async def _use(self, wire: Wire) -> None:
        if self._acts and await self._stayed():
            return
        if not self._acts:
            await self._gone.wait()
            return
        actions = (*ACTIONS, "delete topic", "delete topic") if self._deletes_topic else ACTIONS
        await self._act(wire, self._rng.choice(actions))

    async def _stayed(self) -> bool:
        """Uses the subscription for a while; whether its consumer was sent away meanwhile."""
        self._provoked.clear()
        waits = [
            asyncio.ensure_future(self._gone.wait()),
            asyncio.ensure_future(self._provoked.wait()),
        ]
        stays_s = self._rng.expovariate(1 / STAYS_S)
        await asyncio.wait(waits, timeout=stays_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._gone.is_set()

    async def _act(self, wire: Wire, action: str) -> None:
        self._world.watching.counts[f"churn: {action}"] += 1
        self._world.tell(f"{self._shown}: {action}")
        if action == "cut":
            wire.abort()
        elif action.startswith("unsubscribe"):
            await self._unsubscribe(wire, cuts=action.endswith("cut"))
        elif action == "delete by REST":
            if self._rng.random() < 0.5:
                await self._leave()
            await self._delete_by_rest()
        elif action == "seek":
            await self._seek(wire)
        elif action == "delete topic":
            await self._delete_topic()

    async def _seek(self, wire: Wire) -> None:
        of = self._of
        of.rewound()
        of.judged = False
        command = pb.CommandSeek(consumer_id=self.number)
        command.message_id.ledgerId = command.message_id.entryId = EARLIEST_ID
        await self._session.seek(wire, command, self._habits.cut_s(self._rng))
        of.rewound()
        of.judged = True

    # -- deleting the subscription ---------------------------------------------------------

    def _deleting(self) -> SubscriptionHistory:
        """From now on it may be gone."""
        self._present = self._absent = False
        self._asked_at = None
        self._of.over = True
        return self._of

    def _deleted(self) -> None:
        """It is gone for certain, unless a SUBSCRIBE without an answer makes it again."""
        self._absent = not self._unanswered
        self._world.watching.counts["churn: deleted"] += 1

    async def _unsubscribe(self, wire: Wire, *, cuts: bool) -> None:
        of = self._deleting()
        cut_s = self._rng.expovariate(1 / 0.01) if cuts else self._habits.cut_s(self._rng)
        command = pb.CommandUnsubscribe(consumer_id=self.number)
        await self._session.unsubscribe(wire, command, cut_s)
        self._deleted()
        self._wire = None
        deleted = Deleted(self.number, of, self.topic, self._violated, self._session)
        wire.consumers[self.number] = deleted

    async def _delete_by_rest(self) -> None:
        """Until it is known to be gone, or what became of it is not known."""
        present, _ = self._present, self._deleting()
        for _ in range(STUCK_LOOKS):
            node, force = owner_of(self._world, self.topic), self._rng.random() < 0.7
            if node is None or node.admin is None:
                return
            there = self._cursor()
            request = node.admin.delete_subscription(self.topic, self.subscription, force=force)
            begun = self._history.now()
            done, error = await self._answer(node, request)
            record, outcome = self._history.recording, answered(done, error)
            record.unsubscribed(self.topic, self.subscription, "", outcome, begun)
            if done and error is None:
                self._deleted()
                return
            if not done or not isinstance(error, NotFound):
                return
            if present:
                self._violated(f"{self._shown} is there, and its deletion is refused: {error!r}")
                return
            if there is None or there is not self._cursor():
                return
            await asyncio.sleep(STUCK_LOOK_S)
        self._violated(f"{self._shown} has a record in the store, and nobody can delete it")

    # -- deleting the topic and its namespace ----------------------------------------------

    async def _delete_topic(self) -> None:
        node = owner_of(self._world, self.topic)
        if node is None or node.admin is None:
            return
        self._deleting()
        begun = self._history.now()
        done, error = await self._answer(node, node.admin.delete_topic(self.topic))
        self._history.recording.topic_deleted(self.topic, answered(done, error), begun)
        if done and error is None:
            self._deleted()
            self._topic_deleted_at = begun
            if self._world.plan.churn.namespaces:
                await self._delete_namespace()

    async def _delete_namespace(self) -> None:
        """At once, so that producers create the topic again just then."""
        emptied_at = self._history.now()
        while True:
            node = self._any_broker()
            if node is not None and node.admin is not None:
                request, begun = node.admin.delete_namespace(self._namespace), self._history.now()
                done, error = await self._answer(node, request)
                record, outcome = self._history.recording, answered(done, error)
                record.namespace_deleted(self._namespace, outcome, begun)
                if done and error is None:
                    await self._without_namespace(emptied_at)
                    break
                if done and isinstance(error, Conflict | NotFound) and "repeat" not in str(error):
                    break
            # It may be marked as one that is being deleted: only a repetition ends that.
            await asyncio.sleep(AGAIN_S)
        await self._create_namespace()

    async def _without_namespace(self, emptied_at: float) -> None:
        self._world.watching.counts["churn: namespace deleted"] += 1
        self._check_receipts(emptied_at)
        gone_at = self._history.now()
        await asyncio.sleep(self._rng.expovariate(1 / STAYS_S))
        self._check_receipts(gone_at)

    async def _create_namespace(self) -> None:
        while True:
            node = self._any_broker()
            if node is not None and node.admin is not None:
                request = node.admin.create_namespace(self._namespace)
                done, error = await self._answer(node, request)
                if done and (error is None or "already exists" in str(error)):
                    return
            await asyncio.sleep(AGAIN_S)

    def _check_receipts(self, since: float) -> None:
        for key, sent in self._log.sent.items():
            if sent.receipt is not None and sent.created_at > since:
                self._violated(
                    f"{self.topic}: {key} was receipted as {sent.receipt} at "
                    f"{sent.receipted_at:.3f}, and its namespace is deleted as an empty one"
                )
                return

    # -- what it asks and sees -------------------------------------------------------------

    def _any_broker(self) -> "Node | None":
        living = [node for node in self._world.brokers if node.alive and node.admin is not None]
        return self._rng.choice(living) if living else None

    async def _answer(self, node: "Node", request: Any) -> tuple[bool, MagnetarError | None]:
        """Whether the broker answered in time, and with which error."""
        if node.process is None or not node.process.alive:
            request.close()
            return False, None
        task = node.process.start(request, "admin")
        done, _ = await asyncio.wait([task], timeout=ADMIN_S_MAX)
        if not done or task.cancelled():
            return False, None
        error: MagnetarError | None = task.result()
        if error is not None:
            self._world.tell(f"{self._shown}: {error!r}")
        return True, error

    def _cursor(self) -> object:
        """Its record in the store, read past all that could be in the way."""
        key = cursor_key(ledger_name(parse_topic(self.topic)), self.subscription)
        return self._world.metadata.store._records.get(key)

    def _violated(self, text: str) -> None:
        self._history.violated(text)

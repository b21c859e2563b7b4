"""Which broker serves which topic, as one broker of a cluster knows and decides it.

It is a listener of the broker's session. While the lease stands, what is claimed here is served
here. When the lease is in doubt everything rests: topics take and send nothing, look-ups and new
clients are refused. When the same lease is good again, topics go on; when it was lost, its claims
are too, and the topics are given up without another write.

Somebody else's claim ends that of this broker only through the store: the watch tells, and the
topics are given up then; and had it been missed, no write of theirs would land (`guarded`).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle, Placed
from magnetar.broker.ownership.claims import Claim, Claims, ClaimState
from magnetar.broker.ownership.located import Located, NotOwned, not_served
from magnetar.broker.ownership.lookup import Lookups
from magnetar.broker.ownership.moves import Moves
from magnetar.broker.ownership.records import (
    OWNERSHIP_PREFIX,
    BrokerRecord,
    BrokerState,
    OwnershipRecord,
    bundle_of_key,
    decode_ownership,
)
from magnetar.broker.ownership.rings import Rings
from magnetar.broker.ownership.splitting import TopicLoad
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.guarded import Grant
from magnetar.metadata.following import Following
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import Check, MetadataStore, Record

START_TIMEOUT_S: Final = 30.0
"""For the first listing of brokers, claims and namespaces."""

log = get_logger("magnetar.ownership")

Choose = Callable[[Bundle, Sequence[BrokerRecord], Mapping[str, int], str], str | None]
"""(bundle, brokers that may be given it, bundles owned by id, own id) → who is to have it."""


def fewest_bundles(
    _bundle: Bundle, brokers: Sequence[BrokerRecord], owned: Mapping[str, int], own_id: str
) -> str | None:
    """The broker with the fewest bundles; of several this one, or the first."""
    return min(
        (broker.broker_id for broker in brokers),
        key=lambda broker_id: (owned.get(broker_id, 0), broker_id != own_id, broker_id),
        default=None,
    )


Inside = Callable[[Placed], bool]


class ServedTopics(Protocol):
    """What the ownership does to the topics that are open here."""

    def suspend(self) -> None:
        """All rest: nothing is taken and nothing is sent, and nobody is told."""

    def resume(self) -> None:
        """All go on."""

    def abandon(self, inside: Inside) -> None:
        """Those inside are given up at once: nothing is written, clients look them up again."""

    async def drain(self, bundle: Bundle) -> None:
        """Those of the bundle are closed, all known is durable; clients are not told yet."""

    def dismiss(self, inside: Inside, destination: BrokerRecord | None) -> None:
        """Clients of those that were drained are told, with the new owner where it is known."""

    def loads(self, inside: Inside) -> list[TopicLoad]:
        """The topics inside, with what they move."""


class ClusterOwnership:
    """See the module's text. Made before the session is started; `start`, then `stop`."""

    always = False

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        own: BrokerRecord,
        topics: ServedTopics,
        clock: Clock,
    ) -> None:
        self._session = session
        self._topics = topics
        self._tasks = TaskSet("ownership")
        self._established = False
        self.choose: Choose = fewest_bundles
        self.brokers = BrokerRegistry(store, session, own)
        self.rings = Rings(store, self._ring_changed)
        self._following = Following(store, OWNERSHIP_PREFIX, self._record_changed)
        self._owners: dict[Bundle, OwnershipRecord] = {}
        self._counts: Counter[str] = Counter()
        self.claims = Claims(
            store, session, self.rings, lambda: self.brokers.own, clock.now_ms, self._following.seen
        )
        self._lookups = Lookups(self, store, self._tasks)
        self._moves = Moves(self, topics, self._tasks)
        self.brokers.add_listener(self._lookups.broker_changed)
        session.add_listener(self.brokers)
        session.add_listener(self)

    # -- life

    async def start(self) -> None:
        """Returns once what the cluster has is known here. The session is started next."""
        parts = (self.brokers, self.rings, self._following)
        for part in parts:
            self._tasks.start(part.run(), "follow")
        async with asyncio.timeout(START_TIMEOUT_S):
            for part in parts:
                await part.ready()

    async def drain(self, timeout_s: float) -> None:
        """Hands all bundles over to other brokers, as far as there is time."""
        try:
            await self.brokers.set_state(BrokerState.DRAINING)
            async with asyncio.timeout(timeout_s):
                await self._moves.drain()
        except (MetadataError, TimeoutError) as error:
            log.warning("not all handed over", left=len(self.claims.all), error=str(error))

    async def withdraw(self) -> None:
        """The registration goes; call before the listeners are closed."""
        try:
            await self.brokers.withdraw()
        except MetadataError as error:
            log.info("registration left to expire", error=str(error))

    async def stop(self) -> None:
        """What is still claimed goes with the lease."""
        await self._tasks.stop()

    # -- what is known

    @property
    def serving(self) -> bool:
        """Whether what is claimed may be served at this moment."""
        return self._established and self._session.valid

    @property
    def draining(self) -> bool:
        return not self.brokers.own.active

    def owned(self) -> Mapping[Bundle, Claim]:
        """The bundles of this broker."""
        return self.claims.all

    def owner_of(self, bundle: Bundle) -> OwnershipRecord | None:
        """As the watch told last."""
        return self._owners.get(bundle)

    def bundle_counts(self) -> Mapping[str, int]:
        """How many bundles each broker owns, by id."""
        return self._counts

    def bundle_of(self, name: TopicName) -> Bundle | None:
        """The topic's bundle, as far as its namespace is known here."""
        ring = self.rings.get(name.namespace)
        return None if ring is None else ring.of_topic(name)

    def owns(self, name: TopicName) -> bool:
        """Whether the topic is served here now."""
        bundle = self.bundle_of(name)
        return bundle is not None and self.has(bundle)

    def has(self, bundle: Bundle) -> bool:
        """Whether the bundle's topics are served here now."""
        claim = self.claims.get(bundle)
        return claim is not None and claim.state is not ClaimState.LEAVING and self.serving

    # -- what is asked

    async def require(self, name: TopicName) -> None:
        """Raises ServiceNotReady where the topic is not served here: its client looks it up."""
        if self.owns(name):
            return
        bundle = await self.rings.bundle_of(name)
        if not self.serving:
            raise ServiceNotReady("The broker has lost touch with the metadata store, please retry")
        # It may have been handed over to this broker a moment ago.
        if self.claims.get(bundle) is None:
            await self.claims.confirm(bundle)
            if self.owns(name):
                return
        raise not_served(name, self.brokers.own.broker_id)

    async def doubt(self, name: TopicName) -> None:
        """Another owner of the topic was noticed: asks the store whose it is."""
        bundle = await self.rings.bundle_of(name)
        claim = self.claims.get(bundle)
        if claim is not None and not await self.claims.stands(claim):
            if self.claims.drop(bundle) is not None:
                self._give_up(bundle, "the claim has gone")
            self._lookups.bundle_changed(bundle)

    async def require_owned(self, name: TopicName, *, authoritative: bool = False) -> None:
        """As `require`, for REST: a topic that nobody owns is claimed here or elsewhere.

        Raises NotOwned with the broker to go to.
        """
        located = await self.locate(name, authoritative=authoritative)
        if located.broker is not None:
            raise NotOwned(name, located.broker, authoritative=located.redirect)

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:
        """Where the topic is served; see `lookup`."""
        return await self._lookups.locate(name, authoritative=authoritative)

    async def guard(self, name: str) -> Grant:
        """See `managed_ledger.guarded`."""
        topic = topic_of_ledger(name)
        while True:
            bundle = self.bundle_of(topic)
            claim = None if bundle is None else self.claims.get(bundle)
            if claim is None:
                raise ManagedLedgerFenced(f"{name} is not owned by this broker")
            if claim.settled is None:
                return Grant(claim.origin, (Check(claim.key, claim.revision),))
            await asyncio.shield(claim.settled)

    # -- what is done

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None:
        """Moves a bundle of this broker away; to whom it went, None where to nobody yet."""
        return await self._moves.unload(_bundle(bundle), destination)

    async def split(
        self,
        bundle: Bundle | str,
        algorithm: str = "range_equally_divide",
        positions: Sequence[int] = (),
    ) -> list[Bundle]:
        """Splits a bundle of this broker; its topics go on undisturbed in the parts."""
        return await self._moves.split(_bundle(bundle), algorithm, positions)

    # -- the session's side

    def suspended(self) -> None:
        self._established = False
        self._topics.suspend()
        self._lookups.wake_all()

    async def established(self, *, renewed: bool) -> None:
        if renewed:
            if lost := self.claims.drop_all():
                log.warning("bundles given up", bundles=len(lost), why="the lease was lost")
            self._topics.abandon(lambda _: True)
        self._established = True
        self._topics.resume()
        self._lookups.wake_all()

    # -- what the watches tell

    def _record_changed(self, key: str, record: Record | None) -> None:
        try:
            bundle = bundle_of_key(key)
            owner = None if record is None else decode_ownership(key, record.value)
        except MagnetarError as error:
            log.error("claim ignored", key=key, error=str(error))
            return
        former = self._owners.pop(bundle, None)
        if former is not None:
            self._counts[former.broker_id] -= 1
        if owner is not None:
            self._owners[bundle] = owner
            self._counts[owner.broker_id] += 1
        claim = self.claims.get(bundle)
        if claim is None and record is not None and owner is not None and self.claims.is_own(owner):
            # Handed over to this broker, or the news of a claim came before its answer.
            self.claims.adopt(bundle, record)
        elif claim is not None and claim.state is ClaimState.HELD:
            gone = record is None or (record.revision > claim.revision)
            if gone and self.claims.drop(bundle) is not None:
                self._give_up(bundle, "the claim has gone")
        self._lookups.bundle_changed(bundle)

    def _ring_changed(self, namespace: NamespaceName) -> None:
        ring = self.rings.get(namespace)
        for bundle, claim in list(self.claims.all.items()):
            if bundle.namespace != namespace or claim.state is not ClaimState.HELD:
                continue
            if ring is None or bundle not in ring:
                self._tasks.start(self._moves.release(claim), f"release {bundle}")
        self._lookups.namespace_changed(namespace)

    def _give_up(self, bundle: Bundle, why: str) -> None:
        log.warning("bundle given up", bundle=str(bundle), why=why)
        self._topics.abandon(bundle.holds)


def _bundle(bundle: Bundle | str) -> Bundle:
    return Bundle.parse(bundle) if isinstance(bundle, str) else bundle


def topic_of_ledger(name: str) -> TopicName:
    """The topic of a managed ledger: the inverse of `topic_ledgers.ledger_name`."""
    tenant, local, domain, topic = name.split("/", 3)
    return TopicName.from_encoded(domain, NamespaceName(tenant, local), topic)

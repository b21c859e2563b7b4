"""Which broker serves which topic, for a broker of a cluster.

The ownership is a listener of the broker's session. While the lease is valid, this broker serves
the bundles that it claimed. While the lease is in doubt, everything pauses: topics accept and send
nothing, and look-ups and new clients are refused. If the same lease is valid again, topics resume.
If the lease was lost, the claims are lost with it, and the topics are abandoned without another
write.

Another broker's claim ends this broker's only through the store. The watch reports it, and the
topics are abandoned. Even if the report were lost, no write of the topics would succeed
(`managed_ledger.guarded`).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.broker.catalog.topic_names import topic_of_ledger
from magnetar.broker.ownership.api import Choose, Rules, ServedTopics
from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import Claim, Claims, ClaimState
from magnetar.broker.ownership.location import Located, NotOwned, not_served
from magnetar.broker.ownership.lookup import Lookups
from magnetar.broker.ownership.misplaced import Misplaced
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
from magnetar.broker.ownership.strays import Strays
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.claim import Grant
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.metadata.follower import Follower
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import Check, MetadataStore, Record

START_TIMEOUT_S: Final = 30.0
"""Deadline of the first listing of brokers, claims and namespaces."""

log = get_logger("magnetar.ownership")


def fewest_bundles(
    _bundle: Bundle, brokers: Sequence[BrokerRecord], owned: Mapping[str, int], own_id: str
) -> str | None:
    """Chooses the broker with the fewest bundles; on a tie this one, else the first by id."""
    return min(
        (broker.broker_id for broker in brokers),
        key=lambda broker_id: (owned.get(broker_id, 0), broker_id != own_id, broker_id),
        default=None,
    )


class ClusterOwnership:
    """The `Ownership` of a broker of a cluster.

    Create it before the session starts, because it is a listener; then `start`, at the end `stop`.
    """

    always = False

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        own: BrokerRecord,
        topics: ServedTopics,
        clock: Clock,
        choose: Choose = fewest_bundles,
        rules: Rules | None = None,
    ) -> None:
        self._session = session
        self._topics = topics
        self._tasks = TaskSet("ownership")
        self._established = False
        self.choose = choose
        self.brokers = BrokerRegistry(store, session, own)
        self.rings = Rings(store, self._ring_changed)
        self._following = Follower(store, OWNERSHIP_PREFIX, self._record_changed)
        self._owners: dict[Bundle, OwnershipRecord] = {}
        self._counts: Counter[str] = Counter()
        self.claims = Claims(
            store, session, self.rings, lambda: self.brokers.own, clock.now_ms, self._following.seen
        )
        self._lookups = Lookups(self, store, self._tasks)
        self._moves = Moves(self, topics, self._tasks)
        self._strays = Strays(self, self._moves, self._tasks)
        self._rules = rules
        self.brokers.add_listener(self._lookups.broker_changed)
        session.add_listener(self.brokers)
        session.add_listener(self)

    async def start(self) -> None:
        """Returns once the first listings are complete. Start the session after it."""
        rules = self._rules
        parts = (self.brokers, self.rings, self._following, *(() if rules is None else (rules,)))
        for part in parts:
            self._tasks.start(part.run(), "follow")
        async with asyncio.timeout(START_TIMEOUT_S):
            for part in parts:
                await part.ready()
        if rules is not None:
            rules.listen(self._lookups.wake_all)
            self._tasks.start(Misplaced(self, rules).run(), "misplaced bundles")

    async def drain(self, timeout_s: float) -> None:
        """Hands all bundles over to other brokers, as far as `timeout_s` allows."""
        try:
            await self.brokers.set_state(BrokerState.DRAINING)
            async with asyncio.timeout(timeout_s):
                await self._moves.drain()
        except (MetadataError, TimeoutError) as error:
            log.warning("bundles left to expire", left=len(self.claims.all), error=str(error))

    async def withdraw(self) -> None:
        """Deletes the registration; call it before the listeners close."""
        try:
            await self.brokers.withdraw()
        except MetadataError as error:
            log.info("registration left to expire", error=str(error))

    async def stop(self) -> None:
        """Stops the tasks; the remaining claims are deleted with the lease."""
        await self._tasks.stop()

    @property
    def serving(self) -> bool:
        """Whether this broker may serve its claims now."""
        return self._established and self._session.valid

    @property
    def draining(self) -> bool:
        """Whether this broker is handing over its bundles and accepts no more."""
        return not self.brokers.own.active

    def owned(self) -> Mapping[Bundle, Claim]:
        """Returns this broker's claims by bundle."""
        return self.claims.all

    def owner_of(self, bundle: Bundle) -> OwnershipRecord | None:
        """Returns the bundle's owner as the watch last reported it."""
        return self._owners.get(bundle)

    def own_records(self, namespace: NamespaceName) -> list[Bundle]:
        """Returns the bundles of the namespace that the store says this broker owns."""
        return [
            bundle
            for bundle, owner in self._owners.items()
            if bundle.namespace == namespace and self.claims.is_own(owner)
        ]

    def bundle_counts(self) -> Mapping[str, int]:
        """Returns the number of owned bundles by broker id."""
        return self._counts

    def allowed(self, bundle: Bundle) -> Sequence[BrokerRecord]:
        """Returns the brokers that accept bundles and may own this one, perhaps this broker."""
        active = [broker for broker in self.brokers.living() if broker.active]
        own = self.brokers.own
        if own.active and all(broker.broker_id != own.broker_id for broker in active):
            active.append(own)  # the watch has not reported this broker yet
        if self._rules is None or not self._rules.active:
            return active
        ids = [broker.broker_id for broker in active]
        allowed = self._rules.allowed(str(bundle.namespace), ids)
        return [broker for broker in active if broker.broker_id in allowed]

    def preferred(self, bundle: Bundle, brokers: Sequence[BrokerRecord]) -> Sequence[BrokerRecord]:
        """Returns the brokers that spread the bundle's anti-affinity group best, of those given."""
        group = self.rings.group(bundle.namespace)
        if not group or self._rules is None:
            return brokers
        owners: dict[str, set[str]] = {}
        for other, owner in self._owners.items():
            if other != bundle and self.rings.group(other.namespace) == group:
                owners.setdefault(owner.broker_id, set()).add(str(other.namespace))
        ids = [broker.broker_id for broker in brokers]
        best = self._rules.preferred(str(bundle.namespace), ids, owners)
        return [broker for broker in brokers if broker.broker_id in best]

    def policy_name(self, bundle: Bundle) -> str:
        """Returns the name of the bundle's isolation policy, empty if it has none."""
        return "" if self._rules is None else self._rules.policy_name(str(bundle.namespace))

    def bundle_of(self, name: TopicName) -> Bundle | None:
        """Returns the topic's bundle, None if its namespace is not known here."""
        ring = self.rings.get(name.namespace)
        return None if ring is None else ring.of_topic(name)

    def owns(self, name: TopicName) -> bool:
        """Whether this broker serves the topic now."""
        bundle = self.bundle_of(name)
        return bundle is not None and self.has(bundle)

    def tenure(self, name: TopicName) -> int | None:
        """Returns the origin of the claim under which this broker serves the topic."""
        bundle = self.bundle_of(name)
        claim = None if bundle is None else self._held(bundle)
        return None if claim is None else claim.origin

    def has(self, bundle: Bundle) -> bool:
        """Whether this broker serves the bundle's topics now."""
        return self._held(bundle) is not None

    def _held(self, bundle: Bundle) -> Claim | None:
        """Returns the claim under which this broker serves the bundle's topics now."""
        claim = self.claims.get(bundle)
        if claim is None or claim.state is ClaimState.LEAVING or not self.serving:
            return None
        return claim

    async def require(self, name: TopicName) -> None:
        """Raises ServiceNotReady unless this broker owns the topic."""
        if self.owns(name):
            return
        bundle = await self.rings.bundle_of(name)
        if not self.serving:
            raise ServiceNotReady("The broker has lost touch with the metadata store, please retry")
        # The bundle may have been handed over to this broker a moment ago.
        if self.claims.get(bundle) is None:
            await self.claims.confirm(bundle)
            if self.owns(name):
                return
        raise not_served(name, self.brokers.own.broker_id)

    async def doubt(self, name: TopicName) -> None:
        """Checks the topic's claim against the store, after signs of another owner."""
        bundle = await self.rings.bundle_of(name)
        claim = self.claims.get(bundle)
        if claim is not None and not await self.claims.is_current(claim):
            if self.claims.drop(bundle) is not None:
                self._abandon(bundle, "the claim is gone")
            self._lookups.bundle_changed(bundle)

    async def require_owned(self, name: TopicName, *, authoritative: bool = False) -> None:
        """Like `require`, for REST: claims an unowned topic, or raises NotOwned with its owner."""
        located = await self.locate(name, authoritative=authoritative)
        if located.broker is not None:
            raise NotOwned(name, located.broker, authoritative=located.redirect)

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:
        """Returns where the topic is served; see `lookup`."""
        return await self._lookups.locate(name, authoritative=authoritative)

    async def guard(self, name: str) -> Grant:
        """Returns the claim under which a managed ledger is written; see `managed_ledger.guarded`.

        Waits while the bundle is being split; raises ManagedLedgerFenced if it is not owned.
        """
        topic = topic_of_ledger(name)
        while True:
            bundle = self.bundle_of(topic)
            claim = None if bundle is None else self.claims.get(bundle)
            if claim is None:
                raise ManagedLedgerFenced(f"{name} is not owned by this broker")
            if claim.settled is None:
                return Grant(claim.origin, (Check(claim.key, claim.revision),))
            await asyncio.shield(claim.settled)

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None:
        """Moves a bundle of this broker to another; returns the new owner's id, if there is one."""
        return await self._moves.unload(_bundle(bundle), destination)

    async def split(
        self,
        bundle: Bundle | str,
        algorithm: str = "range_equally_divide",
        positions: Sequence[int] = (),
    ) -> list[Bundle]:
        """Splits a bundle of this broker; its topics stay open in the parts."""
        return await self._moves.split(_bundle(bundle), algorithm, positions)

    def suspended(self) -> None:
        """Pauses all topics: the lease is in doubt."""
        self._established = False
        self._topics.suspend()
        self._lookups.wake_all()

    async def established(self, *, renewed: bool) -> None:
        """Resumes the topics, after abandoning them if the lease is a new one."""
        if renewed:
            if lost := self.claims.drop_all():
                log.warning("bundles lost", bundles=len(lost), reason="the lease was lost")
            self._topics.abandon(lambda _: True)
        self._established = True
        self._topics.resume()
        self._lookups.wake_all()

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
            # Handed over to this broker, or the watch is ahead of the answer to this claim.
            self.claims.adopt(bundle, record)
        elif claim is not None and claim.state is ClaimState.HELD:
            # The follower has seen the claim's own record, so this one is newer, or it is gone.
            self.claims.drop(bundle)
            self._abandon(bundle, "the claim is gone")
        if owner is not None and self.claims.is_own(owner):
            ring = self.rings.get(bundle.namespace)
            if ring is None or bundle not in ring:
                self._strays.look(bundle.namespace)
        self._lookups.bundle_changed(bundle)

    def _ring_changed(self, namespace: NamespaceName) -> None:
        self._strays.look(namespace)
        self._lookups.namespace_changed(namespace)

    def _abandon(self, bundle: Bundle, reason: str) -> None:
        log.warning("bundle lost", bundle=str(bundle), reason=reason)
        self._topics.abandon(bundle.holds)


def _bundle(bundle: Bundle | str) -> Bundle:
    return Bundle.parse(bundle) if isinstance(bundle, str) else bundle

"""Finds the broker that serves a topic, and has an unowned topic claimed.

If this broker owns the bundle, it answers directly. If another broker owns it, this broker probes
the owner before it names it. An owner whose address refuses connections has died: its lease is
ended at once, which frees its bundles. An owner that cannot be reached may be alive, so only the
expiry of its lease decides. If no broker owns the bundle, this broker chooses one: itself, and
claims the bundle, or another, to which it redirects the client with `authoritative`. A broker that
is asked with `authoritative` claims the bundle and chooses no other, so a client is redirected only
once.

A bundle may be between owners: it is being moved, or its owner has died unnoticed. A look-up is
then held for up to LOOKUP_HOLD_S and answered as soon as an owner exists. If it failed instead, the
client would back off. All look-ups of one bundle share one search.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.ownership.api import Choose
from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import Claims, ClaimState
from magnetar.broker.ownership.location import HERE, Located
from magnetar.broker.ownership.prober import Presence, Prober
from magnetar.broker.ownership.records import (
    BrokerRecord,
    OwnershipRecord,
    broker_key,
    decode_broker,
)
from magnetar.broker.ownership.rings import Rings
from magnetar.core.errors import MagnetarError, MetadataError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName, TopicName
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import MetadataStore

LOOKUP_HOLD_S: Final = 8.0
"""Longer than a lease lasts, shorter than clients wait for an answer."""
SUSPENDED_HOLD_S: Final = 1.0
"""The hold while this broker's own lease is in doubt: the client may do better elsewhere."""
TRUSTED_S: Final = 60.0
"""How long look-ups name an unreachable broker that has kept its lease, without a probe."""
ENDED_KEPT_MAX: Final = 1_024
RECHECK_S: Final = 0.5
"""A held search tries again after this time, even without a change."""

log = get_logger("magnetar.ownership.lookup")


class OwnershipView(Protocol):
    """The part of `ClusterOwnership` that look-ups and moves use."""

    brokers: BrokerRegistry
    claims: Claims
    rings: Rings
    choose: Choose

    @property
    def serving(self) -> bool:
        """Whether this broker may serve its claims now."""

    @property
    def draining(self) -> bool:
        """Whether this broker is handing over its bundles and accepts no more."""

    def allowed(self, bundle: Bundle) -> Sequence[BrokerRecord]:
        """Returns the brokers that accept bundles and may own this one, perhaps this broker."""

    def preferred(self, bundle: Bundle, brokers: Sequence[BrokerRecord]) -> Sequence[BrokerRecord]:
        """Returns the brokers that spread the bundle's anti-affinity group best, of those given."""

    def policy_name(self, bundle: Bundle) -> str:
        """Returns the name of the bundle's isolation policy, empty if it has none."""

    def has(self, bundle: Bundle) -> bool:
        """Whether this broker serves the bundle's topics now."""

    def owner_of(self, bundle: Bundle) -> OwnershipRecord | None:
        """Returns the bundle's owner as the watch last reported it."""

    def bundle_counts(self) -> Mapping[str, int]:
        """Returns the number of owned bundles by broker id."""


class Lookups:
    """Answers look-ups of topics; see `locate`."""

    def __init__(self, view: OwnershipView, store: MetadataStore, tasks: TaskSet) -> None:
        self._view = view
        self._store = store
        self._tasks = tasks
        self._prober = Prober(tasks)
        self._ended: dict[tuple[str, int], int] = {}
        """Leases that this broker ended, by their broker's id and start."""
        self._trusted: dict[str, tuple[int, float]] = {}
        """Unreachable brokers that look-ups still name: lease and deadline by broker id."""
        self._searches: dict[tuple[Bundle, bool], asyncio.Task[Located | MagnetarError]] = {}
        self._news: dict[tuple[Bundle, bool], asyncio.Event] = {}

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:
        """Returns where the topic is served; raises ServiceNotReady without an owner in time."""
        bundle = await self._view.rings.bundle_of(name)
        if self._view.has(bundle):
            return HERE
        key = (bundle, authoritative)
        search = self._searches.get(key)
        if search is None:
            search = self._tasks.start(self._outcome(bundle, authoritative), f"locate {bundle}")
            if search is None:
                raise ServiceNotReady("The broker is shutting down, please retry")
            self._searches[key] = search
            search.add_done_callback(lambda _: self._searches.pop(key, None))
        try:
            # Shielded: other look-ups may wait for this search when one session is closed.
            outcome = await asyncio.shield(search)
        except asyncio.CancelledError:
            if search.cancelled():
                raise ServiceNotReady("The broker is shutting down, please retry") from None
            raise
        if isinstance(outcome, MagnetarError):
            raise outcome
        return outcome

    def bundle_changed(self, bundle: Bundle) -> None:
        """Makes held searches of the bundle try again."""
        for authoritative in (False, True):
            if (news := self._news.get((bundle, authoritative))) is not None:
                news.set()

    def namespace_changed(self, namespace: NamespaceName) -> None:
        """Makes held searches in the namespace try again."""
        for (bundle, _), news in self._news.items():
            if bundle.namespace == namespace:
                news.set()

    def broker_changed(self, _broker_id: str) -> None:
        """Makes all held searches try again."""
        self.wake_all()

    def wake_all(self) -> None:
        """Makes all held searches try again."""
        for news in self._news.values():
            news.set()

    async def _outcome(self, bundle: Bundle, authoritative: bool) -> Located | MagnetarError:
        """Returns the answer for all waiters; an error is an answer, not a failure of the task."""
        try:
            return await self._search(bundle, authoritative)
        except MagnetarError as error:
            return error

    async def _search(self, bundle: Bundle, authoritative: bool) -> Located:
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + LOOKUP_HOLD_S
        news = self._news[bundle, authoritative] = asyncio.Event()
        try:
            while True:
                news.clear()
                try:
                    located = await self._try(bundle, authoritative)
                except MetadataError as error:
                    log.info("look-up failed", bundle=str(bundle), error=str(error))
                    located = None
                if located is not None:
                    return located
                if not self._view.serving and loop.time() - started >= SUSPENDED_HOLD_S:
                    raise ServiceNotReady(
                        "The broker has lost touch with the metadata store, please retry"
                    )
                left = deadline - loop.time()
                if left <= 0:
                    return self._last_resort(bundle)
                try:
                    async with asyncio.timeout(min(left, RECHECK_S)):
                        await news.wait()
                except TimeoutError:
                    continue
        finally:
            del self._news[bundle, authoritative]

    def _last_resort(self, bundle: Bundle) -> Located:
        """Names an unreachable owner that keeps its lease, since clients may reach it.

        Look-ups trust it for a while from now on, so that not every one waits as long.
        """
        owner = self._view.owner_of(bundle)
        broker = None if owner is None else self._registered(owner)
        if broker is None or broker.broker_id == self._view.brokers.own.broker_id:
            raise ServiceNotReady(self._no_owner(bundle))
        self._trusted[broker.broker_id] = (
            broker.lease_id,
            asyncio.get_running_loop().time() + TRUSTED_S,
        )
        return Located(broker)

    def _no_owner(self, bundle: Bundle) -> str:
        policy = self._view.policy_name(bundle)
        if policy and not self._view.allowed(bundle):
            return (
                f"Bundle {bundle} has no owner: no broker that the isolation policy {policy} "
                "allows is available, please retry"
            )
        return f"Bundle {bundle} has no owner yet, please retry"

    async def _try(self, bundle: Bundle, authoritative: bool) -> Located | None:
        """Returns where the bundle is served; None while that is undecided."""
        view = self._view
        if not view.serving:
            return None
        if view.has(bundle):
            return HERE
        claim = view.claims.get(bundle)
        if claim is not None and claim.state is ClaimState.LEAVING:
            return None
        owner = view.owner_of(bundle)
        if owner is None:
            return await self._assign(bundle, authoritative)
        if view.claims.is_own(owner) or view.claims.is_own_former(owner):
            return HERE if await view.claims.confirm(bundle) and view.has(bundle) else None
        broker = self._registered(owner)
        if broker is not None and await self._is_alive(broker):
            return Located(broker)
        return None

    def _registered(self, owner: OwnershipRecord) -> BrokerRecord | None:
        broker = self._view.brokers.get(owner.broker_id)
        return broker if broker is not None and broker.start == owner.start else None

    async def _assign(self, bundle: Bundle, authoritative: bool) -> Located | None:
        """Chooses a broker for an unowned bundle; claims the bundle if it is this broker."""
        view = self._view
        own_id = view.brokers.own.broker_id
        active = list(view.allowed(bundle))
        excluded = view.draining or all(broker.broker_id != own_id for broker in active)
        if not authoritative or excluded:
            while active:
                best = view.preferred(bundle, active)
                chosen_id = view.choose(bundle, best, view.bundle_counts(), own_id)
                chosen = next((b for b in active if b.broker_id == chosen_id), None)
                if chosen is None or chosen_id == own_id:
                    break
                if await self._is_alive(chosen):
                    return Located(chosen, redirect=True)
                active.remove(chosen)
        if excluded:
            return None
        return HERE if await view.claims.acquire(bundle) and view.has(bundle) else None

    async def _is_alive(self, broker: BrokerRecord) -> bool:
        """Whether a broker answers or is trusted; ends the lease of a dead broker.

        A broker that gets a new lease after its lease was ended here was not dead: this broker
        cannot reach it at its registered address, so only its lease shows whether it lives.
        """
        ended = self._ended.get((broker.broker_id, broker.start), broker.lease_id)
        lease_id, until = self._trusted.get(broker.broker_id, (0, 0.0))
        trusted = lease_id == broker.lease_id and asyncio.get_running_loop().time() < until
        if ended != broker.lease_id or trusted:
            return True
        presence = await self._prober.probe(broker)
        if presence is Presence.REFUSED:
            key = broker_key(broker.broker_id)
            record = await self._store.get(key)
            if record is not None and decode_broker(key, record.value).lease_id == broker.lease_id:
                log.warning("broker is dead, ending its lease", broker=broker.broker_id)
                if len(self._ended) >= ENDED_KEPT_MAX:
                    self._ended.clear()
                self._ended[broker.broker_id, broker.start] = broker.lease_id
                await self._store.revoke_lease(broker.lease_id)
        return presence is Presence.ALIVE

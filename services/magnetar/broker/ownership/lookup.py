"""Finds who serves a topic, and has it taken where nobody does.

Who is asked and owns the bundle answers for itself. Where another owns it, that broker is looked
at before it is named: one whose address refuses connections has died, and its lease is ended on
the spot, which frees what it owned; one that cannot be reached may live, and only its lease's
expiry decides. Where nobody owns the bundle, the one that is asked chooses: itself, and claims it,
or another, to which the client is sent with `authoritative`. Who is asked with that takes the
bundle and chooses nobody else, so a client is sent on once, not round and round.

A bundle may be between owners: being moved, or its owner gone and not yet known to be. A look-up
is held then, for LOOKUP_HOLD_S at most, and answered as soon as there is an owner; failing it would
send the client into its back-off. All look-ups of one bundle share one search.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.ownership.brokers import BrokerRegistry
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.claims import Claims, ClaimState
from magnetar.broker.ownership.located import HERE, Located
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
RESTING_HOLD_S: Final = 1.0
"""While this broker's own lease is in doubt: others may do better."""
BELIEVED_S: Final = 60.0
"""How long a broker is named unseen that kept its lease while it could not be reached."""
ENDED_KEPT_MAX: Final = 1_024
LOOK_AGAIN_S: Final = 0.5
"""How long a search that is held waits for news before it looks again by itself."""

log = get_logger("magnetar.ownership.lookup")


class Chooser(Protocol):
    def __call__(
        self,
        bundle: Bundle,
        brokers: Sequence[BrokerRecord],
        owned: Mapping[str, int],
        own_id: str,
        /,
    ) -> str | None: ...


class Known(Protocol):
    """What the ownership knows, seen from here."""

    brokers: BrokerRegistry
    claims: Claims
    rings: Rings
    choose: Chooser

    @property
    def serving(self) -> bool: ...

    @property
    def draining(self) -> bool: ...

    def has(self, bundle: Bundle) -> bool: ...

    def owner_of(self, bundle: Bundle) -> OwnershipRecord | None: ...

    def bundle_counts(self) -> Mapping[str, int]: ...


class Lookups:
    """See the module's text."""

    def __init__(self, known: Known, store: MetadataStore, tasks: TaskSet) -> None:
        self._known = known
        self._store = store
        self._tasks = tasks
        self._prober = Prober(tasks)
        self._ended: dict[tuple[str, int], int] = {}
        """Leases that were ended here, by the broker's id and start."""
        self._believed: dict[str, tuple[int, float]] = {}
        """Lease and time up to which brokers count as there that cannot be reached, by id."""
        self._searches: dict[tuple[Bundle, bool], asyncio.Task[Located | MagnetarError]] = {}
        self._news: dict[tuple[Bundle, bool], asyncio.Event] = {}

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:
        """Raises ServiceNotReady where no owner was found in time, or nothing can be known here."""
        bundle = await self._known.rings.bundle_of(name)
        if self._known.has(bundle):
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
            # Shielded: a session that goes away must not cancel what others wait for.
            outcome = await asyncio.shield(search)
        except asyncio.CancelledError:
            if search.cancelled():
                raise ServiceNotReady("The broker is shutting down, please retry") from None
            raise
        if isinstance(outcome, MagnetarError):
            raise outcome
        return outcome

    # -- news

    def bundle_changed(self, bundle: Bundle) -> None:
        for authoritative in (False, True):
            if (news := self._news.get((bundle, authoritative))) is not None:
                news.set()

    def namespace_changed(self, namespace: NamespaceName) -> None:
        for (bundle, _), news in self._news.items():
            if bundle.namespace == namespace:
                news.set()

    def broker_changed(self, _broker_id: str) -> None:
        self.wake_all()

    def wake_all(self) -> None:
        for news in self._news.values():
            news.set()

    # -- the search

    async def _outcome(self, bundle: Bundle, authoritative: bool) -> Located | MagnetarError:
        """What all who wait are told. An error is one of their answers, not the task's failure."""
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
                    log.info("looked for in vain", bundle=str(bundle), error=str(error))
                    located = None
                if located is not None:
                    return located
                if not self._known.serving and loop.time() - started >= RESTING_HOLD_S:
                    raise ServiceNotReady(
                        "The broker has lost touch with the metadata store, please retry"
                    )
                left = deadline - loop.time()
                if left <= 0:
                    return self._last_resort(bundle)
                try:
                    async with asyncio.timeout(min(left, LOOK_AGAIN_S)):
                        await news.wait()
                except TimeoutError:
                    continue
        finally:
            del self._news[bundle, authoritative]

    def _last_resort(self, bundle: Bundle) -> Located:
        """Its owner cannot be reached from here, but keeps its lease: clients may reach it.

        It is believed for a while from now on, lest every look-up waits as long.
        """
        owner = self._known.owner_of(bundle)
        broker = None if owner is None else self._registered(owner)
        if broker is None or broker.broker_id == self._known.brokers.own.broker_id:
            raise ServiceNotReady(f"Bundle {bundle} has no owner yet, please retry")
        self._believed[broker.broker_id] = (
            broker.lease_id,
            asyncio.get_running_loop().time() + BELIEVED_S,
        )
        return Located(broker)

    async def _try(self, bundle: Bundle, authoritative: bool) -> Located | None:
        """Where the bundle is; None while that cannot be said."""
        known = self._known
        if not known.serving:
            return None
        if known.has(bundle):
            return HERE
        claim = known.claims.get(bundle)
        if claim is not None and claim.state is ClaimState.LEAVING:
            return None
        owner = known.owner_of(bundle)
        if owner is None:
            return await self._assign(bundle, authoritative)
        if known.claims.is_own(owner) or known.claims.is_own_former(owner):
            return HERE if await known.claims.confirm(bundle) and known.has(bundle) else None
        broker = self._registered(owner)
        if broker is not None and await self._is_there(broker):
            return Located(broker)
        return None

    def _registered(self, owner: OwnershipRecord) -> BrokerRecord | None:
        broker = self._known.brokers.get(owner.broker_id)
        return broker if broker is not None and broker.start == owner.start else None

    async def _assign(self, bundle: Bundle, authoritative: bool) -> Located | None:
        known = self._known
        own_id = known.brokers.own.broker_id
        if not authoritative or known.draining:
            active = [broker for broker in known.brokers.living() if broker.active]
            while active:
                chosen_id = known.choose(bundle, active, known.bundle_counts(), own_id)
                chosen = next((b for b in active if b.broker_id == chosen_id), None)
                if chosen is None or chosen_id == own_id:
                    break
                if await self._is_there(chosen):
                    return Located(chosen, redirect=True)
                active.remove(chosen)
        if known.draining:
            return None
        return HERE if await known.claims.take(bundle) and known.has(bundle) else None

    async def _is_there(self, broker: BrokerRecord) -> bool:
        """Whether a broker answers, or is to be believed; of one that is dead the lease is ended.

        One that got itself another lease afterwards was not dead: others cannot reach it at the
        address that it gives, and its lease is all that says whether it lives.
        """
        ended = self._ended.get((broker.broker_id, broker.start), broker.lease_id)
        lease_id, until = self._believed.get(broker.broker_id, (0, 0.0))
        believed = lease_id == broker.lease_id and asyncio.get_running_loop().time() < until
        if ended != broker.lease_id or believed:
            return True
        presence = await self._prober.look(broker)
        if presence is Presence.REFUSED:
            key = broker_key(broker.broker_id)
            record = await self._store.get(key)
            if record is not None and decode_broker(key, record.value).lease_id == broker.lease_id:
                log.warning("broker is dead: its lease is ended", broker=broker.broker_id)
                if len(self._ended) >= ENDED_KEPT_MAX:
                    self._ended.clear()
                self._ended[broker.broker_id, broker.start] = broker.lease_id
                await self._store.revoke_lease(broker.lease_id)
        return presence is Presence.ALIVE

"""The broker's part in offloading: its defaults, what holds for each topic, requests and stats.

Jobs move ledgers, not brokers. A broker publishes its settings for them, says which copy of a
moved ledger is read, takes requests (`pulsar-admin topics offload`) that the next job sees to, and
knows for its stats what of its topics was moved: as of when somebody asked last, or, where a topic
is offloaded by its policies, of the last REFRESH_INTERVAL_S. Topics that are not offloaded cost
nothing, however many there are.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from magnetar.broker.offload_state import (
    NO_DRIVER,
    NOTHING_MOVED,
    Moved,
    OffloadStatus,
    first_unmoved,
    moved,
    status_of,
)
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.settings import BrokerSettings
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict, MetadataError
from magnetar.core.ids import Position
from magnetar.core.names import PARTITION_SUFFIX, NamespaceName, TopicName
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore
from magnetar.offload.cold import ColdLedgers
from magnetar.offload.policy import OffloadDefaults, OffloadPlan, decode_defaults, effective
from magnetar.offload.records import (
    DEFAULTS_KEY,
    OffloadRequest,
    RequestState,
    decode_request,
    encode,
    job_key,
    request_key,
)
from magnetar.policies.lifecycle import (
    OFFLOAD,
    OFFLOAD_DELETION_LAG,
    OFFLOAD_THRESHOLD,
    OFFLOAD_THRESHOLD_AGE,
)

ATTEMPTS_MAX: Final = 8
REFRESH_INTERVAL_S: Final = 60.0
REFRESHED_AT_ONCE_MAX: Final = 16
LOOKED_AT_PER_TURN: Final = 1_000


def offload_defaults(settings: BrokerSettings) -> OffloadDefaults:
    """The settings, as jobs get them."""
    return OffloadDefaults(
        driver=settings.offload_driver or "",
        bucket=settings.offload_bucket or "",
        region=settings.offload_region or "",
        endpoint=settings.offload_endpoint or "",
        folder=settings.offload_folder or "",
        threshold_bytes=settings.offload_threshold_bytes,
        threshold_s=settings.offload_threshold_s,
        deletion_lag_ms=settings.offload_deletion_lag_ms,
        read_priority=settings.offload_read_priority,
    )


async def publish_defaults(store: MetadataStore, defaults: OffloadDefaults) -> None:
    """Writes them where they differ from what is there; the broker that started last counts.

    Where no broker has any, nothing is written. Raises MetadataError.
    """
    value = msgspec.json.encode(defaults)
    for _ in range(ATTEMPTS_MAX):
        known = await store.get(DEFAULTS_KEY)
        if known is None and defaults == OffloadDefaults():
            return
        if known is not None and decode_defaults(DEFAULTS_KEY, known.value) == defaults:
            return
        try:
            await store.put(DEFAULTS_KEY, value, expected=0 if known is None else known.revision)
        except BadRevision:
            continue  # another broker was started at this moment
        return
    raise MetadataError(f"{DEFAULTS_KEY} changed {ATTEMPTS_MAX} times in a row")


class Offloading:
    """See the module's text."""

    def __init__(
        self,
        settings: BrokerSettings,
        policies: BrokerPolicies,
        store: MetadataStore,
        cold: ColdLedgers,
        clock: Clock,
    ) -> None:
        self.defaults = offload_defaults(settings)
        self.cold = cold
        self._policies = policies
        self._store = store
        self._clock = clock
        self._moved: dict[str, Moved] = {}

    # -- what holds

    def plan(self, topic: TopicName) -> OffloadPlan:
        """What holds for a topic."""
        own = self._policies.own_value(topic, OFFLOAD)
        return effective(self.defaults, self._document(topic.namespace), own)

    def _document(self, namespace: NamespaceName) -> dict[str, object]:
        return {
            policy.document: self._policies.namespace_value(namespace, policy)
            for policy in (OFFLOAD, OFFLOAD_THRESHOLD, OFFLOAD_THRESHOLD_AGE, OFFLOAD_DELETION_LAG)
        }

    def _namespace_offloaded(self, tenant: str, namespace: str) -> bool:
        document = self._document(NamespaceName(tenant, namespace))
        return effective(self.defaults, document, None).store is not None

    def cold_first(self, ledger: str) -> bool:
        """Whether a managed ledger's moved ledgers are read from their files."""
        plan = self.plan(topic_of(ledger))
        return plan.store is not None and plan.reads_cold_first

    # -- what was moved

    def moved(self, ledger: ManagedLedger) -> Moved:
        """As it is known; asks nobody."""
        return self._moved.get(ledger.name, NOTHING_MOVED)

    async def refresh(self, ledger: ManagedLedger, *, always: bool = False) -> Moved:
        """As metadata has it now. Asked only of topics that have closed ledgers and, unless
        `always`, are offloaded by policy or were before. Raises MetadataError."""
        known = self.moved(ledger)
        if not any(info.closed_ms for info in ledger.ledgers):
            self._moved.pop(ledger.name, None)
            return NOTHING_MOVED
        if not always and known is NOTHING_MOVED and self.plan(topic_of(ledger.name)).store is None:
            return known
        records = await self.cold.records(ledger.name)
        request = await self._request(ledger.name)
        found = moved(records, request[0])
        if found == NOTHING_MOVED:
            self._moved.pop(ledger.name, None)
            return NOTHING_MOVED
        self._moved[ledger.name] = found
        return found

    async def refresh_all(self, ledgers: Mapping[str, ManagedLedger]) -> None:
        """Those that are open here; what is known of others is let go.

        Whether a namespace is offloaded is worked out once for all of its topics.
        """
        for name in [name for name in self._moved if name not in ledgers]:
            del self._moved[name]
        own = {_base(name) for name in self._topics_with_policies()}
        of_namespaces: dict[str, bool] = {}
        chosen = []
        for number, (name, ledger) in enumerate(ledgers.items()):
            tenant, namespace, _ = name.split("/", 2)
            key = f"{tenant}/{namespace}"
            offloaded = of_namespaces.get(key)
            if offloaded is None:
                offloaded = of_namespaces[key] = self._namespace_offloaded(tenant, namespace)
            if offloaded or name in self._moved or (own and _base(name) in own):
                chosen.append(ledger)
            if number % LOOKED_AT_PER_TURN == LOOKED_AT_PER_TURN - 1:
                await asyncio.sleep(0)
        for start in range(0, len(chosen), REFRESHED_AT_ONCE_MAX):
            some = chosen[start : start + REFRESHED_AT_ONCE_MAX]
            await asyncio.gather(*(self.refresh(ledger) for ledger in some))

    def _topics_with_policies(self) -> list[str]:
        return [
            f"{topic.namespace}/persistent/{topic.encoded_local}"
            for topic in self._policies.topics_with(OFFLOAD)
        ]

    # -- what is asked for

    async def request(self, ledger: ManagedLedger, up_to: Position) -> None:
        """Has the next job move all ledgers before that of `up_to`. Raises Conflict."""
        name = ledger.name
        for _ in range(ATTEMPTS_MAX):
            before, revision = await self._request(name)
            if before is not None and (await self._status(ledger, before)).status == "RUNNING":
                raise Conflict("Offload already in progress")
            first, waiting = first_unmoved(ledger.ledgers, await self.cold.records(name), up_to)
            now_ms = self._clock.now_ms()
            asked = OffloadRequest(up_to=first, requested_ms=now_ms, first_unoffloaded=first)
            if not waiting:
                asked = replace(asked, state=RequestState.SUCCESS, finished_ms=now_ms)
            elif self.plan(topic_of(name)).store is None:
                asked = replace(
                    asked, state=RequestState.ERROR, finished_ms=now_ms, error=NO_DRIVER
                )
            try:
                await self._store.put(request_key(name), encode(asked), expected=revision)
            except BadRevision:
                continue  # a job finished the one before
            return
        raise Conflict("Offload already in progress")

    async def status(self, ledger: ManagedLedger) -> OffloadStatus:
        """What the last request came to."""
        request, _ = await self._request(ledger.name)
        return OffloadStatus() if request is None else await self._status(ledger, request)

    async def _status(self, ledger: ManagedLedger, request: OffloadRequest) -> OffloadStatus:
        if request.finished:
            return status_of(request, pending=False, job_alive=False)
        live = await self.cold.records(ledger.name)
        _, pending = first_unmoved(ledger.ledgers, live, request.up_to)
        alive = not request.job or await self._store.get(job_key(request.job)) is not None
        return status_of(request, pending, alive)

    async def _request(self, name: str) -> tuple[OffloadRequest | None, int]:
        key = request_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None, ABSENT
        return decode_request(key, stored.value), stored.revision


def _base(ledger: str) -> str:
    """The managed ledger's name without the number of a partition."""
    base, found, number = ledger.rpartition(PARTITION_SUFFIX)
    return base if found and number.isdecimal() else ledger


def topic_of(ledger: str) -> TopicName:
    """The topic of a managed ledger: the inverse of `topic_ledgers.ledger_name`."""
    tenant, namespace, domain, encoded = ledger.split("/", 3)
    return TopicName.from_encoded(domain, NamespaceName(tenant, namespace), encoded)

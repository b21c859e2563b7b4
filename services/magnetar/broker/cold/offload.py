"""The broker's part in offloading: defaults, topics' plans, requests and stats.

Jobs move ledgers, in a standalone `offloader`. A broker publishes its settings for them, decides
which copy of a moved ledger is read, accepts requests (`pulsar-admin topics offload`), and
caches for its stats what was moved. The cache is as of the last request for it; for topics that are
offloaded by policy it is refreshed every REFRESH_INTERVAL_S. Topics that are not offloaded cost
nothing.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from magnetar.broker.catalog.topic_names import ledger_name, topic_of_ledger
from magnetar.broker.cold.offload_state import (
    NO_DRIVER,
    NOTHING_MOVED,
    Moved,
    OffloadStatus,
    first_unmoved,
    moved,
    status_of,
)
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict, MetadataError
from magnetar.core.ids import Position
from magnetar.core.names import PARTITION_SUFFIX, NamespaceName, TopicName
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore
from magnetar.offload.cold import ColdLedgers
from magnetar.offload.policy import OffloadDefaults, OffloadPlan, decode_defaults, effective
from magnetar.offload.records import (
    DEFAULTS_KEY,
    REQUESTS_PREFIX,
    OffloadRequest,
    RequestState,
    decode_request,
    job_key,
    request_key,
)
from magnetar.policies.lifecycle import (
    OFFLOAD,
    OFFLOAD_DELETION_LAG,
    OFFLOAD_THRESHOLD,
    OFFLOAD_THRESHOLD_AGE,
)
from magnetar.settings.offload import OffloadSettings

ATTEMPTS_MAX: Final = 8
REFRESH_INTERVAL_S: Final = 60.0
REFRESHED_AT_ONCE_MAX: Final = 16
LEDGERS_PER_TURN: Final = 1_000


def offload_defaults(settings: OffloadSettings) -> OffloadDefaults:
    """Converts the settings to the form that jobs read."""
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
    """Writes the defaults if they have changed; those of the broker that started last apply.

    Writes nothing if no broker has ever set any. Raises MetadataError.
    """
    value = msgspec.json.encode(defaults)
    for _ in range(ATTEMPTS_MAX):
        published = await store.get(DEFAULTS_KEY)
        if published is None and defaults == OffloadDefaults():
            return
        if published is not None and decode_defaults(DEFAULTS_KEY, published.value) == defaults:
            return
        try:
            await store.put(
                DEFAULTS_KEY, value, expected=0 if published is None else published.revision
            )
        except BadRevision:
            continue  # another broker is starting
        return
    raise MetadataError(f"{DEFAULTS_KEY} changed {ATTEMPTS_MAX} times in a row")


class Offloading:
    """Plans, requests, status and cached results of offloading, for all topics of a broker."""

    def __init__(
        self,
        settings: OffloadSettings,
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

    def plan(self, topic: TopicName) -> OffloadPlan:
        """Returns how the policies want the topic to be offloaded."""
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
        """Whether a managed ledger's moved ledgers are read from object storage."""
        plan = self.plan(topic_of_ledger(ledger))
        return plan.store is not None and plan.reads_cold_first

    def moved(self, ledger: ManagedLedger) -> Moved:
        """Returns the cached result; no IO."""
        return self._moved.get(ledger.name, NOTHING_MOVED)

    async def refresh(self, ledger: ManagedLedger, *, always: bool = False) -> Moved:
        """Reads the offloaded ledgers from metadata, and caches them. Raises MetadataError.

        Reads only for topics with closed ledgers that, unless `always`, are offloaded by policy or
        were moved before.
        """
        cached = self.moved(ledger)
        if not any(info.closed_ms for info in ledger.ledgers):
            self._moved.pop(ledger.name, None)
            return NOTHING_MOVED
        if (
            not always
            and cached is NOTHING_MOVED
            and self.plan(topic_of_ledger(ledger.name)).store is None
        ):
            return cached
        records = await self.cold.records(ledger.name)
        request, _ = await self._read_request(ledger.name)
        result = moved(records, request)
        if result == NOTHING_MOVED:
            self._moved.pop(ledger.name, None)
            return NOTHING_MOVED
        self._moved[ledger.name] = result
        return result

    async def refresh_all(self, ledgers: Mapping[str, ManagedLedger]) -> None:
        """Refreshes the ledgers that are open here; evicts all others from the cache.

        Whether a namespace is offloaded is computed once for all of its topics.
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
            if number % LEDGERS_PER_TURN == LEDGERS_PER_TURN - 1:
                await asyncio.sleep(0)
        for start in range(0, len(chosen), REFRESHED_AT_ONCE_MAX):
            batch = chosen[start : start + REFRESHED_AT_ONCE_MAX]
            await asyncio.gather(*(self.refresh(ledger) for ledger in batch))

    def _topics_with_policies(self) -> list[str]:
        return [ledger_name(topic) for topic in self._policies.topics_with(OFFLOAD)]

    async def request(self, ledger: ManagedLedger, up_to: Position) -> None:
        """Requests that a job moves all ledgers before that of `up_to`. Raises Conflict."""
        name = ledger.name
        for _ in range(ATTEMPTS_MAX):
            before, revision = await self._read_request(name)
            if before is not None and (await self._status(ledger, before)).status == "RUNNING":
                raise Conflict("Offload already in progress")
            first, waiting = first_unmoved(ledger.ledgers, await self.cold.records(name), up_to)
            now_ms = self._clock.now_ms()
            wanted = OffloadRequest(up_to=first, requested_ms=now_ms, first_unoffloaded=first)
            if not waiting:
                wanted = replace(wanted, state=RequestState.SUCCESS, finished_ms=now_ms)
            elif self.plan(topic_of_ledger(name)).store is None:
                wanted = replace(
                    wanted, state=RequestState.ERROR, finished_ms=now_ms, error=NO_DRIVER
                )
            try:
                await self._store.put(request_key(name), encode(wanted), expected=revision)
            except BadRevision:
                continue  # a job has finished the former request
            return
        raise Conflict("Offload already in progress")

    async def requested(self) -> dict[str, Position]:
        """Returns how far logs were requested to be moved, of requests that no job works on.

        One listing of metadata. Raises MetadataError.
        """
        waiting = {}
        for stored in await self._store.list(REQUESTS_PREFIX):
            request = decode_request(stored.key, stored.value)
            if request.finished:
                continue
            if request.job and await self._store.get(job_key(request.job)) is not None:
                continue
            waiting[stored.key.removeprefix(REQUESTS_PREFIX)] = request.up_to
        return waiting

    async def status(self, ledger: ManagedLedger) -> OffloadStatus:
        """Returns the status of the last request."""
        request, _ = await self._read_request(ledger.name)
        return OffloadStatus() if request is None else await self._status(ledger, request)

    async def _status(self, ledger: ManagedLedger, request: OffloadRequest) -> OffloadStatus:
        if request.finished:
            return status_of(request, pending=False, job_alive=False)
        live = await self.cold.records(ledger.name)
        _, pending = first_unmoved(ledger.ledgers, live, request.up_to)
        alive = not request.job or await self._store.get(job_key(request.job)) is not None
        return status_of(request, pending, alive)

    async def _read_request(self, name: str) -> tuple[OffloadRequest | None, int]:
        """Returns the last request and the revision of its record."""
        key = request_key(name)
        stored = await self._store.get(key)
        if stored is None:
            return None, ABSENT
        return decode_request(key, stored.value), stored.revision


def _base(ledger: str) -> str:
    """Returns the managed ledger's name without a partition number."""
    base, suffix, number = ledger.rpartition(PARTITION_SUFFIX)
    return base if suffix and number.isdecimal() else ledger

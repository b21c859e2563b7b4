"""Which ledgers of a topic are offloaded now. Pure but for the reading of records at its end.

As in Pulsar: closed ledgers are counted from the newest to the oldest, and those beyond the
threshold of bytes, or closed longer ago than the threshold of age, are due, the oldest first.
Ledgers before an explicit position are due whatever the thresholds say. A threshold on the command
line takes the place of the policies'.
"""

import argparse
import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.store import MetadataStore
from magnetar.offload.policy import (
    OffloadDefaults,
    OffloadPlan,
    decode_defaults,
    effective,
    namespace_document,
    namespace_key,
    topic_offload,
    topic_policies_key,
)
from magnetar.offload.records import (
    DEFAULTS_KEY,
    OffloadRecord,
    OffloadRequest,
    decode_offload,
    decode_request,
    offloads_prefix,
    request_key,
)
from magnetar.offload.stores import AZURE, FILESYSTEM, GOOGLE, StoreSpec
from magnetar_spark.jobs.offload.work import LedgerTask
from magnetar_spark.log.topics import log_name

TOPICS_AT_ONCE: Final = 32
MS_PER_S: Final = 1000
STORE_SCHEMES: Final = {"s3": "aws-s3", "gs": GOOGLE, "az": AZURE, "file": FILESYSTEM}


@dataclass(frozen=True, slots=True)
class Override:
    """What the command line says; None leaves it to the policies."""

    store: StoreSpec | None = None
    threshold_bytes: int | None = None
    threshold_s: int | None = None
    deletion_lag_ms: int | None = None
    up_to: Position | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Override":
        """Raises PreconditionFailed naming the flag."""
        lag_s: int | None = args.deletion_lag
        return cls(
            parse_store(args.store) if args.store else None,
            args.threshold,
            args.threshold_age,
            None if lag_s is None else max(-1, lag_s * MS_PER_S),
            parse_position(args.up_to) if args.up_to else None,
        )

    def over(self, plan: OffloadPlan) -> OffloadPlan:
        """The policies, with this over them. A threshold given switches the other one off."""
        if self.store is not None:
            plan = replace(plan, store=self.store)
        if self.deletion_lag_ms is not None:
            plan = replace(plan, deletion_lag_ms=self.deletion_lag_ms)
        if (self.threshold_bytes, self.threshold_s, self.up_to) != (None, None, None):
            plan = replace(
                plan,
                threshold_bytes=-1 if self.threshold_bytes is None else self.threshold_bytes,
                threshold_s=-1 if self.threshold_s is None else self.threshold_s,
            )
        return plan

    @property
    def asks(self) -> bool:
        """Whether ledgers are asked for here, so that a topic without a store is a mistake."""
        return any(
            each is not None for each in (self.threshold_bytes, self.threshold_s, self.up_to)
        )


def parse_store(url: str) -> StoreSpec:
    """`s3://BUCKET/PREFIX?region=R&endpoint=URL`, also `gs:` and `az:`; `file:///FOLDER`."""
    parts = urlsplit(url)
    driver = STORE_SCHEMES.get(parts.scheme)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - {"region", "endpoint"})
    path = unquote(parts.path)
    bucket = path if driver == FILESYSTEM else parts.netloc
    if driver is None or unknown or not bucket:
        raise PreconditionFailed(
            f"--store '{url}': write s3://BUCKET/PREFIX?region=R&endpoint=URL (or gs:, az:), "
            "or file:///FOLDER"
        )
    prefix = "" if driver == FILESYSTEM else path.strip("/")
    return StoreSpec(driver, bucket, options.get("region", ""), options.get("endpoint", ""), prefix)


def parse_position(text: str) -> Position:
    """`LEDGER:ENTRY`."""
    ledger_id, _, entry_id = text.partition(":")
    try:
        return Position(int(ledger_id), int(entry_id))
    except ValueError:
        raise PreconditionFailed(f"--up-to '{text}': write LEDGER:ENTRY") from None


def due(
    ledgers: Sequence[LedgerItem],
    offloaded: Collection[int],
    plan: OffloadPlan,
    now_ms: int,
    up_to: Iterable[Position] = (),
) -> list[LedgerItem]:
    """The ledgers to offload, oldest first."""
    before = max((position.ledger_id for position in up_to), default=-1)
    found: list[LedgerItem] = []
    summed = 0
    for item in reversed(ledgers):
        if not item.closed_ms:
            continue
        summed += item.size_bytes
        too_much = 0 <= plan.threshold_bytes < summed
        too_old = 0 <= plan.threshold_s * MS_PER_S <= now_ms - item.closed_ms
        asked = item.ledger_id < before
        if item.entries and item.ledger_id not in offloaded and (too_much or too_old or asked):
            found.append(item)
    return found[::-1]


@dataclass(frozen=True, slots=True)
class TopicWork:
    """One topic: what holds for it, what it has on record, and what is to be done."""

    topic: TopicName
    name: str
    plan: OffloadPlan
    ledgers: tuple[LedgerItem, ...]
    files: dict[int, tuple[OffloadRecord, int]]
    """Live ones by ledger, with their records' revisions."""
    request: tuple[OffloadRequest, int] | None
    """One that is not finished, with its revision."""
    tasks: tuple[LedgerTask, ...]

    @property
    def store_missing(self) -> bool:
        """Whether something is asked for that cannot be put anywhere."""
        return self.plan.store is None and self.request is not None


async def topic_works(
    store: MetadataStore, topics: Sequence[TopicName], override: Override, now_ms: int
) -> list[TopicWork]:
    """Of all topics that are there."""
    record = await store.get(DEFAULTS_KEY)
    defaults = decode_defaults(DEFAULTS_KEY, None if record is None else record.value)
    works: list[TopicWork] = []
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        some = topics[start : start + TOPICS_AT_ONCE]
        found = await asyncio.gather(
            *(_work(store, topic, override, defaults, now_ms) for topic in some)
        )
        works += [work for work in found if work is not None]
    return works


async def _work(
    store: MetadataStore,
    topic: TopicName,
    override: Override,
    defaults: OffloadDefaults,
    now_ms: int,
) -> TopicWork | None:
    name = log_name(topic)
    described = await _described(store, name)
    if described is None:
        return None
    plan = override.over(await _plan(store, name, defaults))
    files = await live_records(store, name)
    request = await open_request(store, name)
    up_to = [] if request is None else [request[0].up_to]
    if override.up_to is not None:
        up_to.append(override.up_to)
    items = due(described.ledgers, files, plan, now_ms, up_to)
    target = plan.store
    tasks = () if target is None else tuple(_task(topic, name, item, target) for item in items)
    return TopicWork(topic, name, plan, described.ledgers, files, request, tasks)


def _task(topic: TopicName, name: str, item: LedgerItem, store: StoreSpec) -> LedgerTask:
    return LedgerTask(
        name,
        str(topic),
        topic.partition_index,
        item.ledger_id,
        item.size_bytes,
        item.created_ms,
        item.closed_ms,
        store,
    )


async def _described(store: MetadataStore, name: str) -> ManagedLedgerRecord | None:
    key = managed_ledger_key(name)
    record = await store.get(key)
    if record is None:
        return None
    described = decode_managed_ledger(key, record.value)
    return None if described.deleted else described


async def _plan(store: MetadataStore, name: str, defaults: OffloadDefaults) -> OffloadPlan:
    keys = namespace_key(name), topic_policies_key(name)
    namespace, topic = await asyncio.gather(*map(store.get, keys))
    return effective(
        defaults,
        namespace_document(keys[0], None if namespace is None else namespace.value),
        topic_offload(keys[1], None if topic is None else topic.value),
    )


async def live_records(store: MetadataStore, name: str) -> dict[int, tuple[OffloadRecord, int]]:
    """The live files of a managed ledger, by ledger, with their records' revisions."""
    found: dict[int, tuple[OffloadRecord, int]] = {}
    for record in await store.list(offloads_prefix(name)):
        file = decode_offload(record.key, record.value)
        found[file.ledger_id] = file, record.revision
    return found


async def open_request(store: MetadataStore, name: str) -> tuple[OffloadRequest, int] | None:
    """What was asked for and is not finished."""
    key = request_key(name)
    record = await store.get(key)
    if record is None:
        return None
    request = decode_request(key, record.value)
    return None if request.finished else (request, record.revision)

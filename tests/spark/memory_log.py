"""A topic's log in memory, with bookies that may be unavailable, for the real planner.

No port is opened: `opened_log` gives the planner a `MemoryStore` and bookies in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeVar

import pytest
from tests.unit.ledger.cluster import Disk

from magnetar.bookie.api import Bookie, BookieError, BookieIdentity
from magnetar.bookie.registration import BookieRegistration
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.bookies import BookieInfo, BookieLost
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, ledger_key
from magnetar.managed_ledger import record as managed
from magnetar.managed_ledger.record import LedgerItem, ManagedLedgerRecord
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar_spark import planner, stream, values
from magnetar_spark.filters import Bounds
from magnetar_spark.log.access import RegisteredLog
from magnetar_spark.log.admin import Admin
from magnetar_spark.log.settings import LEDGER_SETTINGS
from magnetar_spark.options import ReadOptions
from magnetar_spark.planner import LogPartition, Plan, plan_read
from magnetar_spark.stream import PulsarStreamReader
from magnetar_spark.table import schema_of
from magnetar_spark.values import Values

TOPIC = "persistent://public/default/t"
ENTRY = b"x" * 100
T = TypeVar("T")


class MemoryBookies:
    """A `BookieSet`; bookies in `away` do not answer."""

    def __init__(self, count: int) -> None:
        self.disks = [Disk(f"b{number}") for number in range(count)]
        self.away: set[str] = set()

    def get(self, identity: BookieIdentity) -> Bookie | None:
        found = {disk.identity: disk for disk in self.disks}.get(identity)
        return None if identity.bookie_id in self.away else found

    def living(self) -> Sequence[BookieInfo]:
        return [BookieInfo(disk.identity) for disk in self.disks]

    def registrations(self) -> list[BookieRegistration]:
        return []

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """Does nothing: no bookie is quarantined."""

    def add_listener(self, on_lost: BookieLost) -> None:
        """Nothing is lost."""

    def remove_listener(self, on_lost: BookieLost) -> None:
        """Nothing is lost."""


class MemoryLog:
    """Ledgers on two bookies with an ack quorum of one, unless a test sets others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bookies: int = 2) -> None:
        clock = SystemClock()
        self.store = MemoryStore(clock)
        self.bookies = MemoryBookies(bookies)
        self.context = LedgerContext(self.store, self.bookies, clock, LEDGER_SETTINGS, Random(7))
        self.admin: Admin | None = None
        for module in (planner, stream, values):
            monkeypatch.setattr(module, "opened_log", self._opened)

    @asynccontextmanager
    async def _opened(self, _: Any) -> AsyncIterator[RegisteredLog]:
        yield RegisteredLog(self.store, self.bookies, self.context, self.admin)  # type: ignore[arg-type]

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)

    def put(self, key: str, value: bytes) -> None:
        self.run(self.store.put(key, value))

    def delete(self, key: str) -> None:
        self.run(self.store.delete(key))

    def topic(
        self,
        *items: LedgerItem,
        trimmed_to: Position = EARLIEST,
        name: str = TOPIC,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Writes the record of the topic's log."""
        made = ManagedLedgerRecord(
            1, 1, items, last_position=trimmed_to, properties=properties or {}
        )
        self.put(managed.managed_ledger_key(log_name(parse_topic(name))), encode(made))

    def closed(self, ledger_id: int, entries: int) -> LedgerItem:
        """Adds a closed ledger, which needs no request to a bookie."""
        made = self.metadata(ledger_id).closed(entries - 1, 100 * entries, 5)
        self.put(ledger_key(ledger_id), encode(made))
        return LedgerItem(ledger_id, 1, 5, entries, 100 * entries)

    def open(self, ledger_id: int, *stored: tuple[int, int], **quorums: int) -> LedgerItem:
        """Adds an open ledger, with the numbers of stored and of confirmed entries per bookie."""
        self.put(ledger_key(ledger_id), encode(self.metadata(ledger_id, **quorums)))
        for disk, (entries, confirmed) in zip(self.bookies.disks, stored, strict=False):
            if entries:
                data = [ENTRY] * entries
                disk.add_now(ledger_id, 0, data, confirmed - 1, recovery=False)
        return LedgerItem(ledger_id, 1)

    def metadata(self, ledger_id: int, *, write_quorum: int = 2, ack_quorum: int = 1) -> Any:
        ensemble = Ensemble(0, tuple(disk.identity for disk in self.bookies.disks))
        size = len(ensemble.bookies)
        return LedgerMetadata(ledger_id, (ensemble,), 1, size, write_quorum, ack_quorum)

    def options(self, topic: str = TOPIC, **more: str) -> ReadOptions:
        named = {} if "topicsPattern" in more else {"topic": topic}
        return ReadOptions.parse({"metadata.url": "etcd:http://127.0.0.1:1", **named, **more})

    def stream(self, topic: str = TOPIC, **more: str) -> PulsarStreamReader:
        nothing = Values()
        schema = schema_of(nothing.spark_fields())
        return PulsarStreamReader(self.options(topic, **more), schema, nothing)

    def batch(self, topic: str = TOPIC, **more: str) -> Plan:
        return self.run(plan_read(self.options(topic, **more), Bounds()))


def ranges_of_stream(
    reader: PulsarStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[Range]:
    """Returns the ranges that the tasks of the micro-batch read."""
    partitions = reader.partitions(start, end)
    assert all(isinstance(each, LogPartition) for each in partitions)
    return [each for task in partitions for each in task.ranges]  # type: ignore[attr-defined]


def positions(ranges: list[Range]) -> list[str]:
    """Returns every entry's position in the form of offsets."""
    return [f"{each.ledger_id}:{n}" for each in ranges for n in range(each.first, each.last + 1)]


def entries(ledger_id: int, first: int, last: int) -> list[str]:
    return [f"{ledger_id}:{number}" for number in range(first, last + 1)]


def partition(index: int) -> TopicName:
    return parse_topic(TOPIC).partition(index)

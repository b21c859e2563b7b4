"""A cluster in memory, and jobs that run on it from their arguments to their exit code.

The metadata store, the bookies and the managed ledgers are the product's own; files are in a
folder. Only the sockets are not: a client of the store or of a bookie is a `Connection`, which a
process must close. `by_spark` runs the functions that Spark maps, one task after the other.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from tests.spark.memory_log import MemoryBookies
from tests.support.compaction import LogEntry
from tests.support.held_store import Chosen
from tests.unit.ledger.stage import publish

from magnetar.bookie.api import BookieIdentity, BookieUnavailable
from magnetar.bookie.registration import BookieRegistration, registration_key
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import run
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.sweeper import CLUSTER_KEY
from magnetar.ledger import registered_bookies
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import ledger_key
from magnetar.ledger.settings import LedgerSettings
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import (
    ManagedLedgerRecord,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode as encode_registration
from magnetar.metadata.store import Delete, Lease, Operation, Put
from magnetar.offload.file_format import EntryFile
from magnetar.offload.stores import FILESYSTEM, StoreSpec, open_object_store
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch
from magnetar.wire.entry import build_entry
from magnetar_spark.jobs.main import main
from magnetar_spark.jobs.session import Sessions
from magnetar_spark.log import access

TOPIC = "persistent://public/default/t"
CLUSTER_ID = "here"
METADATA_URL = "etcd:http://in.memory:1"
LEDGER_ENTRIES = 4
CLOSED = ManagedLedgerSettings(rollover_entries_max=LEDGER_ENTRIES, rollover_ms_min=0)
COPIES = LedgerSettings(ensemble_size=3, write_quorum=2, ack_quorum=2)
T = TypeVar("T")


def entry(
    number: int, *, key: str = "", value: bytes | None = None, time_ms: int = 0, **more: Any
) -> bytes:
    """Returns the entry of one message, as a producer sends it."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=number,
        publish_time=time_ms or 1_700_000_000_000 + number,
        **more,
    )
    if key:
        metadata.partition_key = key
    return build_entry(metadata, f"message {number} ".encode() * 20 if value is None else value)


def batch(number: int, keys: Sequence[str], *, time_ms: int = 0) -> bytes:
    """Returns the entry of a batch with a message of each key."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=number,
        publish_time=time_ms or 1_700_000_000_000 + number,
        num_messages_in_batch=len(keys),
    )
    inside = [(SingleMessageMetadata(partition_key=key), b"of a batch") for key in keys]
    return build_entry(metadata, build_batch(inside))


NEWEST = entry(99)
Act = Callable[[], Awaitable[object]]


class ScriptedStore(MemoryStore):
    """Records the writes in order, and lets a test act right before or after one of them."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.writes: list[list[str]] = []
        """The keys of each write; deleted and checked keys have a mark."""
        self.leases: list[Lease] = []
        self._before: list[tuple[Chosen, Act]] = []
        self._after: list[tuple[Chosen, Act]] = []

    def before(self, chosen: Chosen, act: Act) -> None:
        """Runs `act` once, after all reads that the next such write relies on."""
        self._before.append((chosen, act))

    def after(self, chosen: Chosen, act: Act) -> None:
        """Runs `act` once, after the next such write and before its answer."""
        self._after.append((chosen, act))

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        operations = [Put(key, value, expected)]
        await _acted(self._before, operations)
        revision = await super().put(key, value, expected=expected, lease_id=lease_id)
        await self._done(operations)
        return revision

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        operations = [Delete(key, expected)]
        await _acted(self._before, operations)
        done = await super().delete(key, expected=expected)
        await self._done(operations)
        return done

    async def transact(self, operations: Sequence[Operation]) -> int:
        await _acted(self._before, operations)
        revision = await super().transact(operations)
        await self._done(operations)
        return revision

    async def grant_lease(self, ttl_s: float) -> Lease:
        self.leases.append(lease := await super().grant_lease(ttl_s))
        return lease

    async def _done(self, operations: Sequence[Operation]) -> None:
        marks = {Put: "", Delete: "-"}
        self.writes.append([marks.get(type(each), "?") + each.key for each in operations])
        await _acted(self._after, operations)


async def _acted(waiting: list[tuple[Chosen, Act]], operations: Sequence[Operation]) -> None:
    for each in waiting:
        if any(each[0](operation) for operation in operations):
            waiting.remove(each)
            await each[1]()
            return


class Connection:
    """A process's connection to a store or a bookie; it passes all calls on."""

    def __init__(self, of: Any, name: str, away: Callable[[], bool] = lambda: False) -> None:
        self._of = of
        self._away = away
        self.name = name
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        if self._away():
            raise BookieUnavailable(f"{self.name} is away")
        return getattr(self._of, name)

    async def close(self) -> None:
        self.closed += 1


class JobCluster:
    """A cluster in memory on which jobs run. `folder` is the object store."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.store = ScriptedStore()
        self.folder = folder
        self.bookies = MemoryBookies(3)
        self.connections: list[Connection] = []
        self.sessions = 0
        """How often a job would have started Spark."""
        self._capsys = capsys
        monkeypatch.setattr(access, "open_store", self.opened_store)
        monkeypatch.setattr(access, "RemoteBookie", self._connected)
        connect = lambda _, at: self._connected(at.identity, at.host, at.port)  # noqa: E731
        monkeypatch.setattr(registered_bookies.RegisteredBookies, "_connect_remote", connect)
        monkeypatch.setattr(Sessions, "get", lambda _: self._session())
        self.run(self._set_up())

    async def _set_up(self) -> None:
        await self.store.put(CLUSTER_KEY, json.dumps({"cluster_id": CLUSTER_ID}).encode())
        for number, disk in enumerate(self.bookies.disks):
            identity = disk.identity
            made = BookieRegistration(identity.bookie_id, identity.incarnation, "host", number + 1)
            await self.store.put(registration_key(identity.bookie_id), encode_registration(made))

    async def opened_store(self, *_: Any) -> Any:
        """Replaces `open_store` for this cluster's metadata."""
        self.connections.append(made := Connection(self.store, "metadata"))
        return made

    def _connected(self, identity: BookieIdentity, host: str, port: int, **_: Any) -> Any:
        (disk,) = (each for each in self.bookies.disks if each.identity == identity)
        assert (host, port) == ("host", self.bookies.disks.index(disk) + 1)
        away = lambda: identity.bookie_id in self.bookies.away  # noqa: E731
        self.connections.append(made := Connection(disk, str(identity), away))
        return made

    def _session(self) -> Any:
        self.sessions += 1
        return self

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(coroutine)

    def job(self, kind: str, *arguments: str) -> dict[str, Any]:
        """Runs a job; returns its summary and exit code. Fails if a connection stays open."""
        self._capsys.readouterr()
        given = ["--metadata-url", METADATA_URL, "--json", "--no-progress", *arguments]
        code = main([kind, *given], clock=self.clock)
        found: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        assert [each.name for each in self.connections if each.closed != 1] == []
        return {**found, "code": code}

    @asynccontextmanager
    async def broker(self, *, dies: bool = False) -> AsyncIterator[ManagedLedgerFactory]:
        """Runs a broker, which finally closes its topics, or dies and leaves their ledgers open."""
        ledgers = LedgerClient(
            self.store, LocalBookies(self.bookies.disks), self.clock, COPIES, rng=Random(1)
        )
        factory = ManagedLedgerFactory(self.store, ledgers, self.clock, CLOSED)
        yield factory
        await (factory.abandon() if dies else factory.close())
        await ledgers.close()

    def write(self, topic: str, entries: Iterable[bytes], *, newest: bytes | None = NEWEST) -> None:
        """Appends the entries one by one; a ledger has at most LEDGER_ENTRIES.

        The last of their ledgers is closed, and `newest` is alone in the open ledger that its
        broker has left. If it is None, their last ledger stays open.
        """

        async def writing() -> None:
            async with self.broker(dies=True) as factory:
                ledger = await factory.open(log_name(parse_topic(topic)))
                await append(ledger, entries)
                if newest is not None:
                    await ledger.roll_over()
                    await append(ledger, [newest])

        self.run(writing())

    def record(self, topic: str = TOPIC) -> ManagedLedgerRecord:
        key = managed_ledger_key(log_name(parse_topic(topic)))
        stored = self.run(self.store.get(key))
        assert stored is not None
        return decode_managed_ledger(key, stored.value)

    def closed(self, topic: str = TOPIC) -> list[int]:
        """Returns the ids of the closed ledgers that have entries."""
        items = self.record(topic).ledgers
        return [each.ledger_id for each in items if each.closed_ms and each.entries]

    def on_bookies(self, topic: str = TOPIC) -> list[int]:
        items = self.record(topic).ledgers
        there = [self.run(self.store.get(ledger_key(each.ledger_id))) for each in items]
        return [item.ledger_id for item, found in zip(items, there, strict=True) if found]

    def log(self, topic: str = TOPIC) -> list[LogEntry]:
        """Returns every entry of the topic's ledgers on bookies, in order."""
        found: list[LogEntry] = []
        for item in self.record(topic).ledgers:
            data: dict[int, bytes] = {}
            for disk in self.bookies.disks:
                data |= disk.ledger(item.ledger_id).entries
            found += [LogEntry(Position(item.ledger_id, n), data[n]) for n in sorted(data)]
        return found

    def keys(self, prefix: str) -> list[str]:
        return [each.key for each in self.run(self.store.list(prefix))]

    @property
    def spec(self) -> StoreSpec:
        return StoreSpec(FILESYSTEM, str(self.folder))

    def content(self, path: str) -> list[tuple[int, int, bytes]]:
        """Returns ledger, entry and data of all entries in the file, with verified checksums."""

        async def read() -> list[tuple[int, int, bytes]]:
            file = await EntryFile.open(open_object_store(self.spec), path)
            groups = [await file.read_group(each.number) for each in file.groups]
            return [(each[0], each[1], each[2]) for group in groups for each in group]

        return self.run(read())

    def age(self, path: str, hours: float) -> None:
        """Sets the file's modification time to an earlier one."""
        then = self.clock.now_ms() / 1000 - hours * 3600
        os.utime(self.folder / path, (then, then))

    def files(self) -> set[str]:
        """Returns the paths of all files in the object store."""
        found = (each for each in self.folder.rglob("*") if each.is_file())
        return {str(each.relative_to(self.folder)) for each in found}


async def append(ledger: ManagedLedger, entries: Iterable[bytes]) -> None:
    for each in entries:
        await publish(ledger, each)

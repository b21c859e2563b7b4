"""The metadata store of a single process: a local RocksDB with durable writes.

The event loop stages writes against the newest state, whether it is on disk or not, and hands them
in groups to one named thread. Writes that arrive during a sync form the next group, so 10,000
concurrent writes cost a few dozen syncs. Readers see durable state only: while writes of a key are
in flight, `_Pending` keeps its durable record, and reads, lists and watches use that record until
the group is on disk. A compare-and-swap that fails against a write in flight waits for that write,
so that its caller then reads the winner.

The loop answers reads itself, since a RocksDB get costs about 1 µs. After a failed write the state
on disk is unknown: the store then refuses all further writes, and the process should restart.

Leases end with the process: opening the store deletes the keys of the former process's leases.
Bounds: GROUP_COMMITS_MAX, GROUP_BYTES_MAX, WRITES_WAITING_MAX, RECENT_RECORDS_MAX; for watches see
`watches`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError, TooManyRequests
from magnetar.core.log import get_logger
from magnetar.metadata.leases import LeaseTable
from magnetar.metadata.operations import (
    Change,
    check_children_prefix,
    check_key,
    check_operations,
    leases_named,
    stage,
)
from magnetar.metadata.rocks import RocksFiles
from magnetar.metadata.store import (
    BadRevision,
    Delete,
    Lease,
    Operation,
    Put,
    Record,
    StoreClosed,
    Watch,
)
from magnetar.metadata.watches import WatchHub
from magnetar.metadata.writer import WriterThread

GROUP_COMMITS_MAX: Final = 512
GROUP_BYTES_MAX: Final = 4 << 20
RECENT_RECORDS_MAX: Final = 512
"""Records written lately that stay in memory: most records of transactions change again soon."""
RECENT_VALUE_BYTES_MAX: Final = 1 << 10
WRITES_WAITING_MAX: Final = 65_536
LIST_TURN_RECORDS: Final = 1_000
"""A long list yields to the event loop after this many records, about 2 ms."""

log = get_logger("magnetar.metadata")


@dataclass(slots=True)
class _Pending:
    """A key with `writes` in flight: its record on disk, and its record after the last write."""

    durable: Record | None
    newest: Record | None
    writes: int = 0


@dataclass(slots=True, eq=False)
class _Commit:
    """A revision in flight. Without changes: a caller that waits for all earlier revisions."""

    revision: int
    changes: Sequence[Change]
    landed: "asyncio.Future[None]"
    size_bytes: int


class EmbeddedStore:
    """A `MetadataStore` on a local RocksDB. Create it with `open_embedded`."""

    def __init__(self, files: RocksFiles, writer: WriterThread, clock: Clock) -> None:
        self._files = files
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._revision = self._staged_revision = files.revision
        self._pending: dict[str, _Pending] = {}
        self._recent: dict[str, Record] = {}
        """Durable records of keys without a write in flight, in the order of their writes."""
        self._gathered: deque[_Commit] = deque()
        self._under_way = False
        """Whether the writer has a group, or the next hand-over is scheduled."""
        self._failure: MetadataError | None = None
        self._closing: asyncio.Task[None] | None = None
        self._hub = WatchHub(files.revision)
        self._leases = LeaseTable(
            clock, on_end=self._drop, on_call=self._check_open, on_due=self._expire
        )

    async def get(self, key: str) -> Record | None:
        return self.get_at_once(key)

    def get_at_once(self, key: str) -> Record | None:
        """See `ImmediateReads`."""
        self._check_open()
        check_key(key)
        if (pending := self._pending.get(key)) is not None:
            return pending.durable
        return self._recent.get(key) or self._files.get(key)

    async def list(self, prefix: str) -> list[Record]:
        self._check_open()
        hidden = self._durable_of_pending(prefix)
        records = [record for record in hidden.values() if record is not None]
        for count, record in enumerate(self._files.records(prefix), 1):
            if record.key not in hidden:
                records.append(record)
            if count % LIST_TURN_RECORDS == 0:
                await asyncio.sleep(0)
                self._check_open()
        if hidden:
            records.sort(key=lambda record: record.key)
        return records

    async def children(self, prefix: str) -> Sequence[str]:
        self._check_open()
        check_children_prefix(prefix)
        hidden = self._durable_of_pending(prefix)
        skip = len(prefix)
        segments = {key[skip:].partition("/")[0] for key, record in hidden.items() if record}
        for count, segment in enumerate(self._files.children(prefix, frozenset(hidden)), 1):
            segments.add(segment)
            if count % LIST_TURN_RECORDS == 0:
                await asyncio.sleep(0)
                self._check_open()
        return sorted(segments)

    async def revision(self) -> int:
        self._check_open()
        return self._revision

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        self._check_open()
        return self._hub.watch(prefix, from_revision)

    def _durable_of_pending(self, prefix: str) -> dict[str, Record | None]:
        """The durable records of keys in flight; RocksDB may return their next records already."""
        return {
            key: pending.durable for key, pending in self._pending.items() if key.startswith(prefix)
        }

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        return (await self._write((Put(key, value, expected, lease_id),)))[0]

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        return (await self._write((Delete(key, expected),)))[1] > 0

    async def transact(self, operations: Sequence[Operation]) -> int:
        return (await self._write(operations))[0]

    async def _write(self, operations: Sequence[Operation]) -> tuple[int, int]:
        """Returns the revision and the number of changes, once they are durable."""
        self._check_open()
        check_operations(operations)
        if len(self._gathered) >= WRITES_WAITING_MAX:
            raise TooManyRequests(f"{WRITES_WAITING_MAX} metadata writes are waiting for the disk")
        for lease_id in leases_named(operations):
            self._leases.require(lease_id)
        contended = any(operation.key in self._pending for operation in operations)
        try:
            changes = stage(operations, self._newest, self._staged_revision + 1)
        except BadRevision:
            if contended:
                await self._commit(())
            raise
        if not changes:
            if contended:
                await self._commit(())
            return self._revision, 0
        commit = self._commit(changes)
        revision = self._staged_revision
        await commit
        return revision, len(changes)

    def _newest(self, key: str) -> Record | None:
        if (pending := self._pending.get(key)) is not None:
            return pending.newest
        return self._recent.get(key) or self._files.get(key)

    def _commit(self, changes: Sequence[Change]) -> "asyncio.Future[None]":
        """Queues the changes as the next revision; the future completes once they are durable."""
        if self._failure is not None:
            raise self._failure
        if changes:
            self._staged_revision += 1
        size_bytes = 0
        for change in changes:
            pending = self._pending.get(change.key)
            if pending is None:
                pending = self._pending[change.key] = _Pending(change.before, None)
            pending.newest = change.after
            pending.writes += 1
            change.was_leased = self._leases.holds(change.key)
            self._leases.attach(change.key, change.lease_id)
            size_bytes += len(change.key) + (len(change.after.value) if change.after else 0)
        commit = _Commit(self._staged_revision, changes, self._loop.create_future(), size_bytes)
        self._gathered.append(commit)
        if not self._under_way:
            self._under_way = True
            # In the next turn, so that the group includes the other writes of this turn.
            self._loop.call_soon(self._hand_over)
        return commit.landed

    def _hand_over(self) -> None:
        group: list[_Commit] = []
        size_bytes = 0
        while self._gathered and len(group) < GROUP_COMMITS_MAX and size_bytes < GROUP_BYTES_MAX:
            commit = self._gathered.popleft()
            group.append(commit)
            size_bytes += commit.size_bytes
        self._under_way = bool(group)
        if group:
            changes = [change for commit in group for change in commit.changes]
            self._writer.submit(
                lambda: self._files.write(changes, group[-1].revision),
                lambda error: self._landed(group, error),
            )

    def _landed(self, group: Sequence[_Commit], error: BaseException | None) -> None:
        if error is not None:
            self._fail(group, error)
            return
        for commit in group:
            for change in commit.changes:
                pending = self._pending[change.key]
                pending.writes -= 1
                pending.durable = change.after
                if pending.writes == 0:
                    del self._pending[change.key]
                    self._keep(change.key, change.after)
            if commit.changes:
                self._revision = commit.revision
                events = [change.event(commit.revision) for change in commit.changes]
                self._hub.publish(commit.revision, events)
            if not commit.landed.done():
                commit.landed.set_result(None)
        self._hand_over()

    def _keep(self, key: str, record: Record | None) -> None:
        recent = self._recent
        recent.pop(key, None)
        if record is None or len(record.value) > RECENT_VALUE_BYTES_MAX:
            return
        recent[key] = record
        if len(recent) > RECENT_RECORDS_MAX:
            del recent[next(iter(recent))]

    def _fail(self, group: Sequence[_Commit], error: BaseException) -> None:
        """Refuses all further writes, since the state on disk is unknown."""
        path = self._files.path
        self._recent.clear()
        self._failure = MetadataError(f"metadata store {path} failed to write: {error}")
        log.error("metadata write failed", path=str(path), error=repr(error))
        for commit in (*group, *self._gathered):
            if not commit.landed.done():
                commit.landed.set_exception(self._failure)
                commit.landed.exception()
        self._gathered.clear()
        self._under_way = False

    async def grant_lease(self, ttl_s: float) -> Lease:
        self._check_open()
        return self._leases.grant(ttl_s)

    async def revoke_lease(self, lease_id: int) -> None:
        await self._leases.revoke_id(lease_id)

    def _expire(self) -> None:
        if self._failure is None and (keys := self._leases.take_due()):
            self._delete_all(keys)

    async def _drop(self, keys: Sequence[str]) -> None:
        if (landed := self._delete_all(keys)) is not None:
            await landed

    def _delete_all(self, keys: Sequence[str]) -> "asyncio.Future[None] | None":
        deletes = [Delete(key) for key in keys]
        changes = stage(deletes, self._newest, self._staged_revision + 1)
        return self._commit(changes) if changes else None

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed("the metadata store is closed")
        self._expire()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="metadata/close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._leases.close()
        if self._under_way:
            with suppress(MetadataError):
                await self._commit(())
        self._hub.close()
        await self._writer.call(self._files.close)
        self._writer.stop()


async def open_embedded(path: Path, clock: Clock) -> EmbeddedStore:
    """Opens or creates the store in the directory `path`.

    Raises StoreLocked if another process has it open, CorruptLog or CorruptRecord if its files are
    damaged.
    """
    writer = WriterThread("magnetar-metadata-writer")
    try:
        files = await writer.call(lambda: RocksFiles(path))
    except BaseException:
        writer.stop()
        raise
    return EmbeddedStore(files, writer, clock)

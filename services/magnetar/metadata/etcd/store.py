"""The metadata store on etcd; `magnetar.metadata.store` has the contract.

Revisions are etcd's: the store-wide counter, and mod_revision for a record. Every write is one etcd
transaction. The expected revisions are its compares, and its else-branch reads the actual ones.
Reads are linearizable (`reads`). Long lists are read in pages (PAGE_RECORDS) at the revision of the
first page.

After a missing answer, a write is repeated only if a first execution would make the second fail: it
replaces or deletes an expected revision. If the second one fails its compare, either attempt may
have won, so the outcome is unknown. For all other writes it is unknown at once.

A watch "from now" begins after the newest revision that this process has seen: it does not repeat
what was read before, and misses no change after the call.
"""

import asyncio
import builtins
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.etcd import leases
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import TXN
from magnetar.metadata.etcd.client import EtcdClient, pause_s
from magnetar.metadata.etcd.errors import AnswerTooLarge
from magnetar.metadata.etcd.keys import Keys, after
from magnetar.metadata.etcd.reads import Reads
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.etcd.watch_stream import WatchStream
from magnetar.metadata.operations import check_children_prefix, check_key, check_operations
from magnetar.metadata.store import (
    BadRevision,
    Check,
    Compacted,
    Delete,
    InvalidOperation,
    Lease,
    LeaseLost,
    MetadataUnavailable,
    Operation,
    Put,
    Record,
    StoreClosed,
    Watch,
)

PAGE_RECORDS: Final = 1_000
LIST_ATTEMPTS_MAX: Final = 3
"""Attempts of a list whose revision is compacted while it is read."""
CLOSE_WRITES_S: Final = 5.0
CLOSE_WATCHES_S: Final = 1.0
CLOSE_LEASES_S: Final = 2.0
CLOSE_POLL_S: Final = 0.005
RECENT_WRITES: Final = 1_024

log = get_logger("magnetar.metadata.etcd")


class EtcdStore:
    """A `MetadataStore` on etcd. Create it with `open_etcd`."""

    def __init__(self, client: EtcdClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._keys = Keys(client.settings.root)
        self._tasks = TaskSet("metadata-etcd")
        self._reads = Reads(client, self._tasks)
        self._watches = WatchStream(client, self._keys, self._tasks)
        self._leases: weakref.WeakValueDictionary[int, leases.EtcdLease] = (
            weakref.WeakValueDictionary()
        )
        self._writing = 0
        self._written = asyncio.Event()
        self._recent: deque[tuple[int, tuple[str, ...]]] = deque(maxlen=RECENT_WRITES)
        """Our last writes: `close` waits until watches have their events."""
        self._closing: asyncio.Task[None] | None = None

    @property
    def root(self) -> str:
        """The prefix of every key."""
        return self._client.settings.root

    @property
    def address(self) -> str:
        """The addresses of the members, as configured."""
        return str(self._client.endpoints)

    async def get(self, key: str) -> Record | None:
        self._check_open()
        check_key(key)
        answer = await self._range(pb.RangeRequest(key=self._keys.full(key)))
        return self._record(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str) -> list[Record]:
        self._check_open()
        first, end = self._keys.range_of(prefix)
        for _ in range(LIST_ATTEMPTS_MAX):
            with suppress(Compacted):
                return await self._pages(first, end)
        raise MetadataUnavailable(
            f"the list of {prefix!r} was overtaken by etcd's compaction {LIST_ATTEMPTS_MAX} times: "
            "keep more of the past (--auto-compaction-retention)"
        )

    async def _pages(self, first: bytes, end: bytes) -> "builtins.list[Record]":
        records: builtins.list[Record] = []
        limit, revision = PAGE_RECORDS, 0
        while True:
            request = pb.RangeRequest(key=first, range_end=end, limit=limit, revision=revision)
            try:
                answer = await self._range(request)
            except AnswerTooLarge:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            records += map(self._record, answer.kvs)
            if not answer.more or not answer.kvs:
                return records
            revision = revision or answer.header.revision
            first = answer.kvs[-1].key + b"\0"

    async def children(self, prefix: str) -> Sequence[str]:
        self._check_open()
        check_children_prefix(prefix)
        first, end = self._keys.range_of(prefix)
        skip = len(first)
        segments: set[bytes] = set()
        while True:
            answer = await self._range(
                pb.RangeRequest(key=first, range_end=end, limit=PAGE_RECORDS, keys_only=True)
            )
            segments.update(kv.key[skip:].partition(b"/")[0] for kv in answer.kvs)
            if not answer.more or not answer.kvs:
                return sorted(segment.decode() for segment in segments)
            last = answer.kvs[-1].key
            segment, slash, _ = last[skip:].partition(b"/")
            # Skips the rest of a folder with one request.
            first = after(last[:skip] + segment + b"/") if slash else last + b"\0"

    async def revision(self) -> int:
        self._check_open()
        return (await self._range(self._client.probe_request)).header.revision

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        return await self._reads.range(request)

    def _record(self, kv: pb.KeyValue) -> Record:
        return Record(self._keys.stripped(kv.key), kv.value, kv.mod_revision)

    async def put(
        self, key: str, value: bytes, *, expected: int | None = None, lease_id: int | None = None
    ) -> int:
        return (await self._write((Put(key, value, expected, lease_id),))).header.revision

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        answer = await self._write((Delete(key, expected),))
        return answer.responses[0].response_delete_range.deleted > 0

    async def transact(self, operations: Sequence[Operation]) -> int:
        return (await self._write(operations)).header.revision

    async def _write(self, operations: Sequence[Operation]) -> pb.TxnResponse:
        self._check_open()
        check_operations(operations)
        request = self._request(operations)
        self._writing += 1
        try:
            answer = await self._send(operations, request)
        except LeaseLost as error:
            raise self._lease_lost(operations) from error
        finally:
            self._writing -= 1
            if not self._writing:
                self._written.set()
        self._client.note(answer.header)
        self._recent.append((answer.header.revision, tuple(_changed(operations, answer))))
        return answer

    async def _send(
        self, operations: Sequence[Operation], request: pb.TxnRequest
    ) -> pb.TxnResponse:
        replaces = any(
            operation.expected and not isinstance(operation, Check) for operation in operations
        )
        reads = all(isinstance(operation, Check) for operation in operations)
        deadline = self._client.deadline()
        unknown: MetadataUnavailable | None = None
        tries = 0
        while True:
            tries += 1
            try:
                answer = await self._client.call(TXN, request, repeat=reads, deadline=deadline)
            except MetadataUnavailable as error:
                wait_s = pause_s(tries, self._client.random)
                if not replaces or asyncio.get_running_loop().time() + wait_s >= deadline:
                    raise unknown or error from None
                unknown = error
                await asyncio.sleep(wait_s)
                continue
            except StoreClosed as error:
                raise unknown or error from None
            if answer.succeeded:
                return answer
            if unknown is not None:
                raise unknown
            self._misfit(operations, answer)

    def _request(self, operations: Sequence[Operation]) -> pb.TxnRequest:
        request = pb.TxnRequest()
        for operation in operations:
            key = self._keys.full(operation.key)
            if operation.expected is not None:
                request.compare.add(
                    result=pb.Compare.EQUAL,
                    target=pb.Compare.MOD,
                    key=key,
                    mod_revision=operation.expected,
                )
                request.failure.add().request_range.CopyFrom(
                    pb.RangeRequest(key=key, keys_only=True)
                )
            match operation:
                case Put(_, value, _, lease_id):
                    if lease_id is not None and lease_id <= 0:
                        raise self._lease_lost(operations)
                    request.success.add().request_put.CopyFrom(
                        pb.PutRequest(key=key, value=bytes(value), lease=lease_id or 0)
                    )
                case Delete():
                    request.success.add().request_delete_range.key = key
                case Check():
                    pass
        return request

    def _misfit(self, operations: Sequence[Operation], answer: pb.TxnResponse) -> None:
        """Raises BadRevision for the first operation whose compare failed."""
        self._client.note(answer.header)
        expecting = (operation for operation in operations if operation.expected is not None)
        for operation, response in zip(expecting, answer.responses, strict=True):
            kvs = response.response_range.kvs
            actual = kvs[0].mod_revision if kvs else 0
            if operation.expected is not None and actual != operation.expected:
                raise BadRevision(operation.key, operation.expected, actual)
        raise MetadataError("etcd refused a transaction all of whose compares hold")

    def _lease_lost(self, operations: Sequence[Operation]) -> LeaseLost:
        """Marks the lease as ended if only one is named: etcd does not say which one it was."""
        named = {
            operation.lease_id
            for operation in operations
            if isinstance(operation, Put) and operation.lease_id is not None
        }
        if len(named) == 1 and (lease := self._leases.get(next(iter(named)))) is not None:
            lease.end()
        text = ", ".join(map(str, sorted(named)))
        return LeaseLost(f"lease {text} has expired or was revoked")

    async def grant_lease(self, ttl_s: float) -> Lease:
        self._check_open()
        lease = await leases.grant(self._client, self._clock, ttl_s)
        if self._closing is not None:
            lease.lost = True
            raise StoreClosed("the metadata store is closed")
        self._leases[lease.id] = lease
        return lease

    async def revoke_lease(self, lease_id: int) -> None:
        self._check_open()
        if (lease := self._leases.get(lease_id)) is not None:
            await lease.revoke()
        elif lease_id > 0:
            await leases.revoke(self._client, lease_id)

    def watch(self, prefix: str, *, from_revision: int | None = None) -> Watch:
        self._check_open()
        if from_revision is not None and from_revision < 1:
            raise InvalidOperation(f"no revision is {from_revision}")
        if from_revision is None:
            from_revision = self._client.revision + 1
        return self._watches.watch(prefix, from_revision)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed("the metadata store is closed")

    async def close(self) -> None:
        if self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(), name="metadata-etcd/close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WRITES_S):
                while self._writing:
                    self._written.clear()
                    await self._written.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WATCHES_S):
                await self._let_watches_catch_up()
        for watch in self._watches.all():
            watch.end(StoreClosed("the metadata store is closed"))
        await self._end_leases()
        self._client.closed = True
        await self._tasks.stop()
        await self._client.close()

    async def _let_watches_catch_up(self) -> None:
        """Waits until every watch has the events of our last writes, or is paused."""
        for watch in self._watches.all():
            last = max(
                (
                    revision
                    for revision, keys in self._recent
                    if any(key.startswith(watch.prefix) for key in keys)
                ),
                default=0,
            )
            # Once per process: an asyncio.Event would cost time at every change.
            while watch.awaits(last):  # noqa: ASYNC110
                await asyncio.sleep(CLOSE_POLL_S)

    async def _end_leases(self) -> None:
        held = [lease for lease in self._leases.values() if not lease.lost]
        for lease in held:
            lease.lost = True
        try:
            async with asyncio.timeout(CLOSE_LEASES_S):
                await asyncio.gather(*(lease.revoke_in_etcd() for lease in held))
        except (MetadataError, TimeoutError) as error:
            log.info("leases left to expire", error=str(error))


def _changed(operations: Sequence[Operation], answer: pb.TxnResponse) -> Iterator[str]:
    """Yields the keys that a transaction wrote or deleted."""
    writes = (operation for operation in operations if not isinstance(operation, Check))
    for operation, response in zip(writes, answer.responses, strict=True):
        if isinstance(operation, Put) or response.response_delete_range.deleted:
            yield operation.key


async def open_etcd(
    settings: EtcdSettings, clock: Clock, random: Random | None = None
) -> EtcdStore:
    """Connects. Raises MetadataUnavailable if no member answers, or an authentication error."""
    client = EtcdClient(settings, random or Random())
    store = EtcdStore(client, clock)
    try:
        await store.revision()
    except BaseException:
        await client.close()
        raise
    return store

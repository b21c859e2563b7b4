"""Watches in etcd: all watches of a store on one stream, which is reopened when it breaks.

A watch knows the first revision whose events it does not have completely. When the stream breaks,
it is reopened at the next member, and every watch resumes from that revision: each change is
delivered once and in order. A watch ends with Compacted only if etcd has compacted that revision.
An answer has whole revisions unless it is a fragment; then the events of its last revision are held
until the rest arrives. Progress notifications advance idle watches.

A watch queues at most WATCH_EVENTS_MAX events or WATCH_BYTES_MAX bytes (plus the revision that
exceeds the bound). Beyond that it is paused: the stream cancels it at etcd, and resumes it once the
watcher has read half of the queue. A slow watcher thus costs bounded memory, delays no other, and
fails only if etcd compacts the revisions it needs.

The stream holds weak references to watches, and cancels dropped ones every SWEEP_S.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Self

import grpc
import grpc.aio

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import WATCH
from magnetar.metadata.etcd.client import EtcdClient, pause_s
from magnetar.metadata.etcd.endpoints import Endpoint, Headers
from magnetar.metadata.etcd.errors import MetadataRefused, PassingFault, by_peer, translate
from magnetar.metadata.etcd.keys import Keys
from magnetar.metadata.store import Compacted, EventKind, Record, WatchEvent

WATCH_EVENTS_MAX: Final = 8192
WATCH_BYTES_MAX: Final = 32 << 20
SWEEP_S: Final = 5.0
DENIALS_MAX: Final = 2
"""etcd denies a watch if the stream's token is too old. A second denial is final."""

WatchCall = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]

log = get_logger("magnetar.metadata.etcd")


class EtcdWatch:
    """A `Watch` in etcd."""

    def __init__(self, stream: "WatchStream", serial: int, prefix: str, from_revision: int) -> None:
        self.serial = serial
        self.prefix = prefix
        self.next_revision = from_revision
        self.first, self.end_key = stream.keys.range_of(prefix)
        self.id = 0
        """The id at the server; 0 if the watch is not open there."""
        self.paused = False
        self.denials = 0
        self._stream = stream
        self._queue: deque[WatchEvent] = deque()
        self._queued_bytes = 0
        self._held: list[pb.Event] = []
        self._arrived = asyncio.Event()
        self._end: BaseException | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._queue:
            if self._end is not None:
                raise self._end
            self._arrived.clear()
            await self._arrived.wait()
        event = self._queue.popleft()
        self._queued_bytes -= len(event.record.value)
        if self.paused and not self._full(2):
            self.paused = False
            self._stream.want(self)
        return event

    @property
    def ended(self) -> bool:
        return self._end is not None

    def awaits(self, revision: int) -> bool:
        """Whether events up to `revision` are still expected without a read of the watcher."""
        return self.next_revision <= revision and not self.paused and not self.ended

    def _full(self, parts: int = 1) -> bool:
        return (
            len(self._queue) * parts >= WATCH_EVENTS_MAX
            or self._queued_bytes * parts >= WATCH_BYTES_MAX
        )

    def opened(self) -> None:
        """Resets the watch for a new stream, which sends held events again."""
        self.id = 0
        self._held.clear()

    def received(self, events: Sequence[pb.Event], *, fragment: bool) -> bool:
        """Queues events in order. Returns False if the queue is full and the watch is paused."""
        if self._held:
            events = [*self._held, *events]
            self._held = []
        if fragment and events:
            last = events[-1].kv.mod_revision
            cut = len(events)
            while cut and events[cut - 1].kv.mod_revision == last:
                cut -= 1
            self._held = list(events[cut:])
            events = events[:cut]
        revision = 0
        for event in events:
            kv = event.kv
            if kv.mod_revision < self.next_revision:
                continue
            if kv.mod_revision != revision:
                if self._full():
                    self._pause_at(kv.mod_revision)
                    return False
                revision = kv.mod_revision
            self._queue.append(self._stream.event_of(event))
            self._queued_bytes += len(kv.value)
        if revision:
            self.next_revision = revision + 1
            self._arrived.set()
        return True

    def _pause_at(self, revision: int) -> None:
        self.next_revision = revision
        self.paused = True
        self._held.clear()
        self._arrived.set()

    def progressed(self, revision: int) -> None:
        """Records that all events up to `revision` have arrived."""
        if not self._held:
            self.next_revision = max(self.next_revision, revision + 1)

    def end(self, reason: BaseException) -> None:
        """Makes `anext` raise `reason` after the queued events."""
        if self._end is None:
            self._end = reason
            self._stream.forget(self)
        self._arrived.set()

    def close(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.end(StopAsyncIteration())


class _StreamBroken(Exception):
    """The stream must be reopened, for the reason in the text."""


class WatchStream:
    """The stream that carries all watches of a store."""

    def __init__(self, client: EtcdClient, keys: Keys, tasks: TaskSet) -> None:
        self.keys = keys
        self._client = client
        self._tasks = tasks
        self._watches: weakref.WeakValueDictionary[int, EtcdWatch] = weakref.WeakValueDictionary()
        self._serial = count(1)
        self._by_id: dict[int, weakref.ref[EtcdWatch]] = {}
        self._last_id = 0
        self._creating: deque[int] = deque()
        """Ids of creations in flight; their answers arrive in this order."""
        self._outgoing: deque[Callable[[], pb.WatchRequest | None]] = deque()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._failures = 0

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, prefix: str, from_revision: int) -> EtcdWatch:
        watch = EtcdWatch(self, next(self._serial), prefix, from_revision)
        self._watches[watch.serial] = watch
        self.want(watch)
        if self._running is None or self._running.done():
            self._running = self._tasks.start(self._run(), "watch")
        return watch

    def want(self, watch: EtcdWatch) -> None:
        """Opens the watch at the server, from its next revision."""
        reference = weakref.ref(watch)
        self._send(lambda: self._creation(reference()))

    def forget(self, watch: EtcdWatch) -> None:
        """Removes a watch that has ended."""
        self._watches.pop(watch.serial, None)
        self._stop(watch)

    def event_of(self, event: pb.Event) -> WatchEvent:
        kv = event.kv
        key = self.keys.stripped(kv.key)
        if event.type == pb.Event.DELETE:
            return WatchEvent(EventKind.DELETE, Record(key, b"", kv.mod_revision))
        return WatchEvent(EventKind.PUT, Record(key, kv.value, kv.mod_revision))

    def all(self) -> list[EtcdWatch]:
        """Returns the living watches that have not ended."""
        return list(self._watches.values())

    def _send(self, request: Callable[[], pb.WatchRequest | None]) -> None:
        self._outgoing.append(request)
        self._wake.set()

    def _creation(self, watch: EtcdWatch | None) -> pb.WatchRequest | None:
        if watch is None or watch.ended or watch.paused or watch.id:
            return None
        self._last_id += 1
        watch.id = self._last_id
        self._by_id[watch.id] = weakref.ref(watch)
        self._creating.append(watch.id)
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=watch.first,
                range_end=watch.end_key,
                start_revision=watch.next_revision,
                progress_notify=True,
                watch_id=watch.id,
                fragment=True,
            )
        )

    def _stop(self, watch: EtcdWatch) -> None:
        if watch.id:
            self._cancel(watch.id)
            watch.id = 0

    def _cancel(self, watch_id: int) -> None:
        if self._by_id.pop(watch_id, None) is not None:
            request = pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id))
            self._send(lambda: request)

    async def _write(self, call: WatchCall) -> None:
        """Sends queued requests until the stream ends, and cancels dropped watches."""
        while True:
            while self._outgoing:
                request = self._outgoing.popleft()()
                if request is not None:
                    try:
                        await call.write(request)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        return
            self._wake.clear()
            try:
                async with asyncio.timeout(SWEEP_S):
                    await self._wake.wait()
            except TimeoutError:
                for watch_id in [
                    key for key, reference in self._by_id.items() if reference() is None
                ]:
                    self._cancel(watch_id)

    async def _run(self) -> None:
        while True:
            endpoint = self._client.endpoints.current
            try:
                headers = await self._client.token.headers(
                    endpoint, self._client.settings.attempt_timeout_s
                )
                await self._follow(endpoint, headers)
            except (PassingFault, _StreamBroken) as fault:
                reason = str(fault)
            except MetadataRefused as error:
                reason = error.message
                for watch in self.all():
                    watch.end(error)
            except MetadataError as error:
                reason = error.message
            except Exception as error:
                # A bug. Without a retry, all watches of this process would stall.
                log.exception("watches failed", endpoint=endpoint.address)
                reason = repr(error)
            self._failures += 1
            if self._failures == 1:
                log.warning("watches interrupted", endpoint=endpoint.address, reason=reason)
            self._client.endpoints.failed(endpoint)
            await asyncio.sleep(pause_s(self._failures, self._client.random))

    async def _follow(self, endpoint: Endpoint, headers: Headers) -> None:
        """Follows one stream until it breaks."""
        self._by_id.clear()
        self._creating.clear()
        self._outgoing.clear()
        for watch in self.all():
            watch.opened()
            self.want(watch)
        call = endpoint.stream(WATCH, headers)
        writer = self._tasks.start(self._write(call), "watch-write")
        try:
            while True:
                response = await call.read()
                if not isinstance(response, pb.WatchResponse):
                    raise _StreamBroken("etcd ended the stream")
                self._received(response, headers)
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        except asyncio.CancelledError:
            if by_peer():
                raise _StreamBroken("the connection was closed") from None
            raise
        finally:
            if writer is not None:
                writer.cancel()
            call.cancel()

    def _received(self, response: pb.WatchResponse, headers: Headers) -> None:
        if self._failures:
            log.info("watches resumed", failures=self._failures)
            self._failures = 0
        self._client.note(response.header)
        watch_id = response.watch_id
        if response.created and self._creating:
            # A refused creation may come without its id.
            watch_id = self._creating.popleft()
        reference = self._by_id.get(watch_id)
        watch = reference() if reference is not None else None
        if watch is None:
            self._cancel(watch_id)
        elif response.canceled or response.compact_revision:
            self._canceled(watch, response, headers)
        elif response.events:
            if not watch.received(response.events, fragment=response.fragment):
                self._stop(watch)
        elif response.created:
            watch.denials = 0
        else:
            watch.progressed(response.header.revision)

    def _canceled(self, watch: EtcdWatch, response: pb.WatchResponse, headers: Headers) -> None:
        self._by_id.pop(watch.id, None)
        watch.id = 0
        if response.compact_revision:
            watch.end(
                Compacted(
                    f"watch of {watch.prefix!r}: revision {watch.next_revision} is compacted; "
                    f"watch from {response.compact_revision}"
                )
            )
            return
        watch.denials += 1
        if watch.denials >= DENIALS_MAX or not self._client.settings.username:
            watch.end(
                MetadataRefused(
                    f"etcd ended the watch of {watch.prefix!r}: {response.cancel_reason}"
                )
            )
            return
        self._client.token.refused(headers)
        raise _StreamBroken(response.cancel_reason)

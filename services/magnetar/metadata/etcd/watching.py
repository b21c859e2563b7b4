"""Watches in etcd: all of a store on one stream, which is opened again when it breaks.

A watch knows the first revision whose events it has not got whole. When the stream breaks, it is
opened at the next member and every watch goes on from that revision, so each change is seen once
and in order; only where etcd has compacted that revision does a watch end with Compacted. An
answer holds whole revisions, unless it says that it is a fragment: then the events of its last
revision are held back until the rest has come. Progress notifications move idle watches on.

A watch holds at most WATCH_EVENTS_MAX events or WATCH_BYTES_MAX bytes (and the revision that passed
the bound). Beyond that it rests: etcd is told to stop, and when the watcher has read half, it goes
on from where it was. So a slow watcher costs bounded memory, holds up nobody, and loses only what
is compacted meanwhile.

The stream refers to watches weakly; those that nobody refers to are swept every SWEEP_S.
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
from magnetar.metadata.etcd.client import EtcdClient, backoff_s
from magnetar.metadata.etcd.endpoints import Endpoint, Headers
from magnetar.metadata.etcd.errors import MetadataRefused, PassingFault, by_peer, translate
from magnetar.metadata.etcd.keys import Keys
from magnetar.metadata.store import Compacted, EventKind, Record, WatchEvent

WATCH_EVENTS_MAX: Final = 8192
WATCH_BYTES_MAX: Final = 32 << 20
SWEEP_S: Final = 5.0
DENIALS_MAX: Final = 2
"""A watch is denied where the stream's token is too old: a second time, it is final."""

WatchCall = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]

log = get_logger("magnetar.metadata.etcd")


class EtcdWatch:
    """See `store.Watch`."""

    def __init__(self, stream: "WatchStream", serial: int, prefix: str, from_revision: int) -> None:
        self.serial = serial
        self.prefix = prefix
        self.next_revision = from_revision
        self.first, self.end_key = stream.keys.range_of(prefix)
        self.id = 0
        """Of the watch at the server; 0 while there is none."""
        self.resting = False
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
        if self.resting and not self._full(2):
            self.resting = False
            self._stream.want(self)
        return event

    @property
    def ended(self) -> bool:
        return self._end is not None

    def awaits(self, revision: int) -> bool:
        """Whether events up to `revision` may still come by themselves."""
        return self.next_revision <= revision and not self.resting and not self.ended

    def _full(self, parts: int = 1) -> bool:
        return (
            len(self._queue) * parts >= WATCH_EVENTS_MAX
            or self._queued_bytes * parts >= WATCH_BYTES_MAX
        )

    def opened(self) -> None:
        """The stream is a new one: what was held back will come again."""
        self.id = 0
        self._held.clear()

    def received(self, events: Sequence[pb.Event], *, fragment: bool) -> bool:
        """Takes events in order; False where it is full and must rest."""
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
                    self._rest_from(kv.mod_revision)
                    return False
                revision = kv.mod_revision
            self._queue.append(self._stream.event_of(event))
            self._queued_bytes += len(kv.value)
        if revision:
            self.next_revision = revision + 1
            self._arrived.set()
        return True

    def _rest_from(self, revision: int) -> None:
        self.next_revision = revision
        self.resting = True
        self._held.clear()
        self._arrived.set()

    def progressed(self, revision: int) -> None:
        """All events up to `revision` have come."""
        if not self._held:
            self.next_revision = max(self.next_revision, revision + 1)

    def end(self, reason: BaseException) -> None:
        """After what is queued, `anext` raises `reason`."""
        if self._end is None:
            self._end = reason
            self._stream.forget(self)
        self._arrived.set()

    def close(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.end(StopAsyncIteration())


class _StreamBroken(Exception):
    """The stream has to be opened again; the text says why."""


class WatchStream:
    """See the module's text."""

    def __init__(self, client: EtcdClient, keys: Keys, tasks: TaskSet) -> None:
        self.keys = keys
        self._client = client
        self._tasks = tasks
        self._watches: weakref.WeakValueDictionary[int, EtcdWatch] = weakref.WeakValueDictionary()
        self._serial = count(1)
        self._by_id: dict[int, weakref.ref[EtcdWatch]] = {}
        self._last_id = 0
        self._creating: deque[int] = deque()
        """Created at the server, not answered yet: answers come in this order."""
        self._outgoing: deque[Callable[[], pb.WatchRequest | None]] = deque()
        self._poke = asyncio.Event()
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
        """Has the watch opened at the server, from its next revision."""
        found = weakref.ref(watch)
        self._send(lambda: self._creation(found()))

    def forget(self, watch: EtcdWatch) -> None:
        """Gives a watch that has ended no more events."""
        self._watches.pop(watch.serial, None)
        self._stop(watch)

    def event_of(self, event: pb.Event) -> WatchEvent:
        kv = event.kv
        key = self.keys.stripped(kv.key)
        if event.type == pb.Event.DELETE:
            return WatchEvent(EventKind.DELETE, Record(key, b"", kv.mod_revision))
        return WatchEvent(EventKind.PUT, Record(key, kv.value, kv.mod_revision))

    def all(self) -> list[EtcdWatch]:
        """The watches that somebody refers to and that have not ended."""
        return list(self._watches.values())

    # What goes to the server.

    def _send(self, request: Callable[[], pb.WatchRequest | None]) -> None:
        self._outgoing.append(request)
        self._poke.set()

    def _creation(self, watch: EtcdWatch | None) -> pb.WatchRequest | None:
        if watch is None or watch.ended or watch.resting or watch.id:
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
        """Sends what is asked for; ends when the stream does, or when nobody watches any more."""
        while True:
            while self._outgoing:
                request = self._outgoing.popleft()()
                if request is not None:
                    try:
                        await call.write(request)
                    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        return
            self._poke.clear()
            try:
                async with asyncio.timeout(SWEEP_S):
                    await self._poke.wait()
            except TimeoutError:
                for watch_id in [key for key, found in self._by_id.items() if found() is None]:
                    self._cancel(watch_id)

    # What comes from it.

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
                # A bug: without a retry, no watch of this process would see anything any more.
                log.exception("watches failed", endpoint=endpoint.address)
                reason = repr(error)
            self._failures += 1
            if self._failures == 1:
                log.warning("watches interrupted", endpoint=endpoint.address, reason=reason)
            self._client.endpoints.failed(endpoint)
            await asyncio.sleep(backoff_s(self._failures, self._client.random))

    async def _follow(self, endpoint: Endpoint, headers: Headers) -> None:
        """One stream, until it breaks."""
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
            log.info("watches go on", failures=self._failures)
            self._failures = 0
        self._client.note(response.header)
        watch_id = response.watch_id
        if response.created and self._creating:
            # A refused creation may come without its id.
            watch_id = self._creating.popleft()
        found = self._by_id.get(watch_id)
        watch = found() if found is not None else None
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

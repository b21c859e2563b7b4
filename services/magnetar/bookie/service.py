"""A bookie of a cluster: its disks, its server, and its registration in the metadata store.

The bookie registers `/bookies/{id}` under the lease of the process's session, so that the
registration is deleted when the process ends. While the session is suspended, the bookie refuses
adds, because others may consider it dead, and serves reads. It accepts adds again once it is
registered again. It refreshes the registration when its content changes (writable, free disk), at
a bounded rate, and verifies it periodically, since it may have been deleted by hand.

Only one living bookie has an id. If another incarnation is registered under its id, a bookie waits
for one lease time at start and then fails. A registration of its own incarnation is from its former
process, because the disks are locked; the bookie takes it over at once.

The bookie periodically compares its ledgers with the metadata store (`upkeep.ledger_garbage`).
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from magnetar import __version__
from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.index.store import RocksIndexStore
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.net.access import OPEN, Access
from magnetar.bookie.net.messages_v1 import State
from magnetar.bookie.net.server import BookieServer
from magnetar.bookie.net.settings import ServerSettings
from magnetar.bookie.parts import OpenIndex
from magnetar.bookie.registration import (
    RACK_DEFAULT,
    BookieRegistration,
    decode,
    known_key,
    registration_key,
)
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.upkeep.ledger_garbage import LedgerGarbage, check_ids
from magnetar.core.clock import Clock
from magnetar.core.errors import Conflict, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.disk.files import Files
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import ABSENT, MetadataStore, Record, StoreClosed
from magnetar.security.tls.transport import Contexts

log = get_logger("magnetar.bookie.service")

METADATA_TIMEOUT_S: Final = 10.0
NAME_POLL_S: Final = 0.25
DISK_RATIO_STEP: Final = 0.01
"""The change of the disk's free share that is worth a write to the metadata store."""


@dataclass(frozen=True, slots=True)
class BookieServiceSettings:
    """The bookie's advertised identity and its intervals, in seconds."""

    bookie_id: str
    advertised_host: str
    http_port: int = 0
    rack: str = RACK_DEFAULT
    cluster: str = ""
    refresh_s: float = 1.0
    """Interval of the check whether the bookie became writable or read-only."""
    disk_refresh_s: float = 30.0
    verify_s: float = 10.0
    """How often the registration is read to verify it."""
    garbage_interval_s: float = 900.0
    garbage_timeout_s: float = 600.0


class BookieService:
    """Serves and registers a bookie. `start` before the session starts, `stop` before it stops."""

    def __init__(
        self,
        bookie: LocalBookie,
        store: MetadataStore,
        session: MetadataSession,
        clock: Clock,
        settings: BookieServiceSettings,
        *,
        server_settings: ServerSettings | None = None,
        random: Random | None = None,
        tls: Contexts | None = None,
        plain: bool = True,
        access: Access = OPEN,
    ) -> None:
        """Owns the bookie. The session must not be started yet."""
        self.bookie = bookie
        self._store = store
        self._session = session
        self._clock = clock
        self._settings = settings
        self._random = random or Random()
        self._tasks = TaskSet(f"bookie {settings.bookie_id}")
        self._key = registration_key(settings.bookie_id)
        self._registered: BookieRegistration | None = None
        self._revision = ABSENT
        self._verified = False
        """Whether the registration is known to be the last one that this bookie wrote."""
        self._stopping = False
        self._disk_reported_at = 0.0
        self._started_ms = clock.now_ms()
        self.garbage = LedgerGarbage(bookie, store, lambda: session.valid)
        self.server = BookieServer(
            bookie,
            cluster=settings.cluster,
            pressure=bookie,
            state=self.state,
            settings=server_settings,
            tls=tls,
            plain=plain,
            access=access,
        )
        self.server.add_refusal = BookieReadOnly(f"{self} is not registered yet")
        session.add_listener(self)

    @classmethod
    async def open(
        cls,
        data_dir: Path,
        store: MetadataStore,
        session: MetadataSession,
        clock: Clock,
        settings: BookieServiceSettings,
        *,
        bookie_settings: BookieSettings | None = None,
        server_settings: ServerSettings | None = None,
        files: Files | None = None,
        open_index: OpenIndex = RocksIndexStore,
        threads: bool = True,
        random: Random | None = None,
        tls: Contexts | None = None,
        plain: bool = True,
        access: Access = OPEN,
    ) -> "BookieService":
        """Opens the disks, formatting them if they are empty; raises DataDirError."""
        bookie = await LocalBookie.open(
            data_dir,
            settings.bookie_id,
            settings=bookie_settings or BookieSettings(),
            clock=clock,
            files=files,
            open_index=open_index,
            threads=threads,
        )
        return cls(
            bookie,
            store,
            session,
            clock,
            settings,
            server_settings=server_settings,
            random=random,
            tls=tls,
            plain=plain,
            access=access,
        )

    def __str__(self) -> str:
        return f"bookie {self._settings.bookie_id}"

    @property
    def registered(self) -> bool:
        """Whether the bookie is registered under a valid lease and may accept adds."""
        return self.server.add_refusal is None

    def state(self) -> State:
        """Returns the state that the server reports to clients."""
        stats = self.bookie.stats()
        refusal = self.server.add_refusal
        reason = str(refusal) if refusal is not None else stats.read_only_reason
        return State(
            stats.disk_bytes_total, stats.disk_bytes_free, stats.journal_pending_bytes, reason
        )

    async def start(
        self, listener: socket.socket | None = None, *, host: str = "", port: int = 0
    ) -> None:
        """Waits until the id is free, and listens. Raises Conflict if another bookie keeps it, and
        MetadataError if the metadata store is older than the disks.

        The bookie accepts adds once the session is established.
        """
        await self._wait_for_name()
        async with asyncio.timeout(METADATA_TIMEOUT_S):
            await check_ids(self.bookie, self._store)
        await self.server.start(listener, host=host, port=port)

    async def stop(self) -> None:
        """Deregisters, completes pending requests, and closes the disks."""
        self._stopping = True
        await self._tasks.stop()
        self.server.add_refusal = BookieReadOnly(f"{self} is stopping")
        if self._registered is not None and self._session.valid:
            with contextlib.suppress(MetadataError, TimeoutError):
                async with asyncio.timeout(METADATA_TIMEOUT_S):
                    await self._store.delete(self._key, expected=self._revision)
        self._registered = None
        await self.server.stop()
        await self.bookie.close()

    def suspended(self) -> None:
        """See SessionListener."""
        self.server.add_refusal = BookieReadOnly(
            f"{self} cannot renew its lease in the metadata store: no adds until it can"
        )

    async def established(self, *, renewed: bool) -> None:
        """See SessionListener."""
        if self._stopping:
            return
        if renewed:
            self._revision = ABSENT
        await self._register()
        if not len(self._tasks):
            self._tasks.start(self._refresh(), "refresh registration")
            self._tasks.start(self._collect(), "compare ledgers")

    async def _wait_for_name(self) -> None:
        until = self._clock.monotonic() + self._session.ttl_s + 2 * NAME_POLL_S
        while True:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                record = await self._store.get(self._key)
            other = self._other_holder(record)
            if other is None:
                return
            if self._clock.monotonic() >= until:
                raise self._conflict(other)
            await asyncio.sleep(NAME_POLL_S)

    def _other_holder(self, record: Record | None) -> BookieRegistration | None:
        """Returns another bookie's registration under this id: other disks, or a copy of ours."""
        if record is None:
            return None
        registration = decode(self._key, record.value)
        former = registration.started_ms <= self._started_ms
        return None if former and registration.identity == self.bookie.identity else registration

    def _conflict(self, other: BookieRegistration) -> Conflict:
        return Conflict(
            f"another living bookie is called {self._settings.bookie_id}: incarnation "
            f"{other.incarnation} at {other.host}:{other.port}; this bookie is incarnation "
            f"{self.bookie.identity.incarnation}"
        )

    async def _register(self) -> None:
        """Writes the registration if it is missing or not ours, then accepts adds."""
        session = self._session
        record = await self._store.get(self._key)
        if (other := self._other_holder(record)) is not None:
            self.server.add_refusal = BookieReadOnly(str(self._conflict(other)))
            raise self._conflict(other)
        current = ABSENT if record is None else record.revision
        if current == ABSENT or current != self._revision:
            await self._record_disks()
            registration = self._registration()
            self._revision = await self._store.put(
                self._key, encode(registration), expected=current, lease_id=session.lease_id
            )
            self._registered = registration
            self._disk_reported_at = self._clock.monotonic()
            log.info("registered", bookie=str(self), host=registration.host, port=registration.port)
        self._verified = True
        if session.valid and not self._stopping:
            self.server.add_refusal = None

    async def _record_disks(self) -> None:
        """Writes the permanent record of these disks, with their latest address."""
        key = known_key(self.bookie.identity)
        record = await self._store.get(key)
        value = encode(
            msgspec.structs.replace(self._registration(), disk_bytes_free=0, started_ms=0)
        )
        if record is None or record.value != value:
            await self._store.put(
                key, value, expected=ABSENT if record is None else record.revision
            )

    def _registration(self) -> BookieRegistration:
        settings = self._settings
        stats = self.bookie.stats()
        return BookieRegistration(
            *self.bookie.identity,
            host=settings.advertised_host,
            port=self.server.port,
            http_port=settings.http_port,
            rack=settings.rack,
            writable=stats.writable,
            read_only_reason=stats.read_only_reason,
            version=__version__,
            started_ms=self._started_ms,
            disk_bytes_total=stats.disk_bytes_total,
            disk_bytes_free=stats.disk_bytes_free,
        )

    async def _refresh(self) -> None:
        """Refreshes and verifies the registration until the store is closed."""
        verified_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._settings.refresh_s)
            if not self._session.valid:
                continue
            now = self._clock.monotonic()
            try:
                async with asyncio.timeout(METADATA_TIMEOUT_S):
                    if not self._verified or now - verified_at >= self._settings.verify_s:
                        verified_at = now
                        await self._register()
                    elif self._outdated(now):
                        await self._update(now)
            except StoreClosed:
                return
            except (MetadataError, TimeoutError) as error:
                # Another client wrote it, or our write may still land: read before the next write.
                self._verified = False
                log.warning("registration not refreshed", bookie=str(self), error=str(error))
            except Exception:
                # Unexpected. If the task ended, the registration would stay outdated forever.
                self._verified = False
                log.exception("registration not refreshed", bookie=str(self))

    def _outdated(self, now: float) -> bool:
        registered, stats = self._registered, self.bookie.stats()
        if registered is None or registered.writable != stats.writable:
            return True
        if (
            now - self._disk_reported_at < self._settings.disk_refresh_s
            or not stats.disk_bytes_total
        ):
            return False
        change = abs(stats.disk_bytes_free - registered.disk_bytes_free)
        return change / stats.disk_bytes_total >= DISK_RATIO_STEP

    async def _update(self, now: float) -> None:
        registration = self._registration()
        self._revision = await self._store.put(
            self._key,
            encode(registration),
            expected=self._revision,
            lease_id=self._session.lease_id,
        )
        self._registered = registration
        self._disk_reported_at = now

    async def _collect(self) -> None:
        while True:
            interval_s = self._settings.garbage_interval_s
            await asyncio.sleep(interval_s * self._random.uniform(0.5, 1.0))
            if not self._session.valid:
                continue
            try:
                async with asyncio.timeout(self._settings.garbage_timeout_s):
                    await self.garbage.compare()
                await self.garbage.collect_former()
            except StoreClosed:
                return
            except (MetadataError, BookieError, TimeoutError, OSError) as error:
                log.warning("ledgers not compared", bookie=str(self), error=str(error))
            except Exception:
                # Unexpected. If the task ended, deleted ledgers would fill the disk.
                log.exception("ledgers not compared", bookie=str(self))

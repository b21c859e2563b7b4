"""The bookies of a cluster, as their registrations in the metadata store tell.

Everything below `/bookies` is followed by one list and watch (`metadata.following`): while the
store is away, what was living stays living. For each incarnation there is one RemoteBookie, and its
connection. When a registration goes, the listeners are told at once, and the RemoteBookie is kept
for `keep_s`, as reads may still work and as the bookie may be back.

Quarantine: a bookie whose requests failed in `errors_max` different seconds within
`errors_window_s` is shunned for `quarantine_s`, or `quarantine_late_s` where the last of them were
late answers. It is only marked: placement uses it where there is no other. A bookie that was
started anew begins with a clean slate.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieLate,
    BookieReadOnly,
    EntryCorrupt,
    EntryUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
)
from magnetar.bookie.net.client import RemoteBookie, RemoteSettings
from magnetar.bookie.registration import (
    BOOKIES_PREFIX,
    DRAINING_PREFIX,
    BookieRegistration,
    decode,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.ledger.bookies import BookieInfo, BookieLost
from magnetar.metadata.following import Following
from magnetar.metadata.store import MetadataStore, MetadataUnavailable, Record

log = get_logger("magnetar.ledger.bookies")

WATCHED_PREFIX: Final = "/bookies"
"""Registrations and draining marks: one list and one watch for both."""

METADATA_TIMEOUT_S: Final = 15.0
"""To the first list, through the retries of the follower."""

ERROR_SPACING_S: Final = 1.0
"""Errors that come together, as those of a broken connection do, count as one."""

NO_FAILURES: Final = (LedgerFenced, NoSuchEntry, NoSuchLedger, EntryUnknown, EntryCorrupt)
"""Answers of a bookie that works."""

Connect = Callable[[BookieRegistration], Bookie]


@dataclass(frozen=True, slots=True)
class RegisteredSettings:
    """When a bookie is shunned, and for how long it is remembered; times in seconds."""

    errors_max: int = 5
    errors_window_s: float = 60.0
    quarantine_s: float = 1800.0
    quarantine_late_s: float = 120.0
    keep_s: float = 600.0


@dataclass(slots=True)
class _Known:
    """One incarnation: its client, and what is held against it."""

    registration: BookieRegistration
    bookie: Bookie
    errors: deque[float] = field(default_factory=deque)
    shunned_until: float = float("-inf")
    leaving: asyncio.TimerHandle | None = None
    """Set once its registration is gone."""


class RegisteredBookies:
    """See `ledger.bookies.BookieSet` and the module's text. `start`, then `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        cluster: str = "",
        client: str = "",
        settings: RegisteredSettings | None = None,
        remote: RemoteSettings | None = None,
        random: Random | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cluster, self._client = cluster, client
        self._settings = settings or RegisteredSettings()
        self._remote = remote or RemoteSettings()
        self._random = random or Random()
        self._connect = connect or self._connect_remote
        self._tasks = TaskSet("registered bookies")
        self._following = Following(store, WATCHED_PREFIX, self._changed)
        self._draining: set[str] = set()
        self._known: dict[BookieIdentity, _Known] = {}
        self._at: dict[str, BookieIdentity] = {}
        """Which incarnation is registered under which key."""
        self._listeners: list[BookieLost] = []

    async def start(self) -> None:
        """Lists the bookies, and follows them from then on; raises MetadataError."""
        self._tasks.start(self._following.run(), "follow")
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                await self._following.ready()
        except TimeoutError:
            raise MetadataUnavailable("the bookies could not be listed in time") from None

    async def stop(self) -> None:
        """Ends the connections."""
        await self._tasks.stop()
        known, self._known = self._known, {}
        self._at.clear()
        for each in known.values():
            if each.leaving is not None:
                each.leaving.cancel()
        await asyncio.gather(*(each.bookie.close() for each in known.values()))

    # -- what is asked ---------------------------------------------------------------------

    def get(self, identity: BookieIdentity) -> Bookie | None:
        """See `BookieSet.get`."""
        known = self._known.get(identity)
        return None if known is None else known.bookie

    def living(self) -> Sequence[BookieInfo]:
        """See `BookieSet.living`."""
        now = self._clock.monotonic()
        return [self._info(self._known[identity], now) for identity in sorted(self._at.values())]

    def registrations(self) -> Sequence[BookieRegistration]:
        """What the living bookies say of themselves, ordered by id."""
        return [self._known[identity].registration for identity in sorted(self._at.values())]

    def _info(self, known: _Known, now: float) -> BookieInfo:
        registration = known.registration
        total = registration.disk_bytes_total
        return BookieInfo(
            registration.identity,
            registration.rack,
            registration.writable and known.bookie.writable,
            draining=registration.bookie_id in self._draining,
            quarantined=now < known.shunned_until,
            disk_free_ratio=registration.disk_bytes_free / total if total else 1.0,
        )

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """See `BookieSet.failed`. Refusals of a bookie that works do not count."""
        known = self._known.get(identity)
        if known is None or isinstance(error, (BookieReadOnly, *NO_FAILURES)):
            return
        settings = self._settings
        now = self._clock.monotonic()
        errors = known.errors
        if errors and now - errors[-1] < ERROR_SPACING_S:
            return
        while errors and now - errors[0] > settings.errors_window_s:
            errors.popleft()
        errors.append(now)
        if len(errors) < settings.errors_max:
            return
        errors.clear()
        late = isinstance(error, BookieLate)
        shunned_s = settings.quarantine_late_s if late else settings.quarantine_s
        known.shunned_until = now + shunned_s
        log.warning("bookie in quarantine", bookie=str(identity), s=shunned_s, error=str(error))

    def add_listener(self, on_lost: BookieLost) -> None:
        """See `BookieSet.add_listener`."""
        self._listeners.append(on_lost)

    def remove_listener(self, on_lost: BookieLost) -> None:
        """See `BookieSet.remove_listener`."""
        self._listeners.remove(on_lost)

    # -- following the registrations -------------------------------------------------------

    def _changed(self, key: str, record: Record | None) -> None:
        """What is registered, or marked as draining, or no more so."""
        if key.startswith(DRAINING_PREFIX):
            bookie_id = key.removeprefix(DRAINING_PREFIX)
            if record is not None:
                self._draining.add(bookie_id)
            else:
                self._draining.discard(bookie_id)
        elif key.startswith(BOOKIES_PREFIX):
            if record is not None:
                self._put(record)
            else:
                self._left(key)

    def _put(self, record: Record) -> None:
        key = record.key
        try:
            registration = decode(key, record.value)
        except MetadataError as error:
            log.error("registration ignored", error=str(error))
            return
        identity = registration.identity
        known = self._known.get(identity)
        if known is not None and _moved(known.registration, registration):
            self._drop(identity)
            known = None
        if known is None:
            known = self._known[identity] = _Known(registration, self._connect(registration))
        elif known.registration.started_ms != registration.started_ms:
            known.errors.clear()
            known.shunned_until = float("-inf")
        if isinstance(known.bookie, RemoteBookie):
            known.bookie.writable = registration.writable
        known.registration = registration
        if known.leaving is not None:
            known.leaving.cancel()
            known.leaving = None
        before = self._at.get(key)
        self._at[key] = identity
        if before is not None and before != identity:
            self._gone(before)

    def _left(self, key: str) -> None:
        identity = self._at.pop(key, None)
        if identity is not None:
            self._gone(identity)

    def _gone(self, identity: BookieIdentity) -> None:
        """An incarnation is no longer registered."""
        known = self._known.get(identity)
        if known is not None and known.leaving is None:
            loop = asyncio.get_running_loop()
            known.leaving = loop.call_later(self._settings.keep_s, self._drop, identity)
        log.info("bookie left", bookie=str(identity))
        for on_lost in tuple(self._listeners):
            try:
                on_lost(identity)
            except Exception:
                log.exception("a listener failed")

    def _drop(self, identity: BookieIdentity) -> None:
        """Forgets the client of an incarnation."""
        known = self._known.pop(identity, None)
        if known is not None:
            if known.leaving is not None:
                known.leaving.cancel()
            self._tasks.start(known.bookie.close(), "close")

    def _connect_remote(self, registration: BookieRegistration) -> Bookie:
        return RemoteBookie(
            registration.identity,
            registration.host,
            registration.port,
            cluster=self._cluster,
            client=self._client,
            settings=self._remote,
            random=self._random,
        )


def _moved(before: BookieRegistration, after: BookieRegistration) -> bool:
    return (before.host, before.port) != (after.host, after.port)

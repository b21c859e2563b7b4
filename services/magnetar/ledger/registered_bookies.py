"""The bookies of a cluster, by their registrations in the metadata store.

One list and watch follows everything below `/bookies` (`metadata.follower`), the racks and groups
that an administrator has set included; while the store is
away, the set of living bookies does not change. Each incarnation has one RemoteBookie with its
connection. When a registration is deleted, listeners are notified at once. The RemoteBookie is kept
for `keep_s`, because reads may still work and the bookie may return.

Quarantine: if a bookie's requests fail in `errors_max` different seconds within `errors_window_s`,
it is avoided for `quarantine_s`, or for `quarantine_late_s` if the last failure was a late answer.
Quarantine is only a mark: placement uses such a bookie if there is no other. A restarted bookie
starts without failures.
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
)
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.settings import RemoteSettings
from magnetar.bookie.racks import GROUP_DEFAULT, RACKS_KEY, Groups, decode_racks, found, rack_path
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
from magnetar.ledger.bookies import BookieInfo, BookieLost, blames_bookie
from magnetar.metadata.follower import Follower
from magnetar.metadata.store import MetadataStore, MetadataUnavailable, Record
from magnetar.security.tls.transport import Contexts

log = get_logger("magnetar.ledger.bookies")

WATCHED_PREFIX: Final = "/bookies"
"""Registrations and draining marks: one list and one watch for both."""

METADATA_TIMEOUT_S: Final = 15.0
"""Deadline of the first list, including the follower's retries."""

ERROR_SPACING_S: Final = 1.0
"""Failures within this time count as one, such as those of a broken connection."""

Connect = Callable[[BookieRegistration], Bookie]


@dataclass(frozen=True, slots=True)
class RegisteredSettings:
    """Bounds of quarantine, and how long a deregistered bookie is kept; times in seconds."""

    errors_max: int = 5
    errors_window_s: float = 60.0
    quarantine_s: float = 1800.0
    quarantine_late_s: float = 120.0
    keep_s: float = 600.0


@dataclass(slots=True)
class _Incarnation:
    """One incarnation: its client, and its recent failures."""

    registration: BookieRegistration
    bookie: Bookie
    errors: deque[float] = field(default_factory=deque)
    avoided_until: float = float("-inf")
    leaving: asyncio.TimerHandle | None = None
    """Set once its registration was deleted."""


class RegisteredBookies:
    """A `BookieSet` that follows the registrations. `start`, then `stop`."""

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
        tls: Contexts | None = None,
    ) -> None:
        """With `tls`, all connections to bookies are encrypted."""
        self._tls = tls
        self._store = store
        self._clock = clock
        self._cluster, self._client = cluster, client
        self._settings = settings or RegisteredSettings()
        self._remote = remote or RemoteSettings()
        self._random = random or Random()
        self._connect = connect or self._connect_remote
        self._tasks = TaskSet("registered bookies")
        self._following = Follower(store, WATCHED_PREFIX, self._changed)
        self._draining: set[str] = set()
        self._racks: Groups = {}
        self._incarnations: dict[BookieIdentity, _Incarnation] = {}
        self._at: dict[str, BookieIdentity] = {}
        """The incarnation that is registered under each key."""
        self._listeners: list[BookieLost] = []

    async def start(self) -> None:
        """Lists the bookies and follows them from then on; raises MetadataError."""
        self._tasks.start(self._following.run(), "follow")
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                await self._following.ready()
        except TimeoutError:
            raise MetadataUnavailable("the bookies could not be listed in time") from None

    async def stop(self) -> None:
        """Closes the connections."""
        await self._tasks.stop()
        incarnations, self._incarnations = self._incarnations, {}
        self._at.clear()
        for incarnation in incarnations.values():
            if incarnation.leaving is not None:
                incarnation.leaving.cancel()
        closes = (incarnation.bookie.close() for incarnation in incarnations.values())
        await asyncio.gather(*closes)

    def get(self, identity: BookieIdentity) -> Bookie | None:
        """See `BookieSet.get`."""
        incarnation = self._incarnations.get(identity)
        return None if incarnation is None else incarnation.bookie

    def living(self) -> Sequence[BookieInfo]:
        """See `BookieSet.living`."""
        now = self._clock.monotonic()
        return [
            self._info(self._incarnations[identity], now) for identity in sorted(self._at.values())
        ]

    def registrations(self) -> Sequence[BookieRegistration]:
        """Returns the registrations of the living bookies, ordered by id."""
        return [self._incarnations[identity].registration for identity in sorted(self._at.values())]

    def _info(self, incarnation: _Incarnation, now: float) -> BookieInfo:
        registration = incarnation.registration
        total = registration.disk_bytes_total
        placed = found(self._racks, registration.bookie_id) if self._racks else None
        return BookieInfo(
            registration.identity,
            rack_path(registration.rack if placed is None else placed[1].rack),
            registration.writable and incarnation.bookie.writable,
            draining=registration.bookie_id in self._draining,
            quarantined=now < incarnation.avoided_until,
            disk_free_ratio=registration.disk_bytes_free / total if total else 1.0,
            group=GROUP_DEFAULT if placed is None else placed[0],
        )

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """See `BookieSet.failed`. Refusals of a working bookie do not count."""
        incarnation = self._incarnations.get(identity)
        if incarnation is None or isinstance(error, BookieReadOnly) or not blames_bookie(error):
            return
        settings = self._settings
        now = self._clock.monotonic()
        errors = incarnation.errors
        if errors and now - errors[-1] < ERROR_SPACING_S:
            return
        while errors and now - errors[0] > settings.errors_window_s:
            errors.popleft()
        errors.append(now)
        if len(errors) < settings.errors_max:
            return
        errors.clear()
        late = isinstance(error, BookieLate)
        avoid_s = settings.quarantine_late_s if late else settings.quarantine_s
        incarnation.avoided_until = now + avoid_s
        log.warning("bookie in quarantine", bookie=str(identity), s=avoid_s, error=str(error))

    def add_listener(self, on_lost: BookieLost) -> None:
        """See `BookieSet.add_listener`."""
        self._listeners.append(on_lost)

    def remove_listener(self, on_lost: BookieLost) -> None:
        """See `BookieSet.remove_listener`."""
        self._listeners.remove(on_lost)

    def _changed(self, key: str, record: Record | None) -> None:
        """Applies a change of a registration, of a draining mark, or of the racks."""
        if key == RACKS_KEY:
            self._racks_changed(record)
        elif key.startswith(DRAINING_PREFIX):
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

    def _racks_changed(self, record: Record | None) -> None:
        try:
            self._racks = {} if record is None else decode_racks(record.key, record.value)
        except MetadataError as error:
            log.error("racks of bookies ignored", error=str(error))

    def _put(self, record: Record) -> None:
        key = record.key
        try:
            registration = decode(key, record.value)
        except MetadataError as error:
            log.error("damaged registration ignored", error=str(error))
            return
        identity = registration.identity
        incarnation = self._incarnations.get(identity)
        if incarnation is not None and _moved(incarnation.registration, registration):
            self._drop(identity)
            incarnation = None
        if incarnation is None:
            incarnation = self._incarnations[identity] = _Incarnation(
                registration, self._connect(registration)
            )
        elif incarnation.registration.started_ms != registration.started_ms:
            incarnation.errors.clear()
            incarnation.avoided_until = float("-inf")
        if isinstance(incarnation.bookie, RemoteBookie):
            incarnation.bookie.writable = registration.writable
        incarnation.registration = registration
        if incarnation.leaving is not None:
            incarnation.leaving.cancel()
            incarnation.leaving = None
        before = self._at.get(key)
        self._at[key] = identity
        if before is not None and before != identity:
            self._gone(before)

    def _left(self, key: str) -> None:
        identity = self._at.pop(key, None)
        if identity is not None:
            self._gone(identity)

    def _gone(self, identity: BookieIdentity) -> None:
        """Handles the end of an incarnation's registration."""
        incarnation = self._incarnations.get(identity)
        if incarnation is not None and incarnation.leaving is None:
            loop = asyncio.get_running_loop()
            incarnation.leaving = loop.call_later(self._settings.keep_s, self._drop, identity)
        log.info("bookie deregistered", bookie=str(identity))
        for on_lost in tuple(self._listeners):
            try:
                on_lost(identity)
            except Exception:
                log.exception("listener of a lost bookie failed", bookie=str(identity))

    def _drop(self, identity: BookieIdentity) -> None:
        """Closes and drops the client of an incarnation."""
        incarnation = self._incarnations.pop(identity, None)
        if incarnation is not None:
            if incarnation.leaving is not None:
                incarnation.leaving.cancel()
            self._tasks.start(incarnation.bookie.close(), "close")

    def _connect_remote(self, registration: BookieRegistration) -> Bookie:
        return RemoteBookie(
            registration.identity,
            registration.host,
            registration.port,
            cluster=self._cluster,
            client=self._client,
            settings=self._remote,
            random=self._random,
            tls=self._tls,
        )


def _moved(before: BookieRegistration, after: BookieRegistration) -> bool:
    return (before.host, before.port) != (after.host, after.port)

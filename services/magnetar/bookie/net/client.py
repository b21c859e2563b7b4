"""A bookie of another process: `Bookie` over one TCP connection, opened on demand.

The connection and all that waits for it is a `Link`; here is which link there is. The hello names
the incarnation of the bookie that is meant: whoever else answers at the address is never used. When
a connection ends, all that waited for it fails at once, and the next request opens a new one. After
a failed attempt, requests fail at once until a pause has passed, which doubles from attempt to
attempt and is jittered.

Bounds: PENDING_BYTES_MAX of adds, late ones that are still unsent included; beyond it an add fails,
in its turn.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeVar

from magnetar.bookie.api import (
    ID_END,
    BookieIdentity,
    BookieUnavailable,
    EntryProofs,
    LedgerEnd,
    OnAdded,
    StoredEntry,
)
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.link import Link
from magnetar.bookie.net.protocol_v1 import Entries, Frame, FrameError
from magnetar.bookie.packed import ascending, forget, packed
from magnetar.bookie.settings import ENTRIES_PER_GROUP_MAX
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

log = get_logger("magnetar.bookie.client")

PENDING_BYTES_MAX: Final = 128 << 20
"""Of adds that one bookie has not answered."""

RETRIES_COUNTED_MAX: Final = 16

T = TypeVar("T")
_stored_entry: Callable[[tuple[int, bytes]], StoredEntry] = partial(tuple.__new__, StoredEntry)
"""A third of what calling the class costs."""


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Deadlines of a connection to a bookie, in seconds."""

    connect_timeout_s: float = 2.0
    """To the bookie's welcome."""
    timeout_s: float = 5.0
    """Of any request; to the next tick of the connection's timer."""
    ping_idle_s: float = 10.0
    ping_read_only_s: float = 0.5
    """Of a bookie that takes no adds, which nobody asks then: how else would one learn that it
    takes them again? After an outage of the metadata store all are so for a moment."""
    retry_s_min: float = 0.05
    retry_s_max: float = 5.0


class RemoteBookie:
    """See `bookie.api.Bookie` and the module's text."""

    def __init__(
        self,
        identity: BookieIdentity,
        host: str,
        port: int,
        *,
        cluster: str = "",
        client: str = "",
        settings: RemoteSettings | None = None,
        random: Random | None = None,
    ) -> None:
        self._identity = identity
        self.host, self.port = host, port
        self.settings = settings or RemoteSettings()
        self.hello = messages.Hello(identity, cluster, client)
        self.writable = True
        """What the bookie last said."""
        self._random = random or Random()
        self._link: Link | None = None
        self._tasks = TaskSet(f"bookie {identity.bookie_id}")
        self._retries = 0
        self.retry_at = 0.0
        """By the loop's clock: requests fail until then."""
        self._failure = ""
        self._closed = False

    def __str__(self) -> str:
        return f"bookie {self._identity.bookie_id} at {self.host}:{self.port}"

    @property
    def identity(self) -> BookieIdentity:
        return self._identity

    @property
    def connected(self) -> bool:
        """Whether there is a connection that the bookie welcomed."""
        return self._link is not None and self._link.opened

    @property
    def pending_bytes(self) -> int:
        """Bytes of adds that the bookie has not answered."""
        return 0 if self._link is None else self._link.pending_bytes

    # -- adds ------------------------------------------------------------------------------

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        """See `Bookie.add_entries`. The sequences must not be changed until it is answered."""
        if type(entry_ids) is not range or entry_ids.step != 1:
            entry_ids = ascending(entry_ids)
        count = len(entries)
        if not count or count != len(entry_ids) or entry_ids[0] < 0 or entry_ids[-1] >= ID_END:
            raise ValueError(f"{count} entries for {len(entry_ids)} ids from 0 to {ID_END - 1}")
        if not (0 <= ledger_id < ID_END and -1 <= last_add_confirmed < ID_END):
            raise ValueError(f"ledger {ledger_id} confirmed to {last_add_confirmed}: no such ids")
        link = self._link or self._connect()
        if isinstance(link, BookieUnavailable):
            asyncio.get_running_loop().call_soon(on_added, link)
            return
        group = packed(entries)
        size = group.body_bytes
        if size > protocol.BODY_BYTES_MAX or count > ENTRIES_PER_GROUP_MAX:
            forget()
            raise ValueError(f"a group of {count} entries and {size} bytes is too large")
        if link.pending_bytes + link.late_bytes + size > PENDING_BYTES_MAX:
            link.unsent_bytes()
            waiting_bytes = link.pending_bytes + link.late_bytes
            if waiting_bytes + size > PENDING_BYTES_MAX:
                forget()
                text = f"{waiting_bytes} bytes wait for its answers already"
                link.refuse(on_added, self.unavailable(text))
                return
        link.add(ledger_id, entry_ids, group, last_add_confirmed, on_added, recovery=recovery)

    # -- requests --------------------------------------------------------------------------

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        """See `Bookie.read_entries`."""
        payload = messages.encode_read(ledger_id, first, last, bytes_max)
        answer = await self._ask(protocol.READ, payload, fence=fence)
        if not isinstance(answer, Entries):
            raise self._wrong(answer)
        ids, entries = answer.entry_ids, answer.entries
        if ids[0] != first or ids[-1] > last:
            raise self._wrong(answer)
        return list(map(_stored_entry, zip(ids, entries, strict=True)))

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        """See `Bookie.prove_entries`."""
        count_max = min(count_max, protocol.PROOFS_MAX)
        payload = messages.encode_prove(ledger_id, first, last, count_max)
        return await self._told(protocol.PROVE, payload, messages.decode_proofs)

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        """See `Bookie.ledger_end`."""
        payload = messages.encode_ledger(ledger_id)
        return await self._told(protocol.LEDGER_END, payload, messages.decode_end, fence=fence)

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        """See `Bookie.note_confirmed`. Told page by page."""
        step = protocol.CONFIRMED_PER_REQUEST_MAX
        for start in range(0, len(confirmed), step):
            page = confirmed[start : start + step]
            await self._told(protocol.CONFIRM, messages.encode_confirm(page), bool)

    async def delete_ledger(self, ledger_id: int) -> None:
        """See `Bookie.delete_ledger`."""
        await self._told(protocol.DELETE, messages.encode_ledger(ledger_id), bool)

    async def list_ledgers(self) -> list[int]:
        """See `Bookie.list_ledgers`. Asked page by page."""
        found: list[int] = []
        more = True
        while more:
            after = found[-1] if found else -1
            payload = messages.encode_list(after, protocol.LEDGERS_PER_PAGE_MAX)
            page, more = await self._told(protocol.LIST, payload, messages.decode_ledgers)
            if page and page[0] <= after:
                raise BookieUnavailable(f"{self} repeats itself in its list of ledgers")
            found += page
        return found

    async def state(self) -> messages.State:
        """How the bookie is."""
        return await self._told(protocol.INFO, b"", messages.decode_state)

    async def ping(self) -> None:
        """Returns when the bookie has answered."""
        await self._told(protocol.PING, b"", bool)

    async def _told(
        self, kind: int, payload: bytes, decode: Callable[[bytes], T], *, fence: bool = False
    ) -> T:
        answer = await self._ask(kind, payload, fence=fence)
        if not isinstance(answer, Frame) or answer.kind != kind | protocol.ANSWER:
            raise self._wrong(answer)
        return self._decoded(decode, answer)

    async def _ask(self, kind: int, payload: bytes, *, fence: bool = False) -> Frame | Entries:
        link = self._link or self._connect()
        if isinstance(link, BookieUnavailable):
            raise link
        flags = protocol.FLAG_FENCE if fence else 0
        answer = await link.request(kind, flags, payload)
        if isinstance(answer, Frame) and answer.kind == protocol.FAILED:
            raise messages.error_of(self._decoded(messages.decode_failure, answer))
        return answer

    def _decoded(self, decode: Callable[[bytes], T], answer: Frame) -> T:
        try:
            return decode(answer.payload)
        except FrameError as error:
            raise self.unavailable(f"it broke the protocol: {error}") from error

    def _wrong(self, answer: Frame | Entries) -> BookieUnavailable:
        return BookieUnavailable(f"{self} answered something else than was asked: {answer!r:.80}")

    # -- the connection --------------------------------------------------------------------

    def _connect(self) -> "Link | BookieUnavailable":
        """A new link, on its way; or why there is none now."""
        if self._closed:
            return self.unavailable("it is not used any more")
        now = asyncio.get_running_loop().time()
        if now < self.retry_at:
            return self.unavailable(f"{self._failure}; tried again in {self.retry_at - now:.1f} s")
        link = self._link = Link(self)
        self._tasks.start(self._open(link), "connect")
        return link

    async def _open(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                await loop.create_connection(lambda: link, self.host, self.port)
                await link.settled()
        except (OSError, TimeoutError) as error:
            text = str(error) or f"not within {self.settings.connect_timeout_s:g} s"
            link.close(self.unavailable(f"no connection: {text}"))

    def opened(self) -> None:
        """The bookie has welcomed us."""
        self._retries = 0

    def lost(self, link: Link) -> None:
        """A link is no more. One that never came to be makes the next attempt wait."""
        if link is self._link:
            self._link = None
        if not link.opened:
            settings = self.settings
            pause_s = min(settings.retry_s_min * 2**self._retries, settings.retry_s_max)
            self._retries = min(self._retries + 1, RETRIES_COUNTED_MAX)
            pause_s *= self._random.uniform(0.5, 1.0)
            self.retry_at = asyncio.get_running_loop().time() + pause_s
            self._failure = str(link.error)

    def unavailable(self, why: str) -> BookieUnavailable:
        return BookieUnavailable(f"{self}: {why}")

    def stranger(self, welcome: messages.Welcome) -> str:
        """Why whoever welcomed us is not the bookie that is meant; nothing if it is."""
        if welcome.bookie != self._identity:
            return (
                f"another incarnation answers, {welcome.bookie.bookie_id} "
                f"{welcome.bookie.incarnation} instead of {self._identity.incarnation}"
            )
        cluster = self.hello.cluster
        if cluster and welcome.cluster and welcome.cluster != cluster:
            return f"it belongs to cluster {welcome.cluster}, not {cluster}"
        if welcome.version != protocol.VERSION_MAX:
            return f"it answers in version {welcome.version}, which was not offered"
        return ""

    async def close(self) -> None:
        """Waits for the adds that are pending, within their deadline; then ends the connection."""
        link = self._link
        if link is not None and not self._closed:
            self._closed = True
            await link.drained()
            link.close(self.unavailable("it is not used any more"))
        self._closed = True
        await self._tasks.stop()

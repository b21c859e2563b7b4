"""A bookie of another process: `Bookie` over one TCP connection, opened on demand.

`ClientConnection` holds one connection and everything that waits for its answers; this module
decides when to open one. The hello names the expected incarnation, so another bookie at the same
address is never used. When a connection ends, everything that waits for it fails at once, and the
next request opens a new one. After a failed attempt, requests fail at once during a back-off.

Bounds: PENDING_BYTES_MAX of unanswered adds, late ones that are still unsent included; beyond it an
add fails, after the adds before it.
"""

import asyncio
from collections.abc import Callable, Sequence
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
from magnetar.bookie.net.client_connection import ClientConnection
from magnetar.bookie.net.protocol_v1 import Entries, Frame, FrameError
from magnetar.bookie.net.settings import RemoteSettings
from magnetar.bookie.packed import checked_ids, pack
from magnetar.bookie.settings import ENTRIES_PER_GROUP_MAX
from magnetar.core.backoff import Backoff
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.security.tls.transport import Contexts, connect, describe

log = get_logger("magnetar.bookie.net.client")

PENDING_BYTES_MAX: Final = 128 << 20
"""Bytes of unanswered adds of one bookie; beyond it, adds fail."""

T = TypeVar("T")
_stored_entry: Callable[[tuple[int, bytes]], StoredEntry] = partial(tuple.__new__, StoredEntry)
"""Costs a third of calling the class."""


class RemoteBookie:
    """A `Bookie` in another process, over one TCP connection that is opened on demand."""

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
        tls: Contexts | None = None,
    ) -> None:
        """With `tls`, connections are encrypted, and never fall back to plain ones."""
        self._tls = tls
        self._identity = identity
        self.host, self.port = host, port
        self.settings = settings or RemoteSettings()
        self.hello = messages.Hello(identity, cluster, client)
        self.writable = True
        """Whether the bookie accepts adds, as of its last frame."""
        self._connection: ClientConnection | None = None
        self._tasks = TaskSet(f"bookie {identity.bookie_id}")
        self._backoff = Backoff(
            self.settings.retry_s_min, self.settings.retry_s_max, random or Random()
        )
        self.retry_at = 0.0
        """Requests fail until this time of the loop's clock."""
        self._failure = ""
        self._closed = False

    def __str__(self) -> str:
        return f"bookie {self._identity.bookie_id} at {self.host}:{self.port}"

    @property
    def identity(self) -> BookieIdentity:
        return self._identity

    @property
    def connected(self) -> bool:
        """Whether the bookie has welcomed the current connection."""
        return self._connection is not None and self._connection.opened

    @property
    def pending_bytes(self) -> int:
        """Bytes of unanswered adds."""
        return 0 if self._connection is None else self._connection.pending_bytes

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
        """See `Bookie.add_entries`. The caller must not change the sequences until `on_added`."""
        count = len(entries)
        entry_ids = checked_ids(entry_ids, count, last_add_confirmed)
        if not 0 <= ledger_id < ID_END:
            raise ValueError(f"there is no ledger id {ledger_id}")
        connection = self._connection or self._connect()
        if isinstance(connection, BookieUnavailable):
            asyncio.get_running_loop().call_soon(on_added, connection)
            return
        group = pack(entries)
        size = group.body_bytes
        if size > protocol.BODY_BYTES_MAX or count > ENTRIES_PER_GROUP_MAX:
            raise ValueError(f"a group of {count} entries and {size} bytes is too large")
        if connection.pending_bytes + connection.late_bytes + size > PENDING_BYTES_MAX:
            connection.unsent_bytes()
            waiting_bytes = connection.pending_bytes + connection.late_bytes
            if waiting_bytes + size > PENDING_BYTES_MAX:
                text = f"{waiting_bytes} bytes wait for its answers already"
                connection.refuse(on_added, self.unavailable(text))
                return
        connection.add(ledger_id, entry_ids, group, last_add_confirmed, on_added, recovery=recovery)

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        """See `Bookie.read_entries`."""
        payload = messages.encode_read(ledger_id, first, last, bytes_max)
        answer = await self._answer_to(protocol.READ, payload, fence=fence)
        if not isinstance(answer, Entries):
            raise self._unexpected(answer)
        ids, entries = answer.entry_ids, answer.entries
        if ids[0] != first or ids[-1] > last:
            raise self._unexpected(answer)
        return list(map(_stored_entry, zip(ids, entries, strict=True)))

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        """See `Bookie.prove_entries`."""
        count_max = min(count_max, protocol.PROOFS_MAX)
        payload = messages.encode_prove(ledger_id, first, last, count_max)
        return await self._request(protocol.PROVE, payload, messages.decode_proofs)

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        """See `Bookie.ledger_end`."""
        payload = messages.encode_ledger(ledger_id)
        return await self._request(protocol.LEDGER_END, payload, messages.decode_end, fence=fence)

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        """See `Bookie.note_confirmed`. Sends CONFIRMED_PER_REQUEST_MAX ledgers per request."""
        step = protocol.CONFIRMED_PER_REQUEST_MAX
        for start in range(0, len(confirmed), step):
            page = confirmed[start : start + step]
            await self._request(protocol.CONFIRM, messages.encode_confirm(page), bool)

    async def delete_ledger(self, ledger_id: int) -> None:
        """See `Bookie.delete_ledger`."""
        await self._request(protocol.DELETE, messages.encode_ledger(ledger_id), bool)

    async def list_ledgers(self) -> list[int]:
        """See `Bookie.list_ledgers`. Requests one page after the other."""
        ledger_ids: list[int] = []
        more = True
        while more:
            after = ledger_ids[-1] if ledger_ids else -1
            payload = messages.encode_list(after, protocol.LEDGERS_PER_PAGE_MAX)
            page, more = await self._request(protocol.LIST, payload, messages.decode_ledgers)
            if page and page[0] <= after:
                raise BookieUnavailable(f"{self} repeats itself in its list of ledgers")
            ledger_ids += page
        return ledger_ids

    async def state(self) -> messages.State:
        """Returns the bookie's disk usage, pending bytes and read-only reason."""
        return await self._request(protocol.INFO, b"", messages.decode_state)

    async def ping(self) -> None:
        """Returns once the bookie answers."""
        await self._request(protocol.PING, b"", bool)

    async def _request(
        self, kind: int, payload: bytes, decode: Callable[[bytes], T], *, fence: bool = False
    ) -> T:
        answer = await self._answer_to(kind, payload, fence=fence)
        if not isinstance(answer, Frame) or answer.kind != kind | protocol.ANSWER:
            raise self._unexpected(answer)
        return self._decoded(decode, answer)

    async def _answer_to(
        self, kind: int, payload: bytes, *, fence: bool = False
    ) -> Frame | Entries:
        connection = self._connection or self._connect()
        if isinstance(connection, BookieUnavailable):
            raise connection
        flags = protocol.FLAG_FENCE if fence else 0
        answer = await connection.request(kind, flags, payload)
        if isinstance(answer, Frame) and answer.kind == protocol.FAILED:
            raise messages.error_of(self._decoded(messages.decode_failure, answer))
        return answer

    def _decoded(self, decode: Callable[[bytes], T], answer: Frame) -> T:
        try:
            return decode(answer.payload)
        except FrameError as error:
            raise self.unavailable(f"it broke the protocol: {error}") from error

    def _unexpected(self, answer: Frame | Entries) -> BookieUnavailable:
        return BookieUnavailable(f"{self} answered something else than was asked: {answer!r:.80}")

    def _connect(self) -> ClientConnection | BookieUnavailable:
        """Starts to open a connection and returns it, or the reason why it must not be opened
        now."""
        if self._closed:
            return self.unavailable("it is not used any more")
        now = asyncio.get_running_loop().time()
        if now < self.retry_at:
            return self.unavailable(f"{self._failure}; tried again in {self.retry_at - now:.1f} s")
        connection = self._connection = ClientConnection(self)
        self._tasks.start(self._open(connection), "connect")
        return connection

    async def _open(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                if self._tls is None:
                    await loop.create_connection(lambda: connection, self.host, self.port)
                else:
                    await connect(self._tls, lambda: connection, self.host, self.port)
                await connection.settled()
        except (OSError, TimeoutError) as error:
            text = describe(error) or f"not within {self.settings.connect_timeout_s:g} s"
            connection.close(self.unavailable(f"no connection: {text}"))

    def opened(self) -> None:
        """The bookie welcomed the connection: the back-off starts over."""
        self._backoff.reset()

    def lost(self, connection: ClientConnection) -> None:
        """A connection ended. If the bookie never welcomed it, the next attempt waits."""
        self._connection = None
        if not connection.opened:
            self.retry_at = asyncio.get_running_loop().time() + self._backoff.failed_s()
            self._failure = str(connection.error)

    def unavailable(self, why: str) -> BookieUnavailable:
        return BookieUnavailable(f"{self}: {why}")

    def mismatch(self, welcome: messages.Welcome) -> str:
        """Returns why the welcome is not the expected bookie's; empty if it is."""
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
        """Ends the connection once the pending adds are answered or past their deadline."""
        connection = self._connection
        if connection is not None and not self._closed:
            self._closed = True
            await connection.drained()
            connection.close(self.unavailable("it is not used any more"))
        self._closed = True
        await self._tasks.stop()

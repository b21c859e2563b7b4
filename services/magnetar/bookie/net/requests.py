"""What a bookie is asked on one connection beside adds: each request runs as a task.

At most REQUESTS_RUNNING_MAX run at a time, and only while what they may answer, together, is within
ANSWER_BYTES_MAX and the peer reads its answers. More wait in line, and beyond REQUESTS_WAITING_MAX
they are refused. A request never waits for itself: one always runs, whatever it may answer.

A request that fences does not stand in that line: FENCES_RUNNING_MAX more may run. If those run, or
its answer is too large for now, it waits in the line after all, and the connection takes no frame
until it has begun.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from magnetar.bookie.api import BookieError, BookieUnavailable, EntryProofs
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.protocol_v1 import Frame
from magnetar.bookie.settings import ENTRIES_PER_GROUP_MAX
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger

if TYPE_CHECKING:
    from magnetar.bookie.net.connection import BookieConnection
    from magnetar.bookie.net.server import BookieServer

log = get_logger("magnetar.bookie.requests")

REQUESTS_RUNNING_MAX: Final = 16
REQUESTS_WAITING_MAX: Final = 4096
FENCES_RUNNING_MAX: Final = 16
READ_BYTES_MAX: Final = 8 << 20
"""One answer to a read holds no more, but for its first entry."""

ANSWER_BYTES_MAX: Final = 32 << 20
PROVE_STEP_IDS: Final = 64
PROVE_TIME_S: Final = 1.0
"""A request to prove is answered after that with what was proven so far."""

_KINDS: Final = frozenset(
    (
        protocol.READ,
        protocol.LEDGER_END,
        protocol.PROVE,
        protocol.DELETE,
        protocol.LIST,
        protocol.CONFIRM,
    )
)


class Requests:
    """See the module's text."""

    __slots__ = (
        "_answer_bytes",
        "_connection",
        "_fences_running",
        "_listing",
        "_running",
        "_server",
        "_waiting",
        "fences_due",
    )

    def __init__(self, connection: "BookieConnection", server: "BookieServer") -> None:
        self._connection = connection
        self._server = server
        self._waiting: deque[Frame] = deque()
        self._running = 0
        self._fences_running = 0
        self.fences_due = 0
        """Fences that have not begun: no frame behind them may be taken."""
        self._answer_bytes = 0
        """What the running ones may answer."""
        self._listing: list[int] = []

    @property
    def pending(self) -> int:
        """Requests that are not answered yet."""
        return self._running + self._fences_running + len(self._waiting)

    def add(self, frame: Frame) -> None:
        """Takes a request; it is answered in any case."""
        connection = self._connection
        if frame.kind not in _KINDS:
            failure = messages.Failure(
                messages.CODE_UNKNOWN_KIND, f"this bookie knows no request of kind {frame.kind}"
            )
            connection.answer(protocol.FAILED, frame.id, messages.encode_failure(failure))
        elif frame.flags & protocol.FLAG_FENCE and self._begin_fence(frame):
            self.fences_due += 1
        elif len(self._waiting) >= REQUESTS_WAITING_MAX:
            text = f"more than {REQUESTS_WAITING_MAX} requests of this connection wait already"
            connection.fail(frame.id, BookieUnavailable(text))
        else:
            self._waiting.append(frame)
            self.fences_due += bool(frame.flags & protocol.FLAG_FENCE)
            self.begin()

    def _begin_fence(self, frame: Frame) -> bool:
        """Begins a fence ahead of the requests that wait, unless it may answer too much."""
        expected_bytes = _answer_bytes_max(frame)
        if self._fences_running >= FENCES_RUNNING_MAX:
            return False
        if expected_bytes and self._answer_bytes + expected_bytes > ANSWER_BYTES_MAX:
            return False
        self._fences_running += 1
        self._answer_bytes += expected_bytes
        self._server.tasks.start(self._serve_fence(frame, expected_bytes), "fence")
        return True

    def clear(self) -> None:
        """The connection is gone: what waits is forgotten, what runs answers nobody."""
        self._waiting.clear()
        self._listing = []

    def begin(self) -> None:
        """Begins requests that wait, as far as the bounds allow."""
        while self._waiting and not self._connection.unread:
            if self._running >= REQUESTS_RUNNING_MAX:
                return
            frame = self._waiting[0]
            expected_bytes = _answer_bytes_max(frame)
            if self._running and self._answer_bytes + expected_bytes > ANSWER_BYTES_MAX:
                return
            self._waiting.popleft()
            self._running += 1
            self._answer_bytes += expected_bytes
            self._server.tasks.start(self._serve(frame, expected_bytes), "request")

    async def _serve(self, frame: Frame, expected_bytes: int) -> None:
        try:
            await self._answered(frame)
        finally:
            self._running -= 1
            self._ended(expected_bytes)

    async def _serve_fence(self, frame: Frame, expected_bytes: int) -> None:
        try:
            await self._answered(frame)
        finally:
            self._fences_running -= 1
            self._ended(expected_bytes)

    def _ended(self, expected_bytes: int) -> None:
        self._answer_bytes -= expected_bytes
        self.begin()
        self._connection.close_if_drained()

    async def _answered(self, frame: Frame) -> None:
        """Does what a frame asks for; it is answered whatever happens."""
        connection = self._connection
        if frame.flags & protocol.FLAG_FENCE:
            # The bookie refuses the ledger's writer before this task waits for the first time, and
            # frames are taken in a later turn of the loop.
            self.fences_due -= 1
            connection.go_on_soon()
        try:
            await self._do(frame)
        except BookieError as error:
            connection.fail(frame.id, error)
        except (ValueError, MagnetarError) as error:
            connection.fail(frame.id, BookieError(f"a request that no bookie takes: {error}"))
        except Exception as error:
            log.exception("a request failed", peer=connection.peer, kind=frame.kind)
            connection.fail(frame.id, BookieError(f"the bookie failed: {error!r}"))

    async def _do(self, frame: Frame) -> None:
        bookie = self._server.bookie
        connection = self._connection
        kind, payload = frame.kind, frame.payload
        fence = bool(frame.flags & protocol.FLAG_FENCE)
        if kind == protocol.READ:
            ledger_id, first, last, bytes_max = messages.decode_read(payload)
            found = await bookie.read_entries(
                ledger_id, first, last, bytes_max=min(bytes_max, READ_BYTES_MAX), fence=fence
            )
            ids, entries = zip(*found[:ENTRIES_PER_GROUP_MAX], strict=True)
            connection.answer_parts(
                protocol.encode_entries(connection.flags, frame.id, ids, entries)
            )
        elif kind == protocol.LEDGER_END:
            end = await bookie.ledger_end(messages.decode_ledger(payload), fence=fence)
            connection.answer(protocol.END, frame.id, messages.encode_end(end))
        elif kind == protocol.PROVE:
            proofs = await self._prove(*messages.decode_prove(payload))
            connection.answer(protocol.PROOFS, frame.id, messages.encode_proofs(proofs))
        elif kind == protocol.DELETE:
            await bookie.delete_ledger(messages.decode_ledger(payload))
            connection.answer(protocol.DELETED, frame.id)
        elif kind == protocol.CONFIRM:
            await bookie.note_confirmed(messages.decode_confirm(payload))
            connection.answer(protocol.CONFIRMED, frame.id)
        else:
            page = await self._list(*messages.decode_list(payload))
            connection.answer(protocol.LEDGERS, frame.id, page)

    async def _prove(self, ledger_id: int, first: int, last: int, count_max: int) -> EntryProofs:
        """Proves in steps, until it has taken long enough."""
        prove = self._server.bookie.prove_entries
        last = min(last, first + max(1, min(count_max, protocol.PROOFS_MAX)) - 1)
        loop = asyncio.get_running_loop()
        until = loop.time() + PROVE_TIME_S
        proofs, position = await prove(ledger_id, first, last, count_max=PROVE_STEP_IDS)
        while position <= last and loop.time() < until:
            more, position = await prove(ledger_id, position, last, count_max=PROVE_STEP_IDS)
            proofs += more
        return EntryProofs(proofs, position)

    async def _list(self, after: int, count_max: int) -> bytes:
        """A page of the list as it was when its first page was asked for."""
        if after < 0 or not self._listing:
            self._listing = await self._server.bookie.list_ledgers()
        count_max = max(1, min(count_max, protocol.LEDGERS_PER_PAGE_MAX))
        rest = self._listing[bisect_right(self._listing, after) :]
        more = len(rest) > count_max
        if not more:
            self._listing = []
        return messages.encode_ledgers(rest[:count_max], more=more)


def _answer_bytes_max(frame: Frame) -> int:
    """What the answer may hold in memory."""
    if frame.kind == protocol.READ:
        return min(messages.decode_read(frame.payload)[3], READ_BYTES_MAX)
    if frame.kind == protocol.LIST:
        return 8 * protocol.LEDGERS_PER_PAGE_MAX
    return 0

"""The requests of one connection, except adds: each runs as a task.

At most REQUESTS_RUNNING_MAX run at a time, and only while the client reads its answers and all
running requests together may answer at most ANSWER_BYTES_MAX. Others wait in a queue; beyond
REQUESTS_WAITING_MAX they are refused. If none is running, the next request begins however large its
answer may be.

Fencing requests skip the queue: FENCES_RUNNING_MAX of them may run in addition. If that many run,
or the answer would be too large, a fence waits in the queue after all, and the connection handles
no frame until it has begun.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieError, BookieUnavailable, EntryProofs
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.protocol_v1 import Frame
from magnetar.bookie.settings import ENTRIES_PER_GROUP_MAX
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

log = get_logger("magnetar.bookie.net.requests")

REQUESTS_RUNNING_MAX: Final = 16
REQUESTS_WAITING_MAX: Final = 4096
FENCES_RUNNING_MAX: Final = 16
READ_BYTES_MAX: Final = 8 << 20
"""The largest answer to a read, unless its first entry alone is larger."""

ANSWER_BYTES_MAX: Final = 32 << 20
PROVE_STEP_IDS: Final = 64
PROVE_TIME_S: Final = 1.0
"""After this time, a PROVE request is answered with the proofs so far."""

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


class Requester(Protocol):
    """The connection, as its requests see it."""

    peer: str

    @property
    def flags(self) -> int:
        """The flags of every answer."""

    @property
    def unread(self) -> bool:
        """Whether the client is behind with reading its answers."""

    def answer(self, kind: int, id_: int, payload: bytes = b"") -> None: ...

    def answer_parts(self, parts: Sequence[bytes]) -> None:
        """Answers with a whole frame in parts."""

    def fail(self, id_: int, error: BookieError) -> None:
        """Answers with an error."""

    def resume_soon(self) -> None:
        """Takes frames again in the next turn of the loop."""

    def close_if_drained(self) -> None:
        """Closes a connection that drains and has nothing left to answer."""


class Requests:
    """The requests of one connection, except adds: running, and waiting to run."""

    __slots__ = (
        "_answer_bytes",
        "_bookie",
        "_connection",
        "_fences_running",
        "_listing",
        "_running",
        "_tasks",
        "_waiting",
        "fences_due",
    )

    def __init__(self, connection: Requester, bookie: Bookie, tasks: TaskSet) -> None:
        self._connection = connection
        self._bookie = bookie
        self._tasks = tasks
        self._waiting: deque[Frame] = deque()
        self._running = 0
        self._fences_running = 0
        self.fences_due = 0
        """Fences that have not begun: no frame behind them may be handled."""
        self._answer_bytes = 0
        """The most that the running requests may answer, in bytes."""
        self._listing: list[int] = []

    @property
    def pending(self) -> int:
        """How many requests are not answered yet."""
        return self._running + self._fences_running + len(self._waiting)

    def add(self, frame: Frame) -> None:
        """Begins, queues or refuses a request; it is answered in any case."""
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
        """Begins a fence ahead of the queue, if the bounds allow; returns whether it did."""
        expected_bytes = _answer_bytes_max(frame)
        if self._fences_running >= FENCES_RUNNING_MAX:
            return False
        if expected_bytes and self._answer_bytes + expected_bytes > ANSWER_BYTES_MAX:
            return False
        self._fences_running += 1
        self._answer_bytes += expected_bytes
        self._tasks.start(self._serve_fence(frame, expected_bytes), "fence")
        return True

    def clear(self) -> None:
        """The connection ended: drops the queue. Running requests continue without an answer."""
        self._waiting.clear()

    def begin(self) -> None:
        """Begins queued requests, as far as the bounds allow."""
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
            self._tasks.start(self._serve(frame, expected_bytes), "request")

    async def _serve(self, frame: Frame, expected_bytes: int) -> None:
        try:
            await self._answer(frame)
        finally:
            self._running -= 1
            self._ended(expected_bytes)

    async def _serve_fence(self, frame: Frame, expected_bytes: int) -> None:
        try:
            await self._answer(frame)
        finally:
            self._fences_running -= 1
            self._ended(expected_bytes)

    def _ended(self, expected_bytes: int) -> None:
        self._answer_bytes -= expected_bytes
        self.begin()
        self._connection.close_if_drained()

    async def _answer(self, frame: Frame) -> None:
        """Serves a request; answers it in any case."""
        connection = self._connection
        if frame.flags & protocol.FLAG_FENCE:
            # The bookie refuses the ledger's writer before this task first awaits, and the next
            # frame is handled in a later turn of the loop.
            self.fences_due -= 1
            connection.resume_soon()
        try:
            await self._perform(frame)
        except BookieError as error:
            connection.fail(frame.id, error)
        except (ValueError, MagnetarError) as error:
            connection.fail(frame.id, BookieError(f"a request that no bookie takes: {error}"))
        except Exception as error:
            log.exception("serving a request failed", peer=connection.peer, kind=frame.kind)
            connection.fail(frame.id, BookieError(f"the bookie failed: {error!r}"))

    async def _perform(self, frame: Frame) -> None:
        bookie = self._bookie
        connection = self._connection
        kind, payload = frame.kind, frame.payload
        fence = bool(frame.flags & protocol.FLAG_FENCE)
        if kind == protocol.READ:
            ledger_id, first, last, bytes_max = messages.decode_read(payload)
            stored = await bookie.read_entries(
                ledger_id, first, last, bytes_max=min(bytes_max, READ_BYTES_MAX), fence=fence
            )
            ids, entries = zip(*stored[:ENTRIES_PER_GROUP_MAX], strict=True)
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
        """Proves entries in steps, for up to PROVE_TIME_S."""
        prove = self._bookie.prove_entries
        last = min(last, first + max(1, min(count_max, protocol.PROOFS_MAX)) - 1)
        loop = asyncio.get_running_loop()
        until = loop.time() + PROVE_TIME_S
        proofs, position = await prove(ledger_id, first, last, count_max=PROVE_STEP_IDS)
        while position <= last and loop.time() < until:
            more, position = await prove(ledger_id, position, last, count_max=PROVE_STEP_IDS)
            proofs += more
        return EntryProofs(proofs, position)

    async def _list(self, after: int, count_max: int) -> bytes:
        """Returns a page of the list as of the request for its first page."""
        if after < 0 or not self._listing:
            self._listing = await self._bookie.list_ledgers()
        count_max = max(1, min(count_max, protocol.LEDGERS_PER_PAGE_MAX))
        rest = self._listing[bisect_right(self._listing, after) :]
        more = len(rest) > count_max
        if not more:
            self._listing = []
        return messages.encode_ledgers(rest[:count_max], more=more)


def _answer_bytes_max(frame: Frame) -> int:
    """Returns how much memory the answer may take."""
    if frame.kind == protocol.READ:
        return min(messages.decode_read(frame.payload)[3], READ_BYTES_MAX)
    if frame.kind == protocol.LIST:
        return 8 * protocol.LEDGERS_PER_PAGE_MAX
    return 0

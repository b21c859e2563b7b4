"""The writing end of a managed ledger: one writable ledger at a time, and the groups in flight.

A group is appended to the newest ledger, or queued while there is none. The first append creates
the first ledger (an idle topic has none). An append that finds the ledger due for rollover has it
closed and the next one created. Groups complete in the order of their appends, whatever happens
between: a group is either sent to the ledger or queued behind those that are, and a refusal takes
its place in the same order. A group is never split over two ledgers.

If an add fails, the ledger is closed at its last confirmed entry, and the failed groups go first
into the next ledger, so a producer does not notice. After REPLAYS_MAX consecutive ledgers that took
nothing, everything that waits fails. If another owner has fenced the ledger or written the record,
everything fails for good.

Only this module changes the state: OPEN (appends are accepted, with or without a ledger), then one
of the final states CLOSED, TERMINATED and FENCED.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from magnetar.bookie.api import LedgerFenced
from magnetar.core.errors import MagnetarError, PersistenceError, TopicTerminated
from magnetar.core.log import get_logger
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.cache import CachedRun
from magnetar.managed_ledger.context import Context
from magnetar.managed_ledger.errors import (
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    TooManyPendingBytes,
)
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo

REPLAYS_MAX: Final = 2
CREATE_TIMEOUT_S: Final = 30.0
FAILURE_QUIET_S: Final = 60.0
"""After this time without it, the same reason of failed appends is logged again."""
TERMINATED_TEXT: Final = "Topic was already terminated"

OnAppended = Callable[[int, int, MagnetarError | None], None]

log = get_logger("magnetar.managed_ledger.appender")


class AppenderState(StrEnum):
    """Whether appends are accepted."""

    OPEN = "Open"
    CLOSED = "Closed"
    TERMINATED = "Terminated"
    FENCED = "Fenced"


class AppenderOwner(Protocol):
    """The managed ledger of an appender."""

    async def create_ledger(self) -> LedgerWriter:
        """Creates the next ledger and records it; raises ManagedLedgerFenced."""

    def ledger_ended(self, info: LedgerInfo) -> None:
        """A ledger was closed; an empty one is dropped."""

    def owner_changed(self, error: MagnetarError) -> None:
        """Another owner has the managed ledger: this instance must stop."""

    def run_of(self, ledger_id: int, first_entry: int) -> CachedRun:
        """Returns a new cache run for entries of the newest ledger, from this one on."""


_Group = tuple[list[bytes], int, OnAppended, MagnetarError | None]
"""Entries in flight, their bytes, their callback; with an error, a refusal in its place.

A plain tuple: there is one for every unbatched message.
"""


class Appender:
    """Appends groups, and rolls ledgers over. For the event loop's thread."""

    __slots__ = (
        "_bytes_max",
        "_context",
        "_creating",
        "_entries_max",
        "_failed_why",
        "_info",
        "_loop",
        "_name",
        "_notifying",
        "_owner",
        "_queued",
        "_queued_bytes",
        "_refused",
        "_replays",
        "_roll_at",
        "_roll_from",
        "_rolling",
        "_run",
        "_sent",
        "_sent_bytes",
        "_sent_entries",
        "caching",
        "error",
        "index",
        "listeners",
        "state",
        "writer",
    )

    def __init__(
        self, owner: AppenderOwner, name: str, index: LedgerIndex, context: Context
    ) -> None:
        self.index = index
        self.state = AppenderState.OPEN
        self.error: MagnetarError | None = None
        self.writer: LedgerWriter | None = None
        self.caching = False
        self.listeners: tuple[Callable[[], None], ...] = ()
        self._owner = owner
        self._name = name
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._info: LedgerInfo | None = None
        self._run: CachedRun | None = None
        self._sent: deque[_Group] = _NOTHING
        self._queued: deque[_Group] = _NOTHING
        self._sent_bytes = 0
        self._sent_entries = 0
        self._entries_max = context.settings.rollover_entries_max
        self._bytes_max = context.settings.rollover_bytes_max
        self._queued_bytes = 0
        self._refused = 0
        self._replays = 0
        self._roll_from = 0.0
        self._roll_at = 0.0
        self._rolling: asyncio.Task[None] | None = None
        self._creating: asyncio.Task[LedgerWriter | MagnetarError] | None = None
        self._notifying = False
        self._failed_why = "", 0.0
        """Why appends failed last, and when (loop time)."""

    @property
    def pending(self) -> int:
        """The number of groups that are not completed."""
        return len(self._sent) + len(self._queued)

    @property
    def rolling(self) -> bool:
        return self._rolling is not None

    def append(self, entries: list[bytes], on_appended: OnAppended) -> None:
        """Appends entries as a group; calls `on_appended(ledger, first entry, None)` once durable.

        On failure it calls `on_appended(-1, -1, error)`. Never calls back from inside the call.
        """
        if self.error is not None:
            self._refuse(on_appended, self.error)
        elif self.writer is None or self._rolling is not None or self._refused or self._due():
            self._queue(entries, on_appended)
        else:
            size = self.writer.append(entries, self._appended)
            self._sent.append((entries, size, on_appended, None))
            self._sent_bytes += size
            self._sent_entries += len(entries)

    def _due(self) -> bool:
        """Whether the ledger must be closed before it takes another group."""
        now = self._context.clock.monotonic()
        if self._sent_entries >= self._entries_max or self._sent_bytes >= self._bytes_max:
            return now >= self._roll_from
        return now >= self._roll_at and self._sent_entries > 0

    def _appended(self, first_entry: int, error: MagnetarError | None) -> None:
        if error is not None:
            self._failed(error)
            return
        entries, size, on_appended, _ = self._sent.popleft()
        info = self._info
        assert info is not None  # noqa: S101  (set with the writer that calls back)
        self.index.grow(info, len(entries), size)
        if self.caching:
            run = self._run
            if run is None or run.next_entry != first_entry:
                self._run = run = self._owner.run_of(info.ledger_id, first_entry)
            self._context.cache.add(run, entries, size)
        self._replays = 0
        on_appended(info.ledger_id, first_entry, None)
        if self._refused:
            self._answer_refused()
        if self.listeners and not self._notifying:
            # Once for all groups of one fsync: they complete in one turn of the loop.
            self.notify()

    def notify(self) -> None:
        """Calls the listeners in the loop's next turn."""
        if not self._notifying:
            self._notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._notifying = False
        for listener in self.listeners:
            listener()

    def _queue(self, entries: list[bytes], on_appended: OnAppended) -> None:
        size = sum(map(len, entries))
        line = self._queued or self._sent
        if line and (refusal := line[-1][3]) is not None:
            # A smaller group must not overtake a refused one of the same producer.
            self._refuse(on_appended, refusal)
            return
        # If nothing waits, a group of any size is queued: its refusal might have no place in line,
        # and the next group would overtake it.
        bytes_max = self._context.settings.pending_bytes_max
        if self._queued_bytes and self._queued_bytes + size > bytes_max:
            self._refuse(
                on_appended,
                TooManyPendingBytes(
                    f"{self._name}: {self._queued_bytes} bytes wait for a ledger already"
                ),
            )
            return
        if self._queued is _NOTHING:
            self._queued = deque()
        self._queued.append((entries, size, on_appended, None))
        self._queued_bytes += size
        self._start_rolling()

    def _refuse(self, on_appended: OnAppended, error: MagnetarError) -> None:
        """Completes with the error, after all earlier groups."""
        line = self._queued or self._sent
        if line:
            line.append(([], 0, on_appended, error))
            if line is self._sent:
                self._refused += 1
        else:
            self._loop.call_soon(on_appended, -1, -1, error)

    def _answer_refused(self) -> None:
        while self._sent and self._sent[0][3] is not None:
            _, _, on_appended, error = self._sent.popleft()
            self._refused -= 1
            on_appended(-1, -1, error)

    def _send_queued(self) -> None:
        """Sends the queued groups, until the ledger is due for rollover again."""
        writer = self.writer
        while self._queued and writer is not None and not self._due():
            group = self._queued.popleft()
            entries, size, _, refusal = group
            self._queued_bytes -= size
            self._sent.append(group)
            if refusal is None:
                writer.append(entries, self._appended)
                self._sent_bytes += size
                self._sent_entries += len(entries)
            else:
                self._refused += 1
        if not self._queued:
            self._queued = _NOTHING
        self._answer_refused()

    def _fail_all(self, error: MagnetarError) -> None:
        """Fails all groups, in order; groups that were sent may be durable nevertheless."""
        groups = [*self._sent, *self._queued]
        self._sent.clear()
        self._queued.clear()
        self._queued_bytes = self._refused = 0
        if self.writer is not None:
            self.writer.fail(error)  # it must not call back for the groups that fail here
        for _, _, on_appended, refusal in groups:
            on_appended(-1, -1, refusal or error)

    def _failed(self, error: MagnetarError) -> None:
        """Queues all sent groups again, before the queued ones: the ledger failed, and they with
        it.

        The writer calls back for each of them; the first call handles all.
        """
        if not self._sent:
            return
        if isinstance(error, LedgerFenced):
            self.fence(ManagedLedgerFenced(f"{self._name}: {error}"))
            return
        log.warning(
            "append failed, will continue in another ledger",
            managed_ledger=self._name,
            error=str(error),
        )
        self._queued = deque([*self._sent, *self._queued])
        self._queued_bytes = sum(size for _, size, _, _ in self._queued)
        self._sent = deque()
        self._refused = 0
        self._replays += 1
        if self._replays > REPLAYS_MAX:
            self._fail_all(error)
        self._start_rolling()

    def _start_rolling(self) -> None:
        if self._rolling is None:
            task = self._context.tasks.start(self._roll(), f"roll {self._name}")
            if task is None:
                self._fail_all(ManagedLedgerClosed(f"{self._name}: the broker is stopping"))
            self._rolling = task

    async def _roll(self) -> None:
        """Closes the ledger, and creates the next one if groups are queued."""
        error: MagnetarError | None = PersistenceError(f"{self._name}: rollover was interrupted")
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                await self._close_ledger()
                while self._queued:
                    await self._open_ledger()
                    self._send_queued()
                    if self._queued:
                        await self._close_ledger()
            error = None
        except (LedgerFenced, ManagedLedgerFenced) as failure:
            error = ManagedLedgerFenced(f"{self._name}: {failure}")
            self._end(AppenderState.FENCED, error)
        except TimeoutError:
            error = PersistenceError(f"{self._name}: no ledger within {CREATE_TIMEOUT_S:g} s")
        except MagnetarError as failure:
            error = failure
        finally:
            self._rolling = None
            if error is not None and (self._sent or self._queued):
                self._log_failure(str(error))
                self._fail_all(error)

    def _log_failure(self, reason: str) -> None:
        """Logs why appends fail, unless it is what was said a moment ago: clients try again."""
        now = self._loop.time()
        (former, at), self._failed_why = self._failed_why, (reason, now)
        if reason != former or now - at >= FAILURE_QUIET_S:
            log.warning("no writable ledger, appends fail", managed_ledger=self._name, error=reason)

    async def _close_ledger(self) -> None:
        writer, info = self.writer, self._info
        if writer is None or info is None:
            return
        closed = await writer.close()
        info.closed_ms = closed.closed_ms
        self.writer = self._info = self._run = None
        self._owner.ledger_ended(info)

    async def _open_ledger(self) -> None:
        # A ledger that is created after the roll timed out is on record nevertheless. The next roll
        # uses it, even if it was created in the same turn of the loop as the timeout.
        creating = self._creating
        if creating is None or _failed(creating):
            creating = self._context.tasks.start(self._create(), f"next ledger of {self._name}")
            if creating is None:
                raise ManagedLedgerClosed(f"{self._name}: the broker is stopping")
            self._creating = creating
        writer = await asyncio.shield(creating)
        self._creating = None
        if isinstance(writer, MagnetarError):
            raise writer
        self._info = self.index.get(writer.ledger_id)
        self.writer = writer
        self._sent_bytes = self._sent_entries = 0
        if self._sent is _NOTHING:
            self._sent = deque()
        settings, now = self._context.settings, self._context.clock.monotonic()
        self._roll_from = now + settings.rollover_ms_min / 1000
        self._roll_at = now + settings.rollover_ms_max / 1000

    async def _create(self) -> LedgerWriter | MagnetarError:
        """Creates the next ledger; returns the error, since the roll may have timed out."""
        try:
            return await self._owner.create_ledger()
        except MagnetarError as error:
            return error

    def roll_if_aged(self) -> None:
        """Closes the newest ledger if it is past its age and has nothing in flight.

        It has entries: a ledger is created for a group, and closed if it fails to take that group.
        """
        if (
            self.writer is not None
            and self.error is None
            and not self._sent
            and self._context.clock.monotonic() >= self._roll_at
        ):
            self._start_rolling()

    @property
    def has_failed(self) -> bool:
        """Whether the newest ledger has failed, and is not closed yet."""
        return self.writer is not None and self.writer.error is not None

    async def roll_over(self) -> None:
        """Closes the newest ledger once its groups are complete; the next append opens another."""
        if self.writer is not None and self.error is None:
            self._start_rolling()
        while (rolling := self._rolling) is not None:
            await asyncio.shield(rolling)

    def _end(self, state: AppenderState, error: MagnetarError) -> None:
        # If the managed ledger is not owned here, its termination did not take effect.
        unowned = state is AppenderState.FENCED and self.state is AppenderState.TERMINATED
        if self.error is None or unowned:
            self.state, self.error = state, error
            if state is AppenderState.FENCED:
                self._owner.owner_changed(error)

    def fence(self, error: MagnetarError) -> None:
        """Fails all pending and later groups: another owner wrote."""
        self._end(AppenderState.FENCED, error)
        self._fail_all(error)

    def terminated(self) -> None:
        """Restores the terminated state when the managed ledger is opened."""
        self._end(AppenderState.TERMINATED, TopicTerminated(TERMINATED_TEXT))

    def close_now(self) -> None:
        """Accepts no more groups; pending ones fail."""
        if self.state is not AppenderState.FENCED:
            self.state = AppenderState.CLOSED
            self.error = ManagedLedgerClosed(f"{self._name} is closed")
        assert self.error is not None  # noqa: S101  (FENCED has one)
        self._fail_all(self.error)

    async def finish(self, state: AppenderState) -> None:
        """Accepts no more groups, completes the pending ones, and closes the ledger."""
        if self.error is not None:
            if self.state is not AppenderState.TERMINATED:
                return  # a termination may still be under way: wait for it
        elif state is AppenderState.TERMINATED:
            self.terminated()
        else:
            self._end(state, ManagedLedgerClosed(f"{self._name} is closed"))
        while (rolling := self._rolling) is not None:
            await asyncio.shield(rolling)
        if self.writer is not None:
            self._start_rolling()
        while (rolling := self._rolling) is not None:
            await asyncio.shield(rolling)


def _failed(creating: "asyncio.Task[LedgerWriter | MagnetarError]") -> bool:
    """Whether a creation has ended without a ledger."""
    if not creating.done():
        return False
    if creating.cancelled() or creating.exception() is not None:
        return True
    return isinstance(creating.result(), MagnetarError)


_NOTHING: Final[deque[_Group]] = deque(maxlen=0)
"""Stands for an empty queue until one is needed: most topics are idle."""

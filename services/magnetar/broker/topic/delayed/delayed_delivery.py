"""Delayed delivery of one topic: the time index, its timer, and when it is stored.

A message with a delivery time to come is added to the index in the turn of the loop that makes it
readable, so no consumer of a shared type gets it before the index releases it. All subscriptions
use the one index; a subscription skips the entries in `future` when it reads, and gets the ones
that it has skipped once they are released (`MultipleConsumersDispatcher.released`).

Exclusive and Failover subscriptions do not use the index: they deliver in order, at once, as in
Pulsar. So does a topic whose policy `delayedDelivery` is not active. If the policy is switched off,
the messages that are delayed are delivered at once, and the stored index is deleted.

A release happens at the message's time (strict), or up to one tick earlier; and no more often than
once per tick, which the policy sets.
"""

import asyncio
import random
from typing import Any, Final, Protocol

from magnetar.broker.policies.applied_policies import AppliedPolicies
from magnetar.broker.topic.delayed.codec_v1 import PageInfo
from magnetar.broker.topic.delayed.limits import DelayLimits
from magnetar.broker.topic.delayed.operations import Operation, Operations
from magnetar.broker.topic.delayed.run_files import read_head, read_page, write_run
from magnetar.broker.topic.delayed.schedule import Run, Schedule
from magnetar.broker.topic.delayed.store import IndexStore
from magnetar.broker.topic.log_tail import read_tail
from magnetar.broker.topic.transactions.admission import UNDECIDED, Admission
from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError, NotAllowed, PersistenceError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.appender import OnAppended
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position_set import PositionSet
from magnetar.managed_ledger.record import DELAYED_CURSOR
from magnetar.policies.admission import DELAYED_DELIVERY
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import parse_metadata
from magnetar.wire.events import SendRun

RELEASED_PER_TURN_MAX: Final = 2_000
"""Messages released in one turn of the event loop; the others follow in the next."""
STRICT_TICK_MS_MAX: Final = 250
"""The longest tick of strict delivery, which is late by up to a tick."""
TICK_MS_MIN: Final = 10
TIMER_S_MAX: Final = 30.0
"""The longest wait of the timer: so late at most if the wall clock is set ahead."""
MEMORY_MOMENTS_FACTOR: Final = 10
"""If storing runs fails, delayed messages are refused at this multiple of `memory_moments`."""
WAIT_MOMENTS_FACTOR: Final = 2
"""At this multiple of `memory_moments` delayed messages wait until the run is stored: a run gets
few turns while producers send without pause."""
READS_AT_ONCE_MAX: Final = 16
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 60.0
MOMENT_MEMORY_BYTES: Final = 48
"""What one moment takes in memory, about."""

log = get_logger("magnetar.topic.delayed")


class DelayedTopic(Protocol):
    """A topic, seen from its delayed delivery."""

    full_name: str
    managed_ledger: ManagedLedger

    @property
    def policies(self) -> AppliedPolicies:
        """The policies in force for the topic."""

    def set_delayed(self, delayed: PositionSet) -> None:
        """Gives all subscriptions, present and later ones, the entries that are delayed."""

    def released(self, positions: PositionSet) -> None:
        """Notifies all subscriptions of entries whose time has come."""

    def resume_gate(self) -> None:
        """Asks for the admission of held messages again."""


class DelayedDelivery:
    """The delayed messages of one topic."""

    __slots__ = (
        "_backoff",
        "_changing",
        "_clock",
        "_ended",
        "_failure",
        "_flush_failed",
        "_flushing",
        "_handle",
        "_limits",
        "_loading",
        "_preparing",
        "_removing",
        "_tasks",
        "_ticked_s",
        "_topic",
        "_wakes_ms",
        "operations",
        "schedule",
        "store",
    )

    def __init__(
        self, topic: DelayedTopic, limits: DelayLimits, clock: SteadyClock, tasks: TaskSet
    ) -> None:
        self.schedule: Schedule | None = None
        """None until the first delayed message."""
        self.operations = Operations()
        self.store = IndexStore(topic.managed_ledger, self._contents, clock, tasks, self.operations)
        self._topic = topic
        self._limits = limits
        self._clock = clock
        self._tasks = tasks
        self._backoff = Backoff(RETRY_S, RETRY_S_MAX, random)
        self._changing = asyncio.Lock()
        """Held while the stored index is created or deleted."""
        self._failure: MagnetarError | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._wakes_ms = 0
        self._ticked_s = 0.0
        self._ended = self._preparing = self._removing = False
        self._flushing = self._loading = False
        self._flush_failed = False
        """Whether the last attempt to store a run failed."""

    # -- policies and time

    def _policy(self) -> dict[str, Any]:
        value: dict[str, Any] = self._topic.policies.value(DELAYED_DELIVERY)
        return value

    @property
    def active(self) -> bool:
        """Whether messages are delayed."""
        return bool(self._policy()["active"])

    def _tick_ms(self) -> int:
        tick_ms = max(int(self._policy()["tickTime"]), TICK_MS_MIN)
        return min(tick_ms, STRICT_TICK_MS_MAX) if self._limits.strict else tick_ms

    def _early_ms(self) -> int:
        """How much earlier than at its time a message may be released."""
        return 0 if self._limits.strict else int(self._policy()["tickTime"])

    def _cutoff_ms(self) -> int:
        return self._clock.now_ms() + self._early_ms()

    # -- messages

    def admission(self, run: SendRun) -> Admission:
        """Returns whether messages with delivery times may be stored now."""
        policy = self._policy()
        if not policy["active"]:
            return None
        longest_ms = int(policy.get("maxDeliveryDelayInMillis") or 0)
        if 0 < longest_ms < max(run.delays_ms):
            return NotAllowed(f"Exceeds max allowed delivery delay of {longest_ms} milliseconds")
        if max(run.deliver_at_ms) <= self._cutoff_ms():
            return None
        schedule = self.schedule
        if schedule is not None:
            in_memory, limit = schedule.in_memory, self._limits.memory_moments
            if in_memory < limit * WAIT_MOMENTS_FACTOR:
                return None
            if self._flushing and not self._flush_failed:
                return UNDECIDED
            if in_memory < limit * MEMORY_MOMENTS_FACTOR:
                return None
            return PersistenceError(
                f"The index of the delayed messages of {self._topic.full_name} cannot be stored: "
                f"{schedule.in_memory} of them are in memory already"
            )
        if self._failure is not None:
            return self._failure
        if not self._preparing and not self._ended:
            preparing = self._prepare()
            self._preparing = self._start(preparing, "index of delayed messages")
        return UNDECIDED

    def _start(self, work: Any, what: str) -> bool:
        return self._tasks.start(work, f"{what} of {self._topic.full_name}") is not None

    async def _prepare(self) -> None:
        """Creates the cursor, before the first delayed message is stored."""
        try:
            async with self._changing:
                await self.store.create()
                if self.schedule is None and not self._ended:
                    self._begin(Schedule(self._cutoff_ms()), 0)
        except MagnetarError as error:
            self._failure = error  # refuses the messages that wait now
        finally:
            self._preparing = False
            try:
                self._topic.resume_gate()
            finally:
                self._failure = None

    def appending(self, run: SendRun, on_appended: OnAppended) -> OnAppended:
        """Returns the callback for the log, which adds the messages to the index."""

        def appended(ledger_id: int, first_entry: int, error: MagnetarError | None) -> None:
            # The log calls back in the turn that confirms the entry, before any read.
            schedule = self.schedule
            if error is None and schedule is not None and self.active:
                added_ms = [
                    at_ms
                    for entry_id, at_ms in enumerate(run.deliver_at_ms, first_entry)
                    if schedule.add(at_ms, ledger_id, entry_id)
                ]
                if added_ms:
                    self._added(min(added_ms))
            on_appended(ledger_id, first_entry, error)

        return appended

    def _added(self, time_ms: int) -> None:
        if self._handle is None or time_ms < self._wakes_ms:
            self._arm()
        schedule = self.schedule
        if schedule is not None and schedule.in_memory >= self._limits.memory_moments:
            self._flush_soon()

    async def delayed_until(self, position: Position) -> int | None:
        """Returns the delivery time of an entry that is delayed now, in ms; None if it is not."""
        if self.schedule is None or position not in self.schedule.future:
            return None
        entry = await self._topic.managed_ledger.read_entry(position)
        return parse_metadata(entry.data).deliver_at_time

    # -- load

    async def load(self) -> None:
        """Restores the stored index, if there is one, when the topic is loaded.

        Raises MagnetarError. The topic must not be served then: it would deliver messages early.
        """
        ledger, policies = self._topic.managed_ledger, self._topic.policies
        if not (DELAYED_CURSOR in ledger.cursors or DELAYED_CURSOR in ledger.broken_cursors):
            return
        if policies.known and not self.active:
            await policies.confirm()
            if not self.active:
                await ledger.delete_cursor(DELAYED_CURSOR)
                return
        snapshot = self.store.load()
        if snapshot is None:
            return
        schedule = Schedule(self._cutoff_ms())
        schedule.restore(snapshot.moments)
        for start in range(0, len(snapshot.runs), READS_AT_ONCE_MAX):
            ledgers = snapshot.runs[start : start + READS_AT_ONCE_MAX]
            heads = await asyncio.gather(*map(self._load_head, ledgers))
            for ledger_id, pages in zip(ledgers, heads, strict=True):
                schedule.restore_run(ledger_id, pages)

        def add(entry: Entry, metadata: MessageMetadata) -> None:
            if metadata.deliver_at_time > 0:
                schedule.add(metadata.deliver_at_time, entry.ledger_id, entry.entry_id)

        replayed = await read_tail(ledger, snapshot.position, add)
        self._begin(schedule, replayed)
        if replayed or self.store.log.record.kept:
            self.store.take()

    async def _load_head(self, ledger_id: int) -> list[PageInfo]:
        self.operations.begun(Operation.LOAD)
        try:
            pages = await read_head(self.store.log, ledger_id)
        except BaseException:
            self.operations.failed(Operation.LOAD)
            raise
        self.operations.succeeded(Operation.LOAD)
        return pages

    def _begin(self, schedule: Schedule, replayed: int) -> None:
        self.schedule = schedule
        self.store.begin(replayed)
        self._topic.set_delayed(schedule.future)
        self.tick()

    # -- release

    def _arm(self) -> None:
        """Sets the timer for the next release."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        schedule = self.schedule
        if schedule is None or self._ended or (next_ms := schedule.next_ms) is None:
            return
        loop = asyncio.get_running_loop()
        rest_s = self._ticked_s + self._tick_ms() / 1000 - self._clock.monotonic()
        wait_s = (next_ms - self._early_ms() - self._clock.now_ms()) / 1000
        self._wakes_ms = next_ms
        self._handle = loop.call_later(min(max(wait_s, rest_s, 0.0), TIMER_S_MAX), self.tick)

    def tick(self) -> None:
        """Releases what is due, and prepares what comes next."""
        self._handle = None
        schedule = self.schedule
        if schedule is None or self._ended:
            return
        released, more = schedule.release(self._cutoff_ms(), RELEASED_PER_TURN_MAX)
        if released:
            self._topic.released(released)
        if any(run.exhausted for run in schedule.runs):
            for ledger_id in schedule.drop_exhausted():
                self.store.run_dropped(ledger_id)
            self.store.take()
        if not self._loading and any(run.wants_page for run in schedule.runs):
            self._loading = self._start(self._load_pages(schedule), "pages of the index")
        if more:
            self._wakes_ms = 0
            self._handle = asyncio.get_running_loop().call_later(0, self.tick)
        else:
            self._ticked_s = self._clock.monotonic()
            self._arm()

    async def _load_pages(self, schedule: Schedule) -> None:
        """Reads the pages that come next. A page that cannot be read delays later releases."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX, random)
        try:
            while runs := [run for run in schedule.runs if run.wants_page]:
                failed = False
                for start in range(0, len(runs), READS_AT_ONCE_MAX):
                    batch = runs[start : start + READS_AT_ONCE_MAX]
                    loaded = await asyncio.gather(*(self._load_page(run) for run in batch))
                    failed = failed or not all(loaded)
                if self._ended or self.schedule is not schedule:
                    return
                if self._handle is not None:
                    self._handle.cancel()
                self.tick()
                if failed:
                    await asyncio.sleep(backoff.failed_s())
        finally:
            self._loading = False

    async def _load_page(self, run: Run) -> bool:
        run.loading = True
        self.operations.begun(Operation.LOAD)
        try:
            run.loaded(await read_page(self.store.log, run.ledger_id, run.next_page))
        except MagnetarError as error:
            self.operations.failed(Operation.LOAD)
            log.warning(
                "page of the index of delayed messages not read, will retry; the messages in it "
                "are delivered late", topic=self._topic.full_name, error=str(error),
            )  # fmt: skip
            return False
        finally:
            run.loading = False
        self.operations.succeeded(Operation.LOAD)
        return True

    # -- store

    def _contents(self) -> tuple[list[int], bytes]:
        schedule = self.schedule
        if schedule is None:
            return [], b""
        return [run.ledger_id for run in schedule.runs], schedule.stored

    def _flush_soon(self) -> None:
        if not self._flushing and not self._ended:
            self._flushing = self._start(self._flush(), "flush of delayed messages")

    async def _flush(self) -> None:
        """Moves the moments in memory to a run."""
        schedule = self.schedule
        try:
            while (
                schedule is not None
                and self.schedule is schedule
                and not self._ended
                and schedule.in_memory >= self._limits.memory_moments
            ):
                try:
                    await self._flush_once(schedule)
                    self._backoff = Backoff(RETRY_S, RETRY_S_MAX, random)
                    self._flush_failed = False
                    self._topic.resume_gate()
                except (MagnetarError, TimeoutError) as error:
                    if self._ended:
                        return
                    log.warning(
                        "index of delayed messages not stored, will retry",
                        topic=self._topic.full_name,
                        error=str(error) or type(error).__name__,
                    )
                    self._flush_failed = True
                    self._topic.resume_gate()  # refuses the messages that wait now
                    await asyncio.sleep(self._backoff.failed_s())
        finally:
            self._flushing = False
            self._topic.resume_gate()

    async def _flush_once(self, schedule: Schedule) -> None:
        cursor_log = self.store.log
        moments = schedule.freeze()
        self.operations.begun(Operation.CREATE)
        try:
            await self._store_run(schedule, cursor_log, moments)
        except BaseException:
            self.operations.failed(Operation.CREATE)
            raise
        self.operations.succeeded(Operation.CREATE)

    async def _store_run(
        self, schedule: Schedule, cursor_log: CursorLog, moments: list[int]
    ) -> None:
        writer = await cursor_log.create_kept()
        self.store.run_created(writer.ledger_id)
        try:
            pages, ordered = await write_run(writer, moments)
            await cursor_log.keep_ledger(writer.ledger_id)
        except BaseException:
            self.store.run_dropped(writer.ledger_id)
            self._start(self._discard(cursor_log, writer.ledger_id), "run")
            raise
        schedule.flushed(writer.ledger_id, pages, ordered)
        self.store.take()

    async def _discard(self, cursor_log: CursorLog, ledger_id: int) -> None:
        """Deletes the ledger of a run that could not be written; the next instance does it, too."""
        try:
            await cursor_log.drop_kept((ledger_id,))
        except MagnetarError as error:
            log.info("run not deleted now", topic=self._topic.full_name, error=str(error))

    def sweep(self) -> None:
        """Stores the index if that is due by time, and forgets trimmed entries."""
        schedule = self.schedule
        if schedule is not None and not self._ended:
            schedule.forget_before(self._topic.managed_ledger.first_position.ledger_id)
            self.store.sweep()

    # -- end

    def policies_changed(self) -> None:
        """Applies a changed policy: delivers everything at once if it is no longer active."""
        if self.schedule is None or self._ended:
            return
        if self.active or not self._topic.policies.known:
            self._arm()
        elif not self._removing:
            self._removing = self._start(self._remove(), "removal of the index")

    async def _remove(self) -> None:
        """Releases all messages and deletes the stored index."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX, random)
        try:
            while not self._ended and not self.active:
                try:
                    await self._topic.policies.confirm()
                    async with self._changing:
                        await self._remove_once()
                    return
                except MagnetarError as error:
                    log.warning(
                        "index of delayed messages not deleted, will retry",
                        topic=self._topic.full_name,
                        error=str(error),
                    )
                await asyncio.sleep(backoff.failed_s())
        finally:
            self._removing = False

    async def _remove_once(self) -> None:
        if self.active or self._ended:
            return
        schedule, self.schedule = self.schedule, None
        self.store.end()
        ledger = self._topic.managed_ledger
        self.store = IndexStore(ledger, self._contents, self._clock, self._tasks, self.operations)
        if schedule is not None:
            released = schedule.release_all()
            self._topic.released(released)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if DELAYED_CURSOR in ledger.cursors:
            await ledger.delete_cursor(DELAYED_CURSOR)

    def end(self) -> None:
        """Stops, and starts to store the index: the topic closes."""
        self._ended = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.schedule is not None:
            if self.store.entries_since:
                self.store.take()
            self.store.end()

    @property
    def delayed(self) -> PositionSet | None:
        """The entries that are delayed; None if there never was one."""
        return None if self.schedule is None else self.schedule.future

    @property
    def memory_bytes(self) -> int:
        """About the memory that the index takes."""
        schedule = self.schedule
        if schedule is None:
            return 0
        return schedule.future.memory_bytes + schedule.loaded * MOMENT_MEMORY_BYTES

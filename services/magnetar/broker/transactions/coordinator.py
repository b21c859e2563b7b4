"""A transaction coordinator: begins transactions, records their participants, and ends them.

The record of a transaction changes in memory first (`transitions`), and is then written with the
next group (`writer`). The coordinator answers no request and notifies no participant before the
change is durable. If a write fails for good, the coordinator has failed: its memory may be ahead of
the store, so it answers nothing more, and the next request loads it again (`coordinators`).

A request has a callback, which gets the answer: thousands of transactions at once need no tasks.
The end of a transaction continues without its client: the coordinator writes the decision, notifies
the participants, at once those that need no wait, and keeps the outcome. A new owner of the
coordinator repeats this for the transactions that are ending.

A joint commit ends several transactions of the coordinator at once. The write of one record, that
of the leading transaction, decides all of them: it lists the others. Until it is durable, the
others stay open in the store, and nothing else can end them here. Afterwards each is committed on
its own, and the leading one last. A new owner does the same for a list that it finds.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from magnetar.broker.transactions import transitions
from magnetar.broker.transactions.counts import CoordinatorCounts
from magnetar.broker.transactions.groups import GroupWriter
from magnetar.broker.transactions.outcomes import Outcomes
from magnetar.broker.transactions.participants import Call, Notifier
from magnetar.broker.transactions.shares import (
    OPEN_MAX,
    OPEN_NAMES_BYTES_MAX,
    Shares,
    names_bytes,
)
from magnetar.broker.transactions.writer import RecordWriter, read_records, take_over
from magnetar.core.backoff import Random
from magnetar.core.errors import (
    InvalidTxnStatus,
    MagnetarError,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.core.futures import settle
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import Record
from magnetar.transactions.model import (
    NOT_OWNER_TEXT,
    Outcome,
    SubscriptionInTxn,
    TransactionRecord,
    TxnId,
    TxnState,
)
from magnetar.transactions.records import (
    Head,
    decode_record,
    encode_record,
    number_of,
)

DEADLINES_SPARE: Final = 1_000
"""Deadlines of ended transactions that may stay in the heap, in addition to as many as are open."""

log = get_logger("magnetar.transactions")

T = TypeVar("T")

OnDone = Callable[[MagnetarError | None], object]
"""Called once with the answer of a request: None for success."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a command: its role, its rights, its connection."""

    role: str | None
    """None without authentication."""
    super_user: bool
    connection: object
    """The session, which identifies the connection."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a coordinator."""

    open_max: int = OPEN_MAX
    names_bytes_max: int = OPEN_NAMES_BYTES_MAX
    retention_ms: int = 600_000
    """How long outcomes are kept."""


class _Active:
    """A transaction that has not ended: its newest record, and what waits for its end."""

    __slots__ = ("joining", "names_bytes", "record", "waiting")

    def __init__(self, record: TransactionRecord) -> None:
        self.record = record
        self.names_bytes = names_bytes(record)
        """As counted in `Shares`: the record of an ended transaction has no names."""
        self.waiting: list[OnDone] | None = None
        """Called when all participants have made the outcome durable. None before the decision."""
        self.joining: list[OnDone] | None = None
        """While a joint commit is being written: called when it is durable. One list for all."""

    def answer(self, error: MagnetarError | None) -> None:
        """Answers all that wait for the end."""
        waiting, self.waiting = self.waiting or (), []
        for on_done in waiting:
            # Each has its own error: a shared one would collect all their tracebacks.
            on_done(None if error is None else TransactionCoordinatorNotFound(error.message))


class Coordinator:
    """Serves the transactions of one coordinator. `load` returns one."""

    def __init__(
        self,
        id_: int,
        groups: GroupWriter,
        taken: tuple[Record, Head],
        notifier: Notifier,
        clock: SteadyClock,
        limits: Limits,
    ) -> None:
        self.id = id_
        self.epoch = taken[1].epoch
        self.counts = CoordinatorCounts()
        self.recovery_began_ms = self.recovery_ended_ms = clock.now_ms()
        self._notifier = notifier
        self._clock = clock
        self._limits = limits
        self._active: dict[int, _Active] = {}
        self._shares = Shares(id_, limits.open_max, limits.names_bytes_max)
        self._deadlines: list[tuple[float, int]] = []
        """When open transactions are aborted, by the monotonic clock: a heap."""
        self._outcomes = Outcomes(limits.retention_ms, clock)
        self._tasks = TaskSet(f"transaction coordinator {id_}")
        self._writer = RecordWriter(groups, id_, taken, self._value_of)

    @classmethod
    async def load(
        cls,
        id_: int,
        groups: GroupWriter,
        broker: str,
        notifier: Notifier,
        clock: SteadyClock,
        random: Random,
        limits: Limits,
    ) -> "Coordinator":
        """Takes the coordinator over and continues the ends under way; raises MetadataError."""
        began_ms = clock.now_ms()
        taken = await take_over(groups.store, id_, broker, random)
        coordinator = cls(id_, groups, taken, notifier, clock, limits)
        coordinator.recovery_began_ms = began_ms
        coordinator._recover(await read_records(groups.store, id_))
        coordinator.recovery_ended_ms = clock.now_ms()
        return coordinator

    @property
    def failed(self) -> bool:
        """Whether a write has failed for good, so that the coordinator answers no more requests."""
        return self._writer.failure is not None

    @property
    def active(self) -> Mapping[TxnId, TransactionRecord]:
        """The transactions that have not ended, in the order of their beginning."""
        return MappingProxyType(
            {TxnId(self.id, number): txn.record for number, txn in self._active.items()}
        )

    @property
    def active_count(self) -> int:
        """The number of transactions that have not ended."""
        return len(self._active)

    @property
    def oldest_age_s(self) -> float:
        """The age of the oldest transaction that has not ended, in seconds; 0 without one."""
        oldest = next(iter(self._active.values()), None)
        if oldest is None:
            return 0.0
        return max(self._clock.judged_ms() - oldest.record.opened_ms, 0) / 1000

    @property
    def last_number(self) -> int:
        """The number of the newest transaction, -1 if there never was one."""
        return self._writer.next_number - 1

    @property
    def groups_written(self) -> int:
        """The number of groups of writes to the metadata store."""
        return self._writer.groups

    async def begin(self, owner: str | None, timeout_ms: int) -> TxnId:
        """Begins a transaction, which is durable on return; raises as `request_begin` does."""
        return await _done(lambda done: self.request_begin(owner, timeout_ms, done))

    def request_begin(self, owner: str | None, timeout_ms: int, on_done: OnDone) -> TxnId:
        """Begins a transaction; calls back once it is durable. Never at once.

        Raises NotAllowed for a timeout out of bounds, and TransactionCoordinatorNotFound, on which
        clients retry, if too many are open.
        """
        record = transitions.begun(owner, timeout_ms, self._clock.now_ms())
        self._shares.check_begin(owner)
        number = self._writer.next_number
        self._writer.write(number, on_done)
        self._writer.next_number += 1
        self._keep(number, record)
        self.counts.begun += 1
        return TxnId(self.id, number)

    async def add(
        self,
        number: int,
        caller: Caller,
        topics: Iterable[str] = (),
        subscriptions: Iterable[SubscriptionInTxn] = (),
    ) -> None:
        """Adds participants; they are durable on return."""
        await _done(lambda done: self.request_add(number, caller, topics, subscriptions, done))

    def request_add(
        self,
        number: int,
        caller: Caller,
        topics: Iterable[str],
        subscriptions: Iterable[SubscriptionInTxn],
        on_done: OnDone,
    ) -> None:
        """Adds participants; calls back once they are durable. Never at once.

        Calls back with TransactionNotFound and InvalidTxnStatus as `request_end` does. Raises
        NotAllowed (`transitions.with_participants`), and TransactionCoordinatorNotFound, on which
        clients retry, if the participants of all open transactions have too many names.
        """
        txn_id = TxnId(self.id, number)
        try:
            txn = self._active.get(number)
            if txn is None:
                raise transitions.not_found(txn_id)
            self._check_owner(txn_id, txn.record, caller)
            record = transitions.with_participants(txn_id, txn.record, topics, subscriptions)
        except (InvalidTxnStatus, TransactionNotFound) as refusal:
            self._refuse(number, refusal, on_done)
            return
        size_bytes = names_bytes(record)
        more_bytes = size_bytes - txn.names_bytes
        self._shares.check_names(record.owner, more_bytes)
        # Wait for a write even if the record has them already: theirs may still be under way.
        self._writer.write(number, on_done)
        txn.record, txn.names_bytes = record, size_bytes
        self._shares.add(record.owner, 0, more_bytes)

    async def end(
        self, number: int, caller: Caller, outcome: Outcome, joined: tuple[int, ...] = ()
    ) -> None:
        """Ends a transaction; returns when every participant has made the outcome durable."""
        await _done(lambda done: self.request_end(number, caller, outcome, done, joined))
        self.outcome_sent(number, caller.connection)

    def request_end(
        self,
        number: int,
        caller: Caller,
        outcome: Outcome,
        on_done: OnDone,
        joined: tuple[int, ...] = (),
    ) -> None:
        """Ends a transaction; calls back when every participant has made the outcome durable.

        A commit may join other open transactions: all are committed, or none. Succeeds again for a
        client that repeats the request, except on a connection that has the outcome
        (`outcome_sent`). Calls back with TransactionNotFound, and with InvalidTxnStatus if the
        opposite was decided, also for one of `joined`. Raises NotAllowed.

        These two are the outcome for the client. So the store confirms first that no other broker
        serves the coordinator, and may have decided otherwise, and that the opposite is durable.
        """
        try:
            self._request_end(number, caller, outcome, on_done, joined)
        except (InvalidTxnStatus, TransactionNotFound) as refusal:
            self._refuse(number, refusal, on_done)

    def _request_end(
        self,
        number: int,
        caller: Caller,
        outcome: Outcome,
        on_done: OnDone,
        joined: tuple[int, ...],
    ) -> None:
        txn_id = TxnId(self.id, number)
        transitions.check_joint(txn_id, outcome, joined)
        txn = self._active.get(number)
        if txn is not None and txn.joining is not None:
            # The answer depends on the decision that is being written.
            txn.joining.append(
                lambda error: self._end_later(error, number, caller, outcome, on_done, joined)
            )
            return
        if txn is None:
            self._check_committed(joined)
            ended = self._outcomes.get(number)
            if ended is None:
                raise transitions.not_found(txn_id)
            self._check_owner(txn_id, ended.record, caller)
            if ended.was_answered(caller.connection):
                raise transitions.not_found(txn_id)
            transitions.ending(txn_id, ended.record, outcome, 0)
            on_done(None)
            return
        self._check_owner(txn_id, txn.record, caller)
        self._check_joined(txn.record, caller, joined)
        self._decide(number, txn, outcome, on_done, joined)

    def _refuse(self, number: int, refusal: MagnetarError, on_done: OnDone) -> None:
        """Calls back with a refusal once the record that it stands on is durable."""
        self._writer.write(number, lambda error: on_done(error or refusal))

    def outcome_sent(self, number: int, connection: object) -> None:
        """Records that a connection has the outcome of a transaction.

        Not for a request whose deadline has passed: its client has another answer, and repeats it.
        """
        # Without retention, the outcome is forgotten at once.
        if (ended := self._outcomes.get(number)) is not None:
            ended.answered(connection)

    def _end_later(
        self,
        error: MagnetarError | None,
        number: int,
        caller: Caller,
        outcome: Outcome,
        on_done: OnDone,
        joined: tuple[int, ...],
    ) -> None:
        """Ends a transaction once the joint commit that lists it is durable, or was not written."""
        if error is None:
            try:
                self.request_end(number, caller, outcome, on_done, joined)
            except MagnetarError as refusal:
                error = refusal
        if error is not None:
            on_done(error)

    def tick(self) -> None:
        """Aborts the transactions past their deadline, and deletes old outcomes."""
        if self.failed:
            return
        now_s = self._clock.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heapq.heappop(self._deadlines)
            txn = self._active.get(number)
            if txn is not None and txn.record.state is TxnState.OPEN and txn.joining is None:
                self.counts.timed_out += 1
                self._decide(number, txn, Outcome.ABORT, _ignore)
        if forgotten := self._outcomes.forget():
            self._writer.write_later(forgotten)

    async def close(self) -> None:
        """Stops serving; requests under way get TransactionCoordinatorNotFound."""
        self._writer.close()
        await self._tasks.stop()
        self._release(self._active, self._not_served())
        for txn in list(self._active.values()):
            txn.answer(self._not_served())

    def _recover(self, records: list[Record]) -> None:
        """Loads the stored records, and continues the ends under way."""
        ended: list[tuple[int, TransactionRecord]] = []
        for stored in sorted(records, key=lambda record: number_of(record.key)):
            record = decode_record(stored.key, stored.value)
            number = number_of(stored.key)
            if record.state.ended:
                ended.append((number, record))
            else:
                self._keep(number, record)
        for number, record in sorted(ended, key=lambda pair: pair[1].ended_ms or 0):
            self._outcomes.add(number, record)
        for number, txn in list(self._active.items()):
            if (outcome := txn.record.state.outcome) is not None:
                self._decide(number, txn, outcome, _ignore)

    def _keep(self, number: int, record: TransactionRecord) -> None:
        txn = self._active[number] = _Active(record)
        self._shares.add(record.owner, 1, txn.names_bytes)
        if record.state is not TxnState.OPEN:
            return
        # Never longer than the timeout: the wall clock may have been ahead when it was begun.
        timeout_ms = record.deadline_ms - record.opened_ms
        left_ms = min(record.deadline_ms - self._clock.judged_ms(), timeout_ms)
        heapq.heappush(self._deadlines, (self._clock.monotonic() + left_ms / 1000, number))
        if len(self._deadlines) > 2 * len(self._active) + DEADLINES_SPARE:
            # Most transactions end long before their deadline.
            self._deadlines = [pair for pair in self._deadlines if pair[1] in self._active]
            heapq.heapify(self._deadlines)

    def _decide(
        self,
        number: int,
        txn: _Active,
        outcome: Outcome,
        on_done: OnDone,
        joined: tuple[int, ...] = (),
    ) -> None:
        """Decides a transaction unless it has this decision; calls back when it has ended.

        Raises InvalidTxnStatus, and TransactionCoordinatorNotFound if the coordinator has failed.
        """
        if self._writer.failure is not None:
            raise TransactionCoordinatorNotFound(self._writer.failure.message)
        stored = txn.record.state is not TxnState.OPEN
        now_ms = self._clock.now_ms()
        record = transitions.ending(TxnId(self.id, number), txn.record, outcome, now_ms, joined)
        if txn.waiting is not None:
            txn.waiting.append(on_done)
        elif stored:
            txn.waiting = [on_done]
            self._decided(number, txn, None)
        else:
            self._writer.write(number, lambda error: self._decided(number, txn, error))
            txn.record, txn.waiting = record, [on_done]
            if joined:
                self._hold(joined)

    def _decided(self, number: int, txn: _Active, error: MagnetarError | None) -> None:
        if error is not None:
            self._release(txn.record.joined, error)
            txn.answer(error)
        elif txn.record.state.ended:
            self._ended(number, txn)
        elif txn.record.joined:
            self._commit_joined(number, txn)
        else:
            self._notify(number, txn)

    def _hold(self, joined: tuple[int, ...]) -> None:
        """Keeps open transactions from ending while the joint commit that lists them is written."""
        waiting: list[OnDone] = []
        for number in joined:
            self._active[number].joining = waiting

    def _release(self, joined: Iterable[int], error: MagnetarError | None) -> None:
        """Ends a `_hold`, and then answers what waits for it."""
        waiting: list[OnDone] = []
        for number in joined:
            txn = self._active.get(number)
            if txn is not None and txn.joining is not None:
                waiting += txn.joining
                txn.joining.clear()  # those of one joint commit share the list
                txn.joining = None
        for on_decided in waiting:
            on_decided(error)

    def _commit_joined(self, number: int, txn: _Active) -> None:
        """Commits the transactions that a durable record lists, and then the one that leads."""
        held = [(at, self._active[at]) for at in txn.record.joined if at in self._active]
        left = 1 + len(held)

        def ended(error: MagnetarError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                txn.answer(error)
            elif not left:
                self._notify(number, txn)

        for other, joined in held:
            # All are decided before one of them is released.
            self._decide(other, joined, Outcome.COMMIT, ended)
        self._release(txn.record.joined, None)
        ended(None)

    def _notify(self, number: int, txn: _Active) -> None:
        """Notifies the participants, and ends the transaction once all have answered."""
        txn_id = TxnId(self.id, number)
        calls = self._notifier.begin(txn_id, txn.record)
        if not calls:
            self._notified(number, txn)
        elif not self._tasks.start(self._until_notified(number, txn, calls), f"end {txn_id}"):
            txn.answer(self._not_served())

    async def _until_notified(self, number: int, txn: _Active, calls: list[Call]) -> None:
        await self._notifier.notify(TxnId(self.id, number), calls)
        self._notified(number, txn)

    def _notified(self, number: int, txn: _Active) -> None:
        txn.record = transitions.ended(txn.record, self._clock.now_ms())
        self._writer.write_later((number,))
        self._ended(number, txn)

    def _ended(self, number: int, txn: _Active) -> None:
        del self._active[number]
        self._shares.add(txn.record.owner, -1, -txn.names_bytes)
        self._outcomes.add(number, txn.record)
        self.counts.ended(txn.record)
        txn.answer(None)

    def _check_joined(
        self, record: TransactionRecord, caller: Caller, joined: tuple[int, ...]
    ) -> None:
        """Raises unless the caller may commit these with a transaction, or has done so before."""
        if record.state is not TxnState.OPEN:
            self._check_committed(set(joined) - set(record.joined))
            return
        for number in joined:
            txn_id = TxnId(self.id, number)
            txn = self._active.get(number)
            if txn is None:
                raise transitions.not_found(txn_id)
            self._check_owner(txn_id, txn.record, caller)
            if txn.joining is not None:
                raise InvalidTxnStatus(f"Transaction {txn_id} is being committed with another one")
            transitions.check_joinable(txn_id, txn.record)

    def _check_committed(self, joined: Iterable[int]) -> None:
        """Raises InvalidTxnStatus if one of these is known not to be committed."""
        for number in joined:
            txn = self._active.get(number) or self._outcomes.get(number)
            if txn is not None:
                transitions.check_committed(TxnId(self.id, number), txn.record)

    def _value_of(self, number: int) -> bytes | None:
        """Returns the newest value of a transaction's record, None if it was deleted."""
        txn = self._active.get(number) or self._outcomes.get(number)
        return None if txn is None else encode_record(txn.record)

    def _check_owner(self, txn: TxnId, record: TransactionRecord, caller: Caller) -> None:
        """Raises TransactionNotFound unless the caller may change the transaction."""
        if record.owner is None or caller.super_user or caller.role == record.owner:
            return
        raise TransactionNotFound(f"Client ({caller.role}) {NOT_OWNER_TEXT} {txn} nor a super user")

    def _not_served(self) -> TransactionCoordinatorNotFound:
        return TransactionCoordinatorNotFound(
            f"Transaction coordinator {self.id} is not served here any more"
        )


def _ignore(_error: MagnetarError | None) -> None:
    """Takes an answer that nothing waits for."""


async def _done(request: Callable[[OnDone], T]) -> T:
    """Makes a request, and returns its value once it is answered; raises its error."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    value = request(lambda error: settle(answer, error))
    await answer
    return value

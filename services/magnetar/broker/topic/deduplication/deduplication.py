"""Deduplication of one topic while it is on: judges runs, records stored ids, answers duplicates.

A producer's ids are those of its name, whatever its connection. A producer attaches only once all
runs of its name have an outcome, so `last_sequence_id` of PRODUCER_SUCCESS is a stored id: a client
that continues after it loses nothing.

Bounds: the ids of at most `producers_max` names are kept, plus those of attached producers. The
least recently used ids are forgotten first, and ids that were unused for `inactivity_s` since this
broker loaded the topic, by a clock that no leap of the wall clock makes too early. Each sweep
counts and logs them, because the duplicates of such a producer are stored if it returns.
"""

import asyncio
from functools import partial
from itertools import islice
from typing import Final, Protocol

from magnetar.broker.topic.deduplication.limits import DeduplicationLimits
from magnetar.broker.topic.deduplication.sequences import (
    NONE,
    Part,
    ProducerSequence,
    Verdict,
    highest_recorded,
    recorded_id,
)
from magnetar.broker.topic.deduplication.snapshots import Snapshots
from magnetar.broker.topic.log_tail import read_tail
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.core.errors import MagnetarError, NotAllowed, PersistenceError, ServiceNotReady
from magnetar.core.futures import settle
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.events import SendRun

OUTCOMES_TIMEOUT_S: Final = 10.0
"""How long a producer waits for the outcomes of its name's earlier messages when it attaches."""
FORGOTTEN_LOGGED_MAX: Final = 10
"""How many forgotten producers one log line names."""

log = get_logger("magnetar.topic.deduplication")


class DeduplicatedTopic(Protocol):
    """A topic, seen from its deduplication."""

    full_name: str
    managed_ledger: ManagedLedger

    producers: ProducerRegistry

    def append(
        self, producer: Producer, run: SendRun, sequence: ProducerSequence, recorded: int
    ) -> None:
        """Appends new messages; `sequence` gets the outcome and, if stored, the id to record."""


class Deduplication:
    """The ids of one topic's producers."""

    __slots__ = (
        "_clock",
        "_forgotten_logged",
        "_forgotten_names",
        "_limits",
        "_sequences",
        "_topic",
        "duplicates",
        "forgotten",
        "snapshots",
    )

    def __init__(
        self, topic: DeduplicatedTopic, limits: DeduplicationLimits, clock: SteadyClock
    ) -> None:
        self.duplicates = 0
        """Messages that were stored already; batches count their messages."""
        self.forgotten = 0
        """Producers whose ids were forgotten."""
        self._forgotten_logged = 0
        self._forgotten_names: list[str] = []
        self._topic = topic
        self._limits = limits
        self._clock = clock
        # In the order of their last use, which `_use` keeps.
        self._sequences: dict[str, ProducerSequence] = {}
        ledger = topic.managed_ledger
        self.snapshots = Snapshots(ledger, self._in_use_now, limits.snapshot_entries, clock)

    async def recover(self) -> None:
        """Reads the stored ids and replays the entries after them. Raises MagnetarError.

        Entries that are confirmed meanwhile are replayed, too. The caller starts to use this object
        without an await in between.
        """
        ledger = self._topic.managed_ledger
        snapshot = self.snapshots.load()
        replayed = 0
        if snapshot is not None:
            self._sequences = dict(snapshot.producers)
            for sequence in self._sequences.values():
                # A snapshot may be old: its producers may have been attached until a moment ago.
                sequence.used_ms = self._clock.now_ms()
            replayed = await read_tail(ledger, snapshot.position, self._replayed)
        self.snapshots.begin(replayed)
        ledger.add_append_listener(self.snapshots.entries_confirmed)

    def end(self) -> None:
        """Stores no more snapshots. Runs in flight still get their answers."""
        ledger = self._topic.managed_ledger
        ledger.remove_append_listener(self.snapshots.entries_confirmed)

    def _replayed(self, _entry: Entry, metadata: MessageMetadata) -> None:
        recorded = recorded_id(metadata)
        if recorded != NONE:
            self._use(metadata.producer_name).record(recorded)

    async def attach(self, producer: Producer) -> None:
        """Prepares for the messages of a producer. Raises MagnetarError.

        Waits for the outcomes of its name's earlier messages.
        """
        if self.snapshots.cursor is None:
            await self.snapshots.create()
            self.snapshots.begin(0)
        sequence = self._use(producer.name)
        while sequence.in_flight:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            sequence.when_idle(partial(settle, idle, None))
            try:
                async with asyncio.timeout(OUTCOMES_TIMEOUT_S):
                    await idle
            except TimeoutError:
                raise ServiceNotReady(
                    f"Earlier messages of producer {producer.name} have no outcome yet, please "
                    "retry"
                ) from None

    def last_sequence_id(self, name: str) -> int:
        """Returns the highest stored id of a producer name, -1 if there is none."""
        sequence = self._sequences.get(name)
        return NONE if sequence is None else sequence.persisted

    @property
    def last_sequence_ids(self) -> dict[str, int]:
        """The highest stored id by producer name."""
        return {
            name: sequence.persisted
            for name, sequence in self._sequences.items()
            if sequence.persisted != NONE
        }

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Appends the new messages of the run and answers the others, all in order."""
        sequence = self._sequences.get(producer.name)
        if sequence is None:  # attached before deduplication was switched on
            sequence = self._use(producer.name)
        parts = sequence.judge(run)
        if len(parts) == 1 and parts[0].verdict is Verdict.NEW:
            self._append(producer, run, sequence, parts[0].recorded)
            return
        for part in parts:
            piece = run.part(part.start, part.end)
            if part.verdict is Verdict.NEW:
                self._append(producer, piece, sequence, part.recorded)
            else:
                self._answer(producer, piece, sequence, part)

    def _append(
        self, producer: Producer, run: SendRun, sequence: ProducerSequence, recorded: int
    ) -> None:
        sequence.appended()
        self._topic.append(producer, run, sequence, recorded)

    def _answer(
        self, producer: Producer, run: SendRun, sequence: ProducerSequence, part: Part
    ) -> None:
        """Answers messages that are not appended, after the answers of earlier ones."""
        error = self._refusal(producer, run, part.verdict)
        if error is None:
            self.duplicates += sum(run.message_counts)
        if not sequence.in_flight:
            _send_answer(producer, run, error)
            return
        producer.pending_runs += 1  # so that closing the producer waits for the answer
        sequence.in_turn(partial(_send_late_answer, producer, run, error))

    def _refusal(self, producer: Producer, run: SendRun, verdict: Verdict) -> MagnetarError | None:
        if verdict is Verdict.IN_FLIGHT:
            return PersistenceError(
                f"[{self._topic.full_name}][{producer.name}]Cannot determine whether the message "
                "is a duplicate at this time"
            )
        if verdict is Verdict.PARTLY_STORED:
            return NotAllowed(
                f"[{self._topic.full_name}][{producer.name}]The batch of the sequence ids "
                f"{run.sequence_ids[0]} to {run.highest_sequence_ids[-1]} is stored up to "
                f"{self.last_sequence_id(producer.name)}: send the messages after that id again"
            )
        return None

    def has(self, name: str, sequence: ProducerSequence | None) -> bool:
        """Whether these are the present ids of a name. None, and those of an earlier time while
        deduplication was on, are not.
        """
        return sequence is not None and self._sequences.get(name) is sequence

    def stored_unjudged(self, producer: Producer, run: SendRun) -> None:
        """Records a run that was handed to the log before deduplication was switched on (again)."""
        self._use(producer.name).record(highest_recorded(run))

    def _use(self, name: str) -> ProducerSequence:
        """Returns the ids of a name, as the ones used last; forgets others above the bound."""
        sequence = self._sequences.pop(name, None)
        if sequence is None:
            sequence = ProducerSequence()
        self._sequences[name] = sequence
        sequence.used_ms = self._clock.now_ms()
        if len(self._sequences) > self._limits.producers_max:
            self._forget_excess()
        return sequence

    def _in_use_now(self) -> dict[str, ProducerSequence]:
        """Returns the ids for a snapshot. Attached producers count as used now."""
        attached, now_ms = self._topic.producers.names, self._clock.now_ms()
        for name, sequence in self._sequences.items():
            if name in attached:
                sequence.used_ms = now_ms
        return self._sequences

    def sweep(self, snapshot_interval_s: float) -> None:
        """Forgets unused ids, and takes a snapshot if one is due by time. 0: never by time."""
        before_ms = self._clock.judged_ms() - self._limits.inactivity_s * 1000
        sequences, attached = self._in_use_now(), self._topic.producers.names
        stale = [
            name
            for name, sequence in sequences.items()
            if sequence.used_ms < before_ms and name not in attached and not sequence.in_flight
        ]
        self._forget(stale)
        self._log_forgotten()
        due_s = self.snapshots.taken_s + snapshot_interval_s
        by_time = snapshot_interval_s > 0 and due_s <= self._clock.monotonic()
        if stale or (by_time and self.snapshots.entries_since):
            self.snapshots.take()

    def _forget_excess(self) -> None:
        attached = self._topic.producers.names
        excess = len(self._sequences) - self._limits.producers_max
        unused = (
            name
            for name, sequence in self._sequences.items()
            if name not in attached and not sequence.in_flight
        )
        self._forget(list(islice(unused, excess)))

    def _forget(self, names: list[str]) -> None:
        for name in names:
            del self._sequences[name]
        self.forgotten += len(names)
        room = FORGOTTEN_LOGGED_MAX - len(self._forgotten_names)
        self._forgotten_names += names[: max(room, 0)]

    def _log_forgotten(self) -> None:
        """Logs the producers that were forgotten since the last sweep."""
        count = self.forgotten - self._forgotten_logged
        if count:
            log.warning(
                "producers forgotten: a message that they send again would be stored again",
                topic=self._topic.full_name,
                count=count,
                producers=self._forgotten_names,
                producers_max=self._limits.producers_max,
                inactivity_s=self._limits.inactivity_s,
            )
            self._forgotten_logged, self._forgotten_names = self.forgotten, []

    def store(self) -> None:
        """Starts a snapshot if the last one does not cover all entries: the topic closes."""
        if self.snapshots.entries_since:
            self.snapshots.take()


def _send_answer(producer: Producer, run: SendRun, error: MagnetarError | None) -> None:
    """Sends receipts without a position, as Pulsar does for duplicates, or the refusal."""
    if error is None:
        producer.sink.send_receipts(producer, run, -1, -1, stored=False)
    else:
        producer.sink.send_errors(producer, run, error)


def _send_late_answer(producer: Producer, run: SendRun, error: MagnetarError | None) -> None:
    """Sends an answer that counted as a pending run."""
    producer.pending_runs -= 1
    _send_answer(producer, run, error)
    if producer.on_answered is not None:
        producer.on_answered()

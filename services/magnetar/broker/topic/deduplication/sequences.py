"""The sequence ids of one producer name, and the judgment of its messages. No IO.

Ids of a producer grow in the order of its sends. `pushed` is the highest id that was handed to the
log, `persisted` the highest that the log has confirmed. A message at or below `persisted` is stored
already; one between the two is in flight, and its outcome is unknown; any other is new.

- A batch is judged by its first id and records its highest. If only its first messages are stored,
  the whole batch is refused: neither a receipt nor an append would be correct.
- The chunks of a message have one id. Each of them is judged by it, and only the last one records
  it, so that a message is stored once all its chunks are.

Responses to duplicates and refused messages wait for the responses to earlier messages, because
clients rely on the order. Sequence ids are unsigned 64-bit numbers, as on the wire.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import parse_metadata
from magnetar.wire.events import SendRun
from magnetar.wire.framing import MalformedEntry

NONE: Final = -1
"""The value for "no id": ids start at 0."""

CHUNK_ID_TAG: Final = b"\xe8\x01"
"""The tag of `MessageMetadata.chunk_id`: field 29, a varint."""
_CHECKSUM_MAGIC: Final = b"\x0e\x01"


class Verdict(Enum):
    """The judgment of a message."""

    NEW = auto()
    STORED = auto()
    IN_FLIGHT = auto()
    PARTLY_STORED = auto()


class Part(NamedTuple):
    """Consecutive messages of a run with the same verdict, and the highest id that they record."""

    verdict: Verdict
    start: int
    end: int
    recorded: int


class ProducerSequence:
    """The highest ids of one producer name, and the responses that wait for earlier ones."""

    __slots__ = (
        "_appended",
        "_completed",
        "_on_idle",
        "_waiting",
        "persisted",
        "pushed",
        "used_ms",
    )

    def __init__(self, persisted: int = NONE, used_ms: int = 0) -> None:
        self.pushed = self.persisted = persisted
        self.used_ms = used_ms
        """When a producer of this name was last attached, on the wall clock."""
        self._appended = self._completed = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] | None = None
        self._on_idle: list[Callable[[], None]] | None = None

    def judge(self, run: SendRun) -> list[Part]:
        """Judges the messages of a run, and records the new ones as handed to the log."""
        previous = self.pushed
        for sequence_id, highest in zip(run.sequence_ids, run.highest_sequence_ids, strict=True):
            if sequence_id <= previous:
                return self._judge_each(run)
            previous = highest
        if may_have_chunks(run):
            return self._judge_each(run)
        self.pushed = previous
        return [Part(Verdict.NEW, 0, len(run.entries), previous)]

    def _judge_each(self, run: SendRun) -> list[Part]:
        parts: list[Part] = []
        for index, sequence_id in enumerate(run.sequence_ids):
            highest = run.highest_sequence_ids[index]
            verdict, recorded = self._verdict(sequence_id, highest), NONE
            if verdict is Verdict.NEW and is_complete(run, index):
                self.pushed = recorded = highest
            if parts and parts[-1].verdict is verdict:
                last = parts.pop()
                parts.append(Part(verdict, last.start, index + 1, max(last.recorded, recorded)))
            else:
                parts.append(Part(verdict, index, index + 1, recorded))
        return parts

    def _verdict(self, sequence_id: int, highest: int) -> Verdict:
        if sequence_id > self.pushed:
            return Verdict.NEW
        if sequence_id > self.persisted:
            return Verdict.IN_FLIGHT
        return Verdict.PARTLY_STORED if highest > self.persisted else Verdict.STORED

    @property
    def in_flight(self) -> bool:
        """Whether a judged run has no outcome yet."""
        return self._appended != self._completed

    def appended(self) -> None:
        """Notes that a run of new messages was handed to the log."""
        self._appended += 1

    def stored(self, recorded: int) -> None:
        """Notes that the oldest run in flight is durable; `recorded` is its highest id, or NONE."""
        self.persisted = max(self.persisted, recorded)
        self._complete()

    def failed(self) -> None:
        """Notes that the oldest run in flight was not appended: it may be sent again.

        All runs behind a failed one fail as well, so no id above `persisted` is stored.
        """
        self.pushed = self.persisted
        self._complete()

    def record(self, recorded: int) -> None:
        """Records an id that the log confirmed without a judgment: replayed, or older."""
        self.persisted = max(self.persisted, recorded)
        self.pushed = max(self.pushed, self.persisted)

    def in_turn(self, answer: Callable[[], None]) -> bool:
        """Calls `answer` once all runs in flight have an outcome; returns whether it waits."""
        if not self.in_flight:
            answer()
            return False
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((self._appended, answer))
        return True

    def when_idle(self, on_idle: Callable[[], None]) -> None:
        """Calls `on_idle` once no run is in flight. Needs `in_flight`."""
        self._on_idle = [*(self._on_idle or ()), on_idle]

    def _complete(self) -> None:
        self._completed += 1
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._completed:
            waiting.popleft()[1]()
        if self._on_idle is not None and not self.in_flight:
            callbacks, self._on_idle = self._on_idle, None
            for callback in callbacks:
                callback()


def may_have_chunks(run: SendRun) -> bool:
    """Whether the bytes of the chunk id's tag occur in an entry's metadata.

    A false positive costs a parse. Clients send chunks outside of batches. The entries have no
    broker entry metadata yet.
    """
    for count, entry in zip(run.message_counts, run.entries, strict=True):
        if count == 1:
            start = 10 if entry[:2] == _CHECKSUM_MAGIC else 4
            end = start + int.from_bytes(entry[start - 4 : start])
            if entry.find(CHUNK_ID_TAG, start, end) > 0:
                return True
    return False


def is_complete(run: SendRun, index: int) -> bool:
    """Whether a message of the run is whole, or the last chunk of its message."""
    if run.message_counts[index] > 1:
        return True
    try:
        metadata = parse_metadata(run.entries[index])
    except MalformedEntry:
        return True
    if metadata.num_chunks_from_msg <= 1:
        return True
    return metadata.chunk_id == metadata.num_chunks_from_msg - 1


def highest_recorded(run: SendRun) -> int:
    """Returns the highest id that a run records once it is stored, NONE if it has no whole one."""
    highest = run.highest_sequence_ids
    if not may_have_chunks(run):
        return max(highest)
    return max((highest[i] for i in range(len(highest)) if is_complete(run, i)), default=NONE)


def recorded_id(metadata: MessageMetadata) -> int:
    """Returns the highest id that a stored entry records; NONE for markers and earlier chunks."""
    if metadata.HasField("marker_type"):
        return NONE
    chunks = metadata.num_chunks_from_msg
    if chunks > 1 and metadata.chunk_id != chunks - 1:
        return NONE
    return max(metadata.sequence_id, metadata.highest_sequence_id)

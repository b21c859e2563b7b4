"""The clients' operations as the events of `tests/history`, whose checker judges every run.

`history.py` has the producers' messages at the end of a run; all else is noted as it happens.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tests.history.check import check
from tests.history.events import (
    WHOLE,
    Acked,
    Closed,
    Drained,
    Event,
    Id,
    Kind,
    NamespaceDeleted,
    Outcome,
    Position,
    Produced,
    Received,
    Sought,
    Subscribed,
    TopicDeleted,
    Unsubscribed,
    fingerprint,
)
from tests.sim.client import Wire

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

if TYPE_CHECKING:
    from tests.sim.history import TopicHistory

KINDS: Final = (Kind.EXCLUSIVE, Kind.SHARED, Kind.FAILOVER, Kind.KEY_SHARED)
"""By their number in the protocol."""
BEFORE_ALL: Final[Id] = (-1, -1, -1)
POSITIONS: Final = (Position.LATEST, Position.EARLIEST)


def answered(done: bool, error: Exception | None) -> Outcome:
    """What a client knows about an admin request; an error does not say that nothing happened."""
    return Outcome.OK if done and error is None else Outcome.UNKNOWN


class Session:
    """One attempt of a consumer to attach, and its deliveries afterwards."""

    def __init__(
        self, recording: "Recording", name: str, topic: str, subscription: str, kind: int, at: int
    ) -> None:
        self.name = name
        self._recording = recording
        self._topic, self._subscription = topic, subscription
        self._kind, self._position = KINDS[kind], POSITIONS[at]
        self._open = False

    async def subscribe(
        self,
        wire: Wire,
        command: Any,
        cut_s: float | None,
        exists: Callable[[], bool] = lambda: True,
    ) -> None:
        """Raises as `Wire.request` does; a refusal does not say that nothing was created.

        `exists` says, at the SUCCESS, whether it promises that there is a subscription.
        """
        begun, outcome = self._recording.now(), Outcome.UNKNOWN
        try:
            await wire.request(CommandType.SUBSCRIBE, command, cut_s=cut_s)
            if exists():
                outcome = Outcome.OK
        finally:
            self.subscribed(outcome, begun)

    def subscribed(self, outcome: Outcome, begun: float) -> None:
        self._open = True
        consumer = self.name.partition("#")[0]
        where = (self._topic, self._subscription, self.name, consumer)
        how = (self._kind, self._position, begun, self._recording.now())
        self._recording.note(Subscribed(*where, *how, outcome, reconnects=False))

    def received(self, message: Any, metadata: Any, messages: Iterable[Any]) -> None:
        """One entry, which may be a batch."""
        note, now = self._recording.note, self._recording.now()
        ledger, entry = message.message_id.ledgerId, message.message_id.entryId
        key, count = metadata.partition_key, message.redelivery_count
        name_of = self._recording.name_of
        for index, one in enumerate(messages):
            at: Id = (ledger, entry, index)
            producer, sequence = name_of(metadata, index, one.payload)
            shown = fingerprint(one.payload)
            note(Received(self.name, at, producer, sequence, key, shown, count, now))

    async def ack(self, wire: Wire, command: Any) -> Any:
        """With a receipt; raises as `Wire.request` does."""
        begun, outcome = self._recording.now(), Outcome.UNKNOWN
        try:
            answer = await wire.request(CommandType.ACK, command)
            outcome = Outcome.FAILED if answer.HasField("error") else Outcome.OK
            return answer
        finally:
            self.acked(command, outcome, begun)

    def acked(self, command: Any, outcome: Outcome, begun: float) -> None:
        """Without a receipt the outcome is unknown."""
        at, now = command.message_id[0], self._recording.now()
        entry: Id = (at.ledgerId, at.entryId, WHOLE)
        cumulative = command.ack_type == pb.CommandAck.Cumulative
        self._recording.note(Acked(self.name, entry, cumulative, begun, now, outcome))

    async def seek(self, wire: Wire, command: Any, cut_s: float | None) -> None:
        """To the earliest message; raises as `Wire.request` does."""
        begun, outcome = self._recording.now(), Outcome.UNKNOWN
        try:
            await wire.request(CommandType.SEEK, command, cut_s=cut_s)
            outcome = Outcome.OK
        finally:
            now = self._recording.now()
            self._recording.note(Sought(self.name, BEFORE_ALL, begun, now, outcome))

    async def unsubscribe(self, wire: Wire, command: Any, cut_s: float | None) -> None:
        """Raises as `Wire.request` does."""
        begun, outcome = self._recording.now(), Outcome.UNKNOWN
        try:
            await wire.request(CommandType.UNSUBSCRIBE, command, cut_s=cut_s)
            outcome = Outcome.OK
        finally:
            where = (self._topic, self._subscription, self.name)
            self._recording.unsubscribed(*where, outcome, begun)

    def closed(self) -> None:
        if self._open:
            self._open = False
            self._recording.note(Closed(self.name, self._recording.now()))


def name_by_metadata(metadata: Any, index: int, payload: bytes) -> tuple[str, int]:
    """A message's producer and sequence id, as its producer numbered it."""
    return metadata.producer_name, metadata.sequence_id + index


class Recording:
    """The history of a run, or with `note` the events of one client process."""

    def __init__(
        self,
        now: Callable[[], float],
        note: Callable[[Event], None] | None = None,
        name_of: Callable[[Any, int, bytes], tuple[str, int]] = name_by_metadata,
    ) -> None:
        self.now, self.name_of = now, name_of
        self.events: list[Event] = []
        self.note = note or self.events.append
        self._numbers = itertools.count(1)

    def session(
        self, consumer: str, topic: str, subscription: str, kind: int, position: int
    ) -> Session:
        """A consumer is about to attach."""
        name = f"{consumer}#{next(self._numbers)}"
        return Session(self, name, topic, subscription, kind, position)

    def unsubscribed(
        self, topic: str, subscription: str, session: str, outcome: Outcome, begun: float
    ) -> None:
        self.note(Unsubscribed(topic, subscription, session, begun, self.now(), outcome))

    def topic_deleted(self, topic: str, outcome: Outcome, begun: float) -> None:
        self.note(TopicDeleted(topic, begun, self.now(), outcome))

    def namespace_deleted(self, namespace: str, outcome: Outcome, begun: float) -> None:
        self.note(NamespaceDeleted(namespace, begun, self.now(), outcome))

    def drained(self, topic: str, subscription: str) -> None:
        self.note(Drained(topic, subscription, self.now()))

    def whole(self, topics: Iterable["TopicHistory"]) -> list[Event]:
        """All events, with the producers' messages."""
        events: list[Event] = []
        for topic in topics:
            for (producer, sequence), sent in topic.sent.items():
                receipted = sent.receipt is not None
                at: Id | None = (*sent.receipt, sent.index) if sent.receipt is not None else None
                done = sent.receipted_at if receipted else self.now()
                outcome = Outcome.OK if receipted else Outcome.UNKNOWN
                what = (topic.name, producer, sequence, sent.key, fingerprint(sent.payload))
                how = (outcome, at, sent.sends, sent.deliver_at > 0)
                events.append(Produced(*what, sent.created_at, done, *how))
        return [*events, *self.events]

    def violations(self, topics: Iterable["TopicHistory"]) -> list[str]:
        """What the checker of histories finds."""
        return [f"history: {finding}" for finding in check(self.whole(topics))]

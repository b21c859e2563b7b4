"""The history of a campaign: what each client process notes, as the events of `tests/history`.

A payload says its topic and number, so the producer of a history is called after its topic.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import pulsar
from tests.history.events import (
    WHOLE,
    Acked,
    Closed,
    Drained,
    Id,
    Kept,
    Kind,
    Outcome,
    Position,
    Produced,
    Received,
    Subscribed,
    fingerprint,
)
from tests.history.storage import Writer
from tests.sim.recording import Recording

KEYS: Final = 7
READER: Final = "read back"
UNKNOWN_NAME: Final = ("?", -1)


def history_path(log: Path, topic: str) -> Path:
    """The history of one topic, as the client process saw it that writes `log`."""
    return log.with_suffix("") / f"{topic.rpartition('/')[2]}.jsonl"


class Histories:
    """One client process's histories, a file per topic.

    No promise spans two topics, so the campaign judges them one by one. The events of all topics
    together would need gigabytes of memory after 20 minutes.
    """

    def __init__(self, log: Path, topics: Sequence[str]) -> None:
        log.with_suffix("").mkdir()
        self._writers = {topic: Writer(history_path(log, topic)) for topic in topics}

    def of(self, topic: str) -> Writer:
        return self._writers[topic]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()


def key_of(number: int) -> str:
    """The key of a message on a topic without batches."""
    return str(number % KEYS)


def name_in(payload: bytes) -> tuple[str, int]:
    """The producer and the sequence id that a payload names; no producer has the name `?`."""
    try:
        topic, number, _ = payload.split(b"|", 2)
        return topic.decode(), int(number)
    except ValueError:
        return UNKNOWN_NAME


def by_wire(writer: Writer) -> Recording:
    """For clients of the binary protocol."""
    return Recording(time.monotonic, writer.write, lambda _, __, payload: name_in(payload))


def produced(
    topic: str, number: int, key: str, payload: bytes, sent: float, receipt: pulsar.MessageId | None
) -> Produced:
    """An official client's message; the client does not say how often it sent the message."""
    outcome = Outcome.UNKNOWN if receipt is None else Outcome.OK
    at = None if receipt is None else id_of(receipt)
    what = (topic, topic, number, key, fingerprint(payload))
    return Produced(*what, sent, time.monotonic(), outcome, at, 0)


def id_of(message_id: pulsar.MessageId) -> Id:
    """A message that is in no batch counts as the first of one."""
    batch = max(message_id.batch_index(), 0)
    return message_id.ledger_id(), message_id.entry_id(), batch


def subscribed(topic: str, subscription: str, kind: Kind, begun: float) -> Subscribed:
    """An official client's consumer, which reconnects by itself."""
    session = f"{subscription}#{topic}"
    names = (topic, subscription, session, session)
    now = time.monotonic()
    return Subscribed(*names, kind, Position.EARLIEST, begun, now, Outcome.OK, reconnects=True)


def received(session: str, message: Any) -> Received:
    """A message of an official client's consumer or reader."""
    payload = message.data()
    what = (*name_in(payload), message.partition_key(), fingerprint(payload))
    redeliveries = message.redelivery_count()
    return Received(session, id_of(message.message_id()), *what, redeliveries, time.monotonic())


def acked(session: str, message_id: pulsar.MessageId) -> Acked:
    """An official client's ack, which has no receipt."""
    ledger, entry, batch = id_of(message_id)
    at = (ledger, entry, WHOLE if message_id.batch_index() < 0 else batch)
    now = time.monotonic()
    return Acked(session, at, False, now, now, Outcome.UNKNOWN)


class ReadBack:
    """The history of one topic's reader, which begins at the earliest message."""

    def __init__(self, writer: Writer, topic: str) -> None:
        self._writer, self._topic, self._begun = writer, topic, time.monotonic()
        self._session = ""
        writer.write(Kept(topic))

    def subscribed(self) -> None:
        event = subscribed(self._topic, READER, Kind.EXCLUSIVE, self._begun)
        self._session = event.session
        self._writer.write(event)

    def got(self, message: pulsar.Message) -> None:
        self._writer.write(received(self._session, message))

    def end(self) -> None:
        now = time.monotonic()
        self._writer.write(Drained(self._topic, READER, now))
        self._writer.write(Closed(self._session, now))

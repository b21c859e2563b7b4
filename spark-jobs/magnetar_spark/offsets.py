"""Parses the ends of a read: `startingOffsets`, `startingTime` and their counterparts.

An end is `earliest`, `latest`, or JSON: `{"TOPIC": "LEDGER:ENTRY", …}`. An offset may also be
`[LEDGER, ENTRY]`, `{"ledger": L, "entry": E}`, or as StreamNative's connector writes it, the bytes
of a serialized message id: `[8,11,16,101]`. A name is that of a topic or of one partition
(`…-partition-N`), and may be short. Both ends are inclusive, like message ids with `seek` and
`startMessageIdInclusive`. Topics that are not named are read whole.

Times are publish times in ms since 1970, both inclusive.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData
from magnetar.wire.message_id import signed64

FORMS: Final = '"earliest", "latest" or {"TOPIC": "LEDGER:ENTRY"}'


@dataclass(frozen=True, slots=True)
class Start:
    """One end of a read: a position for all topics, positions by topic, or a time."""

    everywhere: Position | None = None
    by_topic: Mapping[str, Position] = field(default_factory=dict)
    time_ms: int | None = None

    def of(self, topic: TopicName) -> Position | None:
        """The position for this topic or partition; None if none was given."""
        position = self.by_topic.get(str(topic))
        if position is None:
            position = self.by_topic.get(str(topic.base))
        return self.everywhere if position is None else position


def parse_start(given: Mapping[str, str]) -> Start | None:
    """The start of a read, from options with lower-case names; None if none is given."""
    return _parse(given, "startingOffsets", "startingTime")


def parse_end(given: Mapping[str, str]) -> Start | None:
    """The end of a read, as `parse_start`."""
    return _parse(given, "endingOffsets", "endingTime")


def _parse(given: Mapping[str, str], offsets: str, time: str) -> Start | None:
    text, time_text = given.get(offsets.lower()), given.get(time.lower())
    if text is not None and time_text is not None:
        raise PreconditionFailed(f"set {offsets} or {time}, not both")
    if time_text is not None:
        if not time_text.strip().isdigit():
            raise PreconditionFailed(f"{time} '{time_text}': write ms since 1970")
        return Start(time_ms=int(time_text))
    if text is None:
        return None
    word = text.strip().lower()
    if word == "earliest":
        return Start(EARLIEST)
    if word == "latest":
        return Start(LATEST)
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
        return Start(
            by_topic={
                str(parse_topic(name)): parse_position(value) for name, value in document.items()
            }
        )
    except (msgspec.MsgspecError, MagnetarError, ValueError) as error:
        raise PreconditionFailed(f"{offsets} '{text}': {error}; write {FORMS}") from error


def parse_position(value: Any) -> Position:
    """Parses one offset, in any form of the module's docstring. Raises ValueError."""
    if isinstance(value, str):
        if value in ("earliest", "latest"):
            return EARLIEST if value == "earliest" else LATEST
        ledger, colon, entry = value.partition(":")
        if colon:
            return Position(int(ledger), int(entry))
    elif isinstance(value, Mapping) and set(value) == {"ledger", "entry"}:
        numbers = value["ledger"], value["entry"]
        if all(isinstance(number, int) for number in numbers):  # a fraction would be truncated
            return Position(*numbers)
    elif isinstance(value, list) and all(isinstance(number, int) for number in value):
        if len(value) == 2:
            return Position(*value)
        try:
            message_id = MessageIdData.FromString(bytes(number & 0xFF for number in value))
        except DecodeError as error:
            raise ValueError(f"{value} are not the bytes of a message id") from error
        return Position(signed64(message_id.ledgerId), signed64(message_id.entryId))
    raise ValueError(f"{value!r} is no offset")

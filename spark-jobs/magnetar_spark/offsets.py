"""Where reading starts and ends: `startingOffsets`, `startingTime` and their counterparts.

`earliest`, `latest`, or JSON: `{"TOPIC": "LEDGER:ENTRY", …}`, where an offset may also be written
as `[LEDGER, ENTRY]`, as `{"ledger": L, "entry": E}`, or as StreamNative's connector writes it: the
bytes of a serialised message id, `[8,11,16,101]`. A name is that of a topic, or of one partition
(`…-partition-N`); it may be short. The entry that is named is read: both ends are inclusive, as
message ids are for `seek` and `startMessageIdInclusive`. Topics that are not named are read whole.

Times are in ms since 1970: publish times, both inclusive.
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
    """One end of what is read: a position for all topics, positions by topic, or a time."""

    everywhere: Position | None = None
    by_topic: Mapping[str, Position] = field(default_factory=dict)
    time_ms: int | None = None

    def of(self, topic: TopicName) -> Position | None:
        """The position for this topic or partition; None where nothing was said of it."""
        found = self.by_topic.get(str(topic))
        if found is None:
            found = self.by_topic.get(str(topic.base))
        return self.everywhere if found is None else found


def parse_start(given: Mapping[str, str]) -> Start | None:
    """From the options, whose names are in lower case; None where nothing was said."""
    return _parse(given, "startingOffsets", "startingTime")


def parse_end(given: Mapping[str, str]) -> Start | None:
    """As `parse_start`."""
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
    """See the module's text; raises ValueError."""
    if isinstance(value, str):
        if value in ("earliest", "latest"):
            return EARLIEST if value == "earliest" else LATEST
        ledger, colon, entry = value.partition(":")
        if colon:
            return Position(int(ledger), int(entry))
    elif isinstance(value, Mapping) and set(value) == {"ledger", "entry"}:
        numbers = value["ledger"], value["entry"]
        if all(isinstance(each, int) for each in numbers):  # a fraction would be cut off
            return Position(*numbers)
    elif isinstance(value, list) and all(isinstance(each, int) for each in value):
        if len(value) == 2:
            return Position(*value)
        try:
            message_id = MessageIdData.FromString(bytes(each & 0xFF for each in value))
        except DecodeError as error:
            raise ValueError(f"{value} are not the bytes of a message id") from error
        return Position(signed64(message_id.ledgerId), signed64(message_id.entryId))
    raise ValueError(f"{value!r} is no offset")

"""The offsets of a stream, in the form of Spark's checkpoints. Pure.

    {"TOPIC": "LEDGER:ENTRY", …}      the last position read of each topic or partition; -1:-1 if
                                      nothing was read yet
    "startingTime": "MS"              for a query that started with this option
    "startingOffsets": {"TOPIC": …}   in the first micro-batch's end: the start of the query

The last two are what the query started with. Spark does not keep the initial offset: it asks for a
new one if the first micro-batch is repeated, and the options may differ after a restart.
Checkpoints of older releases have neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.ids import EARLIEST, Position
from magnetar_spark.offsets import parse_position

STARTING_TIME: Final = "startingTime"
STARTING_OFFSETS: Final = "startingOffsets"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset of a stream, with its start; see the module's docstring for the document."""

    positions: Mapping[str, Position]
    starting_ms: int | None = None
    began: Mapping[str, Position] | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Parses a document of a checkpoint. Raises ValueError."""
        time, began = document.get(STARTING_TIME), document.get(STARTING_OFFSETS)
        return cls(
            _positions(document),
            None if time is None else int(time),
            None if began is None else _positions(began),
        )

    def document(self) -> dict[str, Any]:
        """The document that `parse` reads."""
        document: dict[str, Any] = _texts(self.positions)
        if self.starting_ms is not None:
            document[STARTING_TIME] = str(self.starting_ms)
        if self.began is not None:
            document[STARTING_OFFSETS] = _texts(self.began)
        return document

    def of(self, topic: str) -> Position:
        """The last position read of this topic; EARLIEST if none."""
        return self.positions.get(topic, EARLIEST)


def _positions(document: Mapping[str, Any]) -> dict[str, Position]:
    return {
        name: parse_position(value)
        for name, value in document.items()
        if name not in (STARTING_TIME, STARTING_OFFSETS)
    }


def _texts(positions: Mapping[str, Position]) -> dict[str, str]:
    return {name: str(position) for name, position in positions.items()}

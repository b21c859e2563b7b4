"""The offsets of a stream, as Spark's checkpoints keep them. Pure.

    {"TOPIC": "LEDGER:ENTRY", …}      the last position that was read of each topic or partition,
                                      -1:-1 for nothing yet
    "startingTime": "MS"              of a query that began with this option
    "startingOffsets": {"TOPIC": …}   in the first micro-batch's end: where the query began

The last two are what the query was started with. Spark keeps no initial offset: it asks for a new
one if the first micro-batch is repeated, and the options may differ at a restart. Checkpoints of
older releases have neither.
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
    """See the module's text for the document."""

    positions: Mapping[str, Position]
    starting_ms: int | None = None
    began: Mapping[str, Position] | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Raises ValueError."""
        time, began = document.get(STARTING_TIME), document.get(STARTING_OFFSETS)
        return cls(
            _positions(document),
            None if time is None else int(time),
            None if began is None else _positions(began),
        )

    def document(self) -> dict[str, Any]:
        """What `parse` takes."""
        made: dict[str, Any] = _texts(self.positions)
        if self.starting_ms is not None:
            made[STARTING_TIME] = str(self.starting_ms)
        if self.began is not None:
            made[STARTING_OFFSETS] = _texts(self.began)
        return made

    def of(self, topic: str) -> Position:
        """The last position that was read of this topic."""
        return self.positions.get(topic, EARLIEST)


def _positions(document: Mapping[str, Any]) -> dict[str, Position]:
    return {
        name: parse_position(value)
        for name, value in document.items()
        if name not in (STARTING_TIME, STARTING_OFFSETS)
    }


def _texts(positions: Mapping[str, Position]) -> dict[str, str]:
    return {name: str(position) for name, position in positions.items()}

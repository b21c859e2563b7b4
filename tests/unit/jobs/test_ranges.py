"""How a log with many ledgers is divided into ranges."""

from typing import Any

from magnetar.core.ids import EARLIEST
from magnetar.core.names import parse_topic
from magnetar.jobs.log.ranges import BEFORE_LEDGERS_MAX, Window, ranges_of
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog
from magnetar.ledger.metadata import LedgerMetadata

TOPIC = parse_topic("persistent://t1/n1/t")
LEDGERS = 200
LOOKS_MAX = 10
"""At one ledger; a broker plans in its event loop, and a log may have thousands."""


class Watched(LedgerSpan):
    """A ledger that counts how often it is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "last_entry":
            Watched.looks += 1
        return super().__getattribute__(name)


def test_each_ledger_is_looked_at_a_few_times_however_many_there_are() -> None:
    spans = tuple(
        Watched(LedgerMetadata(number, (), 1), -1 if number % 3 == 0 else 5, 600, 0, 0)
        for number in range(LEDGERS)
    )
    ranges = list(ranges_of(TopicLog(TOPIC, spans, EARLIEST), Window(), 1 << 20))
    assert Watched.looks <= LOOKS_MAX * LEDGERS
    readable = [number for number in range(LEDGERS) if number % 3]
    assert [ranged.ledger_id for ranged in ranges] == readable
    for index, ranged in enumerate(ranges):
        elders = [elder.metadata.ledger_id for elder in ranged.before]
        assert elders == readable[max(0, index - BEFORE_LEDGERS_MAX) : index][::-1]

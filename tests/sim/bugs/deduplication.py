"""Planted bugs of deduplication."""

from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import deduplicates, faults, together, topics

from magnetar.broker.topic.deduplication import deduplication
from magnetar.broker.topic.deduplication.sequences import ProducerSequence, Verdict


def nothing_is_replayed() -> None:
    async def none(*_given: Any) -> int:
        return 0

    plant(deduplication, "read_tail", none)


def failed_messages_count_as_stored() -> None:
    plant(ProducerSequence, "failed", ProducerSequence._complete)

    def verdict(self: ProducerSequence, sequence_id: int, _highest: int) -> Verdict:
        return Verdict.NEW if sequence_id > self.pushed else Verdict.STORED

    plant(ProducerSequence, "_verdict", verdict)


def messages_in_flight_are_new() -> None:
    def verdict(self: ProducerSequence, sequence_id: int, _highest: int) -> Verdict:
        return Verdict.NEW if sequence_id > self.persisted else Verdict.STORED

    plant(ProducerSequence, "_verdict", verdict)
    plant(ProducerSequence, "in_flight", property(lambda _: False))


RESENT: Final = together(
    topics(), faults("resets", "kill broker", "unload topic", "slow network", count=8)
)

BUGS: Final = (
    Bug(
        "ids since the last snapshot are not replayed",
        "The next owner of a topic stores again what came after the last snapshot.",
        nothing_is_replayed,
        42,
        together(RESENT, deduplicates(1_000)),
    ),
    Bug(
        "a message whose append failed counts as stored",
        "It is sent again and gets a receipt, and is nowhere.",
        failed_messages_count_as_stored,
        2,
        together(
            topics(),
            deduplicates(5),
            faults("most bookies down", "cut off bookies", count=6, for_s=3.0),
        ),
    ),
    Bug(
        "a message in flight counts as new",
        "Its producer reconnects and sends it again before the first append is confirmed.",
        messages_in_flight_are_new,
        10,
        together(
            topics(), deduplicates(5), faults("stalls", "slow disk", "resets", "resets", count=12)
        ),
    ),
)

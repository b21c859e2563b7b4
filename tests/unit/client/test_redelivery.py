"""Negative acks and ack timeouts on a virtual clock: when exactly entries are due."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import looptime
import pytest

from magnetar.client.consumer.ack_group import AckGroup
from magnetar.client.consumer.chunks import ChunkAssembler
from magnetar.client.consumer.entry import BadEntry
from magnetar.client.consumer.redelivery import REPLACED_MIN, NegativeAcks, UnackedTracker
from magnetar.client.options import RedeliveryBackoff
from magnetar.wire._pb import PulsarApi_pb2 as pb

Place = tuple[int, int]


def virtually(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs the scenario on a loop that jumps to the next timer."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())


class Calls:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.calls: list[tuple[float, list[Place]]] = []

    def __call__(self, places: list[Place]) -> None:
        self.calls.append((round(self.loop.time() - self.began, 3), places))


def test_negative_acks_are_never_early() -> None:
    async def scenario() -> None:
        calls = Calls()
        nacks = NegativeAcks(calls.loop, 60.0, None, calls)
        nacks.add((1, 1), 0)
        await asyncio.sleep(10)
        nacks.add((1, 2), 0)
        await asyncio.sleep(100)
        assert calls.calls == [(60.0, [(1, 1)]), (70.0, [(1, 2)])]
        assert not nacks

    virtually(scenario)


def test_the_backoff_of_negative_acks() -> None:
    async def scenario() -> None:
        calls = Calls()
        nacks = NegativeAcks(calls.loop, 60.0, RedeliveryBackoff(max_s=4.0), calls)
        for count in (3, 0, 1, 2):
            nacks.add((1, count), count)
        await asyncio.sleep(10)
        assert calls.calls == [
            (1.0, [(1, 0)]),
            (2.0, [(1, 1)]),
            (4.0, [(1, 2), (1, 3)]),
        ]

    virtually(scenario)


def test_repeated_negative_acks_hold_a_bounded_number_of_times() -> None:
    async def scenario() -> None:
        calls = Calls()
        nacks = NegativeAcks(calls.loop, 60.0, None, calls)
        nacks.add((1, 9), 0)
        for _ in range(1000):
            await asyncio.sleep(0.001)
            nacks.add((1, 1), 0)
            assert len(nacks._heap) <= 2 * len(nacks) + REPLACED_MIN
        assert len(nacks) == 2
        await asyncio.sleep(100)
        assert calls.calls == [(60.0, [(1, 9)]), (61.0, [(1, 1)])]
        assert not nacks._heap

    virtually(scenario)


def test_ack_timeouts_by_slot() -> None:
    async def scenario() -> None:
        calls = Calls()
        tracker = UnackedTracker(calls.loop, 10.0, 1.0, None, calls)
        tracker.add((1, 1), 0)
        await asyncio.sleep(0.5)
        tracker.add((1, 2), 0)
        tracker.add((1, 3), 0)
        tracker.discard((1, 3))
        tracker.add((1, 4), 0)
        tracker.discard_until((1, 0))
        await asyncio.sleep(60)
        assert calls.calls == [(10.0, [(1, 1)]), (11.0, [(1, 2), (1, 4)])]
        assert not tracker

    virtually(scenario)


def test_acks_are_grouped() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        flushed: list[tuple[float, list[Place]]] = []

        def flush() -> None:
            individual, _, _ = group.take()
            flushed.append((round(loop.time() - began, 3), list(individual)))

        group = AckGroup(loop, 0.1, 3, flush)
        group.add((1, 1))
        assert group.covers((1, 1))
        assert not group.covers((1, 2))
        await asyncio.sleep(1)
        for entry in range(3):
            group.add((2, entry))
        await asyncio.sleep(1)
        assert flushed == [(0.1, [(1, 1)]), (1.0, [(2, 0), (2, 1), (2, 2)])]
        group.add_cumulative((5, 5), left=2)
        group.add_cumulative((5, 4))
        assert group.cumulative == ((5, 5), 2)
        assert group.covers((5, 4))
        assert not group.covers((5, 5))

    virtually(scenario)


def chunk(number: int, count: int = 3, uuid: str = "p-1") -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=count,
        total_chunk_msg_size=count,
    )


class Chunks:
    """An assembler, what it has discarded, and the orphans that it has offered."""

    def __init__(self, *, orphans_acked: bool) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.discards: list[tuple[float, list[Place], int]] = []
        self.orphans: list[Place] = []

        def discard(places: list[Place], count: int) -> None:
            self.discards.append((round(loop.time() - began, 3), places, count))

        def orphan(place: Place) -> bool:
            self.orphans.append(place)
            return orphans_acked

        self.assembler = ChunkAssembler(loop, 2, 60.0, discard, orphan)


def test_chunks_are_assembled_or_discarded() -> None:
    async def scenario() -> None:
        rig = Chunks(orphans_acked=False)
        chunks = rig.assembler
        assert chunks.add(chunk(0), b"a", (1, 0)) is None
        assert chunks.add(chunk(0, uuid="other"), b"x", (1, 1)) is None
        assert chunks.add(chunk(1), b"b", (1, 2)) is None
        complete = chunks.add(chunk(2), b"c", (1, 3))
        assert complete is not None
        assert (complete.payload, complete.places) == (b"abc", ((1, 0), (1, 2), (1, 3)))
        assert chunks.add(chunk(2, uuid="headless"), b"z", (1, 4)) is None
        await asyncio.sleep(61)
        assert rig.discards == [(0.0, [(1, 4)], 1), (60.0, [(1, 1)], 1)]
        assert not len(chunks)

    virtually(scenario)


def test_discards_of_a_message_are_counted_until_it_is_complete() -> None:
    async def scenario() -> None:
        rig = Chunks(orphans_acked=True)
        chunks = rig.assembler
        chunks.add(chunk(0), b"a", (1, 0))
        assert chunks.add(chunk(2), b"c", (1, 2)) is None  # the second is missing
        assert chunks.add(chunk(1), b"b", (1, 1)) is None  # not an orphan: its beginning came
        chunks.add(chunk(0), b"a", (1, 0))
        chunks.add(chunk(0), b"a", (1, 3))  # its producer sends it again
        assert [(places, count) for _, places, count in rig.discards] == [
            ([(1, 0), (1, 2)], 1),
            ([(1, 1)], 1),
            ([(1, 0)], 2),
        ]
        chunks.add(chunk(1), b"b", (1, 4))
        assert chunks.add(chunk(2), b"c", (1, 5)) is not None
        assert not rig.orphans
        assert chunks.add(chunk(1), b"b", (1, 6)) is None
        assert rig.orphans == [(1, 6)]
        assert len(rig.discards) == 3

    virtually(scenario)


def test_chunks_that_cannot_be_are_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(BadEntry):
            Chunks(orphans_acked=True).assembler.add(chunk(0, count=-1), b"a", (1, 0))

    virtually(scenario)


@pytest.mark.parametrize(("count", "delay_s"), [(0, 1.0), (1, 2.0), (5, 32.0), (6, 60.0)])
def test_the_default_backoff_is_that_of_pulsar(count: int, delay_s: float) -> None:
    assert RedeliveryBackoff().delay_s(count) == delay_s

"""Mutated frames in batches that keep a session alive, so that most of them are handled.

Four of five mutated frames end a connection: they are unreadable, answers that only a broker may
send, or SENDs of a producer that is not attached. A batch has at most one such frame, its last.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.fuzz.fuzz_frames import mutated_frames, sound_frames

from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.events import BadSend, Command, Event, Send, SendRun
from magnetar.wire.framing import ProtocolError

PRODUCERS: Final = (*range(10), 128, 300)
"""The producer ids of most frames that mutation starts from."""
FRAME_BYTES_MAX: Final = 5 << 20
DECODER_BYTES: Final = 64 << 10
BATCH_FRAMES: Final = 80
ENDING_SHARE: Final = 0.01
"""Of the frames that end a connection; the others are left out, as one connection has one."""
_ENDING_COMMANDS: Final = frozenset(
    number
    for number in CommandType.values()
    if number in (CommandType.CONNECT, CommandType.AUTH_RESPONSE)
    or command_name(number).endswith(("_RESPONSE", "_SUCCESS", "_RECEIPT", "_UPDATE", "_CHANGE"))
    or number
    in (
        CommandType.CONNECTED,
        CommandType.AUTH_CHALLENGE,
        CommandType.ERROR,
        CommandType.MESSAGE,
        CommandType.REACHED_END_OF_TOPIC,
        CommandType.SEND_ERROR,
        CommandType.SUCCESS,
        CommandType.TOPIC_MIGRATED,
    )
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames for one write, and whether the last one probably ends the connection."""

    frames: list[bytes]
    ends: bool


class Endings:
    """Tells which frames end a connection; keeps one decoder as long as its stream is in step."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(FRAME_BYTES_MAX, DECODER_BYTES)

    def ends(self, frame: bytes) -> bool:
        """Whether a broker closes the connection, or waits for more, after this frame."""
        try:
            events = self._decoder.feed(frame)
        except ProtocolError:
            self._decoder = FrameDecoder(FRAME_BYTES_MAX, DECODER_BYTES)
            return True
        if self._decoder.unfinished_bytes or not events:
            self._decoder = FrameDecoder(FRAME_BYTES_MAX, DECODER_BYTES)
            return True
        return any(map(_ends, events))


def _ends(event: Event) -> bool:
    if isinstance(event, Command):
        return event.type in _ENDING_COMMANDS
    if isinstance(event, Send):
        return event.command.producer_id not in PRODUCERS
    return isinstance(event, SendRun | BadSend) and event.producer_id not in PRODUCERS


@cache
def lasting_frames() -> tuple[bytes, ...]:
    """The sound frames that leave a connection open."""
    endings = Endings()
    return tuple(frame for frame in sound_frames() if not endings.ends(frame))


def batches(seed: int, count: int) -> Iterator[Batch]:
    """Yields batches of `count` mutated frames together; the same ones for the same seed."""
    rng, endings = random.Random(seed), Endings()
    frames: list[bytes] = []
    while count > 0:
        for frame in mutated_frames(rng.getrandbits(60), 2 * count, lasting_frames()):
            ends = endings.ends(frame)
            if ends and rng.random() > ENDING_SHARE:
                continue
            frames.append(frame)
            count -= 1
            if ends or len(frames) == BATCH_FRAMES or not count:
                yield Batch(frames, ends)
                frames = []
            if not count:
                return

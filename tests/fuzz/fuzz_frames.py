"""A mutating fuzzer of frames: no input may make the decoder do anything but say what it saw.

    python -m tests.fuzz.fuzz_frames --frames 1000000 --seed 1

It starts from frames that official clients sent (`tests/golden/wire`) and from generated ones of
every command, and changes them: bits, lengths, varints, pieces of other frames. What comes out goes
through the decoder in pieces of any size, and through the slow reference decoder; both must see the
same, the decoder may raise nothing but ProtocolError, and it must keep within its memory. Entries
that pass are taken apart as a dispatcher and a reader would.

`mutated_frames(seed, count)` is the same stream of frames for fuzzing a live session. Everything
follows from the seed; a failure names it, and the frame's number.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tests.unit.wire import frames
from tests.unit.wire.reference import Flat, by_producer, expected, flatten

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import build_batch, messages_of
from magnetar.wire.checksum import with_checksum
from magnetar.wire.commands import FIELD_OF_TYPE, CommandType
from magnetar.wire.compression import compress
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.entry import build_entry, peek, split_entry
from magnetar.wire.framing import MalformedEntry, ProtocolError
from magnetar.wire.receive_buffer import BUFFER_BYTES_DEFAULT, SLACK_BYTES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "wire"
FRAME_BYTES_MAX = 64 * 1024
"""Small, so that oversized frames are common."""
GENERATED_SEED = 1
GENERATED_PER_COMMAND = 4
MUTATIONS_MAX = 4
INTACT_SHARE = 0.3
"""Of frames left as they are, so that a stream often goes on after a broken SEND."""
HOT_SHARE = 0.5
"""Of frames that begin as SEND, ACK or FLOW, which are scanned by hand."""
STREAM_FRAMES_MAX = 12
UNCOMPRESSED_BYTES_MAX = 1 << 20

_HOT = {bytes((8, number)) for number in (CommandType.SEND, CommandType.ACK, CommandType.FLOW)}
_EDGES = (0, 1, 2, 4, 5, 127, 128, 255, 2**16 - 1, 2**31, 2**32 - 1)


def split_frames(stream: bytes) -> list[bytes]:
    """The frames of a sound stream."""
    found = []
    at = 0
    while at < len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4])
        found.append(stream[at:end])
        at = end
    return found


@cache
def sound_frames() -> tuple[bytes, ...]:
    """What mutation starts from: captured frames, and generated ones of every command."""
    rng = random.Random(GENERATED_SEED)
    found = [f for path in sorted(GOLDEN.glob("*.bin")) for f in split_frames(path.read_bytes())]
    for number in sorted(FIELD_OF_TYPE):
        for _ in range(GENERATED_PER_COMMAND):
            command = frames.any_command(rng, number).SerializeToString()
            found.append(
                frames.frame(command, frames.entry() if number == CommandType.SEND else b"")
            )
    plain = build_batch(
        (pb.SingleMessageMetadata(payload_size=0, partition_key=f"k{i}"), b"batch" * i)
        for i in range(5)
    )
    for compression in pb.CompressionType.values():
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=5
        )
        metadata.compression = compression
        metadata.uncompressed_size = len(plain)
        entry = build_entry(metadata, compress(compression, plain))
        found.append(frames.send(1, 20_000, entry, num_messages=5, highest_sequence_id=20_004))
    found += [frames.ack(1, 70_000, n) for n in (0, 200, 70_000)]
    found += [frames.flow(1, n) for n in (0, 1000)]
    found.append(frames.ping())
    return tuple(found)


def _flip_bit(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(1, len(data) + 1) :]


def _remove(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, 8)]


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((rng.randbytes(rng.randint(1, 8)), b"\x80" * rng.randint(1, 11)))


def _repeat(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randint(1, 16)]
    data[start:start] = piece * rng.randint(1, 4)


def _splice(rng: random.Random, data: bytearray) -> None:
    other = rng.choice(sound_frames())
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]


def _set_size(rng: random.Random, data: bytearray) -> None:
    at = rng.choice((0, 4, rng.randrange(len(data))))
    data[at : at + 4] = rng.choice(_EDGES).to_bytes(4)


def _nudge_size(rng: random.Random, data: bytearray) -> None:
    at = rng.choice((3, 7))
    if at < len(data):
        data[at] = (data[at] + rng.randint(-3, 3)) & 0xFF


def _repair(rng: random.Random, data: bytearray, added_bytes: int) -> None:
    """Makes some of what a change broke true again, so that what lies deeper is reached."""
    if len(data) < 12 or rng.random() < 0.15:
        return
    data[0:4] = (len(data) - 4).to_bytes(4)
    size = int.from_bytes(data[4:8])
    if rng.random() < 0.6 and 2 <= size + added_bytes <= len(data) - 8:
        size += added_bytes
        data[4:8] = size.to_bytes(4)
        if rng.random() < 0.8 and 0 <= data[11] + added_bytes < 0x80:
            data[11] += added_bytes
    entry = bytes(data[8 + size :])
    if entry[:2] == b"\x0e\x01" and rng.random() < 0.7:
        data[8 + size :] = with_checksum(entry[6:])


_MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip_bit, _flip_bit, _set_byte, _set_byte, _cut, _remove, _insert, _insert, _repeat, _splice,
    _set_size, _nudge_size,
)  # fmt: skip


def mutated_frames(
    seed: int, count: int, sound: tuple[bytes, ...] | None = None
) -> Iterator[bytes]:
    """`count` frames, most of them broken in some way; the same ones for the same seed.

    Mutation starts from `sound`, by default from all sound frames.
    """
    rng = random.Random(seed)
    sound = sound or sound_frames()
    hot = [frame for frame in sound if frame[8:10] in _HOT]
    for _ in range(count):
        frame = rng.choice(hot if rng.random() < HOT_SHARE else sound)
        if rng.random() < INTACT_SHARE:
            yield frame
            continue
        data = bytearray(frame)
        for _ in range(rng.choice((1, 1, 2, MUTATIONS_MAX))):
            if data:
                rng.choice(_MUTATIONS)(rng, data)
        _repair(rng, data, len(data) - len(frame))
        yield bytes(data)


def _decoded(stream: bytes, rng: random.Random) -> tuple[list[Flat], bool]:
    """What the decoder makes of a stream that arrives in pieces."""
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    found: list[Flat] = []
    at = 0
    while at < len(stream):
        size = rng.choice((1, 3, 17, 500, len(stream)))
        try:
            found += flatten(decoder.feed(stream[at : at + size]))
        except ProtocolError as error:
            return by_producer(found + flatten(error.events)), False
        held = decoder.held_bytes
        if held > max(FRAME_BYTES_MAX, BUFFER_BYTES_DEFAULT) + SLACK_BYTES:
            raise AssertionError(f"{held} bytes are held for one connection")
        at += size
    return by_producer(found), True


def _take_apart(event: Flat) -> None:
    """Reads an entry that was accepted; it may be malformed inside, and nothing worse."""
    entry = event[-1]
    if event[0] not in ("send", "odd send") or not isinstance(entry, bytes):
        return
    for read in (peek, split_entry, lambda data: messages_of(data, UNCOMPRESSED_BYTES_MAX)):
        try:
            read(entry)
        except MalformedEntry:
            continue


def _compare(stream: bytes, rng: random.Random) -> tuple[list[Flat], bool]:
    """Decodes a stream both ways, and looks into the entries that were accepted."""
    got, want = _decoded(stream, rng), expected(stream, FRAME_BYTES_MAX)
    if got != want:
        raise AssertionError(f"the decoder saw {got}, the reference {want}")
    for event in got[0]:
        _take_apart(event)
    return got


def check(seed: int, count: int) -> dict[str, int]:
    """Runs the fuzzer; returns what it saw, by kind. Raises AssertionError on a finding.

    Each frame is decoded alone, and in a stream with the ones around it.
    """
    rng = random.Random(seed)
    seen: dict[str, int] = {"frames": 0, "unreadable": 0}
    pending: list[bytes] = []
    for number, frame in enumerate(mutated_frames(seed, count), 1):
        pending.append(frame)
        ends = len(pending) == STREAM_FRAMES_MAX or rng.random() < 0.25 or number == count
        try:
            events, readable = _compare(frame, rng)
            if ends:
                _compare(b"".join(pending), rng)
        except Exception as error:
            streams = " ".join(data.hex() for data in pending)
            raise AssertionError(f"seed {seed}, frame {number}: {error!r} in {streams}") from error
        seen["frames"] += 1
        seen["unreadable"] += not readable
        for event in events:
            seen[str(event[0])] = seen.get(str(event[0]), 0) + 1
        if ends:
            pending.clear()
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many (1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    arguments = parser.parse_args()
    started = time.monotonic()
    seen = check(arguments.seed, arguments.frames)
    print(f"seed {arguments.seed}, {time.monotonic() - started:.0f} s:", seen)
    return 0


if __name__ == "__main__":
    sys.exit(main())

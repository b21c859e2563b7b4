"""Version 1 of a snapshot of deduplication: the payload of the cursor `pulsar.dedup`. Pure.

Little-endian:

    magic "MDUP" | version u8 | position: ledger i64, entry i64 | producers u32
    | per producer, least recently used first:
    |   name size u32, UTF-8 name, highest id u64, used ms i64
    | CRC-32C u32 of all preceding bytes

The snapshot covers every entry up to `position`; it may cover later ones as well, since replaying
an entry twice changes nothing. Producers without a stored message are omitted.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

import google_crc32c

from magnetar.broker.topic.deduplication.sequences import NONE, ProducerSequence
from magnetar.core.ids import Position

MAGIC: Final = b"MDUP"
VERSION: Final = 1

_HEAD = struct.Struct("<4sBqqI")
_SIZE = struct.Struct("<I")
_IDS = struct.Struct("<Qq")
_CRC = struct.Struct("<I")


class SnapshotInvalid(ValueError):
    """The bytes are no valid snapshot of this version; the message gives the reason."""


class Snapshot(NamedTuple):
    """A decoded snapshot."""

    position: Position
    producers: dict[str, ProducerSequence]


def encode(position: Position, producers: Mapping[str, ProducerSequence]) -> bytes:
    """Returns the snapshot of the producers' stored ids."""
    parts = [b""]
    for name, sequence in producers.items():
        if sequence.persisted == NONE:
            continue
        encoded = name.encode("utf-8", "surrogateescape")
        parts += (_SIZE.pack(len(encoded)), encoded)
        parts.append(_IDS.pack(sequence.persisted, sequence.used_ms))
    parts[0] = _HEAD.pack(MAGIC, VERSION, *position, len(parts) // 3)
    body = b"".join(parts)
    return body + _CRC.pack(google_crc32c.value(body))


def decode(data: bytes) -> Snapshot:
    """Raises SnapshotInvalid unless `data` is a whole, undamaged snapshot of this version."""
    if len(data) < _HEAD.size + _CRC.size:
        raise SnapshotInvalid(f"{len(data)} bytes are too few for a snapshot")
    magic, version, ledger_id, entry_id, count = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotInvalid(f"not a snapshot: it begins with {magic.hex()}")
    end = len(data) - _CRC.size
    (crc,) = _CRC.unpack_from(data, end)
    actual = google_crc32c.value(data[:end])
    if crc != actual:
        raise SnapshotInvalid(f"CRC-32C is {actual:08x}, the snapshot says {crc:08x}")
    if version != VERSION:
        raise SnapshotInvalid(f"version {version} is not {VERSION}")
    producers: dict[str, ProducerSequence] = {}
    at = _HEAD.size
    try:
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            name = data[at : at + size].decode("utf-8", "surrogateescape")
            at += size
            producers[name] = ProducerSequence(*_IDS.unpack_from(data, at))
            at += _IDS.size
    except (struct.error, ValueError) as error:
        raise SnapshotInvalid(f"malformed snapshot: {error}") from error
    if at != end:
        raise SnapshotInvalid(f"malformed snapshot: {end - at} bytes left")
    return Snapshot(Position(ledger_id, entry_id), producers)

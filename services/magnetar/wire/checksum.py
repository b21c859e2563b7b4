"""The CRC-32C (Castagnoli) of entries: computes, adds and verifies it."""

from collections.abc import Callable
from typing import Final

from google_crc32c import value

from magnetar.core.errors import ServerError
from magnetar.wire.framing import (
    BROKER_ENTRY_METADATA_MAGIC,
    CHECKED_ENTRY_HEADER,
    CHECKSUM_HEADER,
    CHECKSUM_HEADER_BYTES,
    CHECKSUM_MAGIC,
    METADATA_SIZE_BYTES,
    U32,
)

crc32c: Final[Callable[[bytes], int]] = value

CHECKSUM_FAILED: Final = "Checksum failed on the broker"


def with_checksum(rest: bytes) -> bytes:
    """Returns the entry of `rest`, which begins with the metadata size, with its checksum."""
    return CHECKSUM_HEADER.pack(CHECKSUM_MAGIC, crc32c(rest)) + rest


def entry_fault(entry: bytes) -> tuple[ServerError, str] | None:
    """Returns the error code and text for a producer's entry that must not be stored, or None.

    An entry without a checksum is accepted, because clients may omit it. The layout is checked
    either way. Only brokers add broker entry metadata, so an entry that begins with it is refused.
    """
    magic = int.from_bytes(entry[:2])
    if magic == BROKER_ENTRY_METADATA_MAGIC:
        return ServerError.NOT_ALLOWED_ERROR, "Producers may not send broker entry metadata"
    at = 0
    if magic == CHECKSUM_MAGIC:
        if len(entry) < CHECKED_ENTRY_HEADER.size:
            return ServerError.CHECKSUM_ERROR, CHECKSUM_FAILED
        if crc32c(entry[CHECKSUM_HEADER_BYTES:]) != CHECKSUM_HEADER.unpack_from(entry)[1]:
            return ServerError.CHECKSUM_ERROR, CHECKSUM_FAILED
        at = CHECKSUM_HEADER_BYTES
    room = len(entry) - at - METADATA_SIZE_BYTES
    if room < 0 or not 0 < U32.unpack_from(entry, at)[0] <= room:
        return ServerError.NOT_ALLOWED_ERROR, "Message metadata does not fit its entry"
    return None

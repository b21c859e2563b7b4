"""The framing of commands and entries: constants, layouts, and the errors of malformed input.

All integers of the framing are big-endian.

    simple command    total:u32  command_size:u32  BaseCommand
    with an entry     total:u32  command_size:u32  BaseCommand  entry
    entry             [0x0e02 size:u32 BrokerEntryMetadata]
                      [0x0e01 crc32c:u32]  metadata_size:u32  MessageMetadata  payload

`total` counts everything after itself; the CRC-32C covers everything after itself. A producer sends
entries without the first bracket. Bookies store its bytes, and consumers receive them, unchanged.
"""

from struct import Struct
from typing import Final

from magnetar.wire.events import Event

MESSAGE_BYTES_MAX_DEFAULT: Final = 5 * 1024 * 1024
FRAME_OVERHEAD_BYTES_MAX: Final = 10 * 1024
FRAME_BYTES_MAX_DEFAULT: Final = MESSAGE_BYTES_MAX_DEFAULT + FRAME_OVERHEAD_BYTES_MAX
"""Size limit of a frame, its first four bytes included: Pulsar's `maxMessageSize` and padding."""

PROTOCOL_VERSION: Final = 21

CHECKSUM_MAGIC: Final = 0x0E01
BROKER_ENTRY_METADATA_MAGIC: Final = 0x0E02
CHECKSUM_HEADER_BYTES: Final = 6
METADATA_SIZE_BYTES: Final = 4

U32: Final = Struct(">I")
FRAME_HEADER: Final = Struct(">II")
CHECKSUM_HEADER: Final = Struct(">HI")
BROKER_ENTRY_METADATA_HEADER: Final = Struct(">HI")
CHECKED_ENTRY_HEADER: Final = Struct(">HII")


class ProtocolError(Exception):
    """The peer violated the protocol and its stream is unreadable: close the connection.

    `events` are those of the valid frames that were received with the broken one, before it.
    """

    def __init__(self, message: str, events: list[Event] | None = None) -> None:
        super().__init__(message)
        self.events: list[Event] = [] if events is None else events


class MalformedEntry(Exception):
    """The bytes of an entry do not have the layout of entries."""

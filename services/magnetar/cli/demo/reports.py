"""What the demo's processes tell the one that checks: fixed records over a pipe.

A record is written whole, and before what it reports is acked: a process that is killed has told
all that counts. Writes block when the reader is slow, which holds the writer back in turn.
"""

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

SEEN: Final = 1
ACKED: Final = 2
SENT: Final = 3
RECEIPT: Final = 4

_RECORD: Final = struct.Struct("<BBiQQi")


class Report(NamedTuple):
    """SEEN: number, a time, b checksum. RECEIPT: number, a ledger, b entry, c index in its batch.

    ACKED: this process has acked all it reported as seen. SENT: number is how many."""

    kind: int
    partition: int = 0
    number: int = 0
    a: int = 0
    b: int = 0
    c: int = 0


class Writer:
    """The end of a process that reports."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, reports: list[Report]) -> None:
        """Blocks until the pipe has taken them all."""
        data = memoryview(b"".join([_RECORD.pack(*report) for report in reports]))
        while data:
            data = data[os.write(self._fd, data) :]


class Reader:
    """The end of the process that checks: cuts what arrives into records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Report]:
        data = self._rest + data
        whole = len(data) - len(data) % _RECORD.size
        self._rest = data[whole:]
        return map(Report._make, _RECORD.iter_unpack(data[:whole]))

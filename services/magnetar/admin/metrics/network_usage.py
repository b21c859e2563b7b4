"""The bandwidth that this machine, or this container, uses, as a share of its interfaces' speed.

By the counters of the operating system between two calls of `measure`, over the interfaces whose
speed it knows: Linux does not know that of every virtual interface, and then there is no share.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

BITS_PER_BYTE: Final = 8
BITS_PER_MBIT: Final = 1_000_000
INTERVAL_MIN_S: Final = 0.5
"""Over a shorter time, the figures are noise: the last ones are returned again."""
_RECEIVED, _SENT = 0, 8
"""Columns of /proc/net/dev behind an interface's name."""


class NetworkShares(NamedTuple):
    """Shares of the bandwidth that were used: 1.0 is all of it."""

    received: float
    sent: float


class _Counters(NamedTuple):
    """Sums over the interfaces with a known speed."""

    at_s: float
    received_bytes: int
    sent_bytes: int
    bytes_per_s_max: float


class NetworkUsage:
    """Measures between calls."""

    def __init__(
        self, root: Path = Path("/"), monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`root` has the directories `proc` and `sys`."""
        self._counters_path = root / "proc/net/dev"
        self._interfaces = root / "sys/class/net"
        self._monotonic = monotonic
        self._before = self._read()
        self._last: NetworkShares | None = None

    def measure(self) -> NetworkShares | None:
        """Returns the shares since the call before; None if no interface has a known speed."""
        before = self._before
        if before is not None and self._monotonic() - before.at_s < INTERVAL_MIN_S:
            return self._last
        now = self._before = self._read()
        self._last = None
        if before is not None and now is not None and now.bytes_per_s_max:
            room = now.bytes_per_s_max * (now.at_s - before.at_s)
            # An interface that came or went changes the sums: less than nothing is nothing.
            self._last = NetworkShares(
                max(0, now.received_bytes - before.received_bytes) / room,
                max(0, now.sent_bytes - before.sent_bytes) / room,
            )
        return self._last

    def _read(self) -> _Counters | None:
        received = sent = mbits = 0
        try:
            text = self._counters_path.read_text(encoding="ascii")
        except OSError:
            return None
        for name, columns in _rows(text):
            speed = self._speed_mbits(name)
            if speed > 0:
                mbits += speed
                received += columns[_RECEIVED]
                sent += columns[_SENT]
        rate = mbits * BITS_PER_MBIT / BITS_PER_BYTE
        return _Counters(self._monotonic(), received, sent, rate)

    def _speed_mbits(self, name: str) -> int:
        try:
            return int((self._interfaces / name / "speed").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0  # loopback has none, and an interface that is down refuses the read


def _rows(text: str) -> Iterator[tuple[str, list[int]]]:
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon:
            yield name.strip(), list(map(int, rest.split()))

"""Caps on the connections of a broker: all together, and from one IP address.

A refused connection counts until it is closed, which follows at once.
"""

from collections import Counter
from collections.abc import Iterable

ALL_TEXT = "Reached the maximum number of connections"
ADDRESS_TEXT = "Reached the maximum number of connections on address"
"""Pulsar's texts; the address follows the second without a space."""


class ConnectionCaps:
    """Counts connections against their caps; 0 means no cap."""

    __slots__ = ("_by_address", "_connections", "_connections_max", "_per_address_max")

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._connections = 0
        self._by_address: Counter[str] = Counter()

    def set(self, connections_max: int, per_address_max: int, addresses: Iterable[str]) -> None:
        """Changes the caps; `addresses` are those of all counted connections.

        Caps hold for new connections: none is closed by a new cap.
        """
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_address = Counter(addresses if per_address_max else ())

    def opened(self, address: str) -> str | None:
        """Counts a connection; returns why it must be closed, None if it may stay."""
        self._connections += 1
        if self._per_address_max:
            self._by_address[address] += 1
        if self._connections_max and self._connections > self._connections_max:
            return ALL_TEXT
        if self._per_address_max and self._by_address[address] > self._per_address_max:
            return f"{ADDRESS_TEXT}{address}"
        return None

    def closed(self, address: str) -> None:
        """Forgets a connection that `opened` has counted."""
        self._connections -= 1
        if self._per_address_max:
            self._by_address[address] -= 1
            if self._by_address[address] <= 0:
                del self._by_address[address]

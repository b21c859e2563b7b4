"""The cap on the connections of one role, from all addresses together.

Behind a proxy, the role is that of the proxy's client. Without a cap, nothing is counted.
"""

from collections import Counter
from typing import Final

ROLE_TEXT: Final = "Reached the maximum number of connections of this role"


class RoleCaps:
    """Counts connections by role against `connections_max`; 0 means no cap."""

    __slots__ = ("_connections", "_connections_max")

    def __init__(self, connections_max: int = 0) -> None:
        self._connections_max = connections_max
        self._connections: Counter[str] = Counter()

    def opened(self, role: str) -> bool:
        """Counts a connection of the role; False, and not counted, if it has too many."""
        if not self._connections_max:
            return True
        if self._connections[role] >= self._connections_max:
            return False
        self._connections[role] += 1
        return True

    def closed(self, role: str) -> None:
        """Forgets a connection that `opened` has counted."""
        if not self._connections_max:
            return
        self._connections[role] -= 1
        if self._connections[role] <= 0:
            del self._connections[role]

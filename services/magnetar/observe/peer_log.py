"""Log lines about clients that break a protocol or a deadline, bounded for each network.

A client can connect again and again, so a line per connection would let it fill the log.
"""

from typing import Final

from magnetar.core.addresses import network_of
from magnetar.core.causes import Shares
from magnetar.core.log import Logger

LINES_PER_NETWORK_MAX: Final = 100
"""Lines within `causes.REPEAT_S` about the clients of an IPv4 address or an IPv6 /64."""


class PeerLog:
    """Logs what peers did wrong; further lines of the same network are left out."""

    __slots__ = ("_log", "_shares")

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._shares = Shares(LINES_PER_NETWORK_MAX)

    def info(self, event: str, host: str, **fields: object) -> None:
        """Logs a line about a client of the address `host`."""
        if self._shares.has_room(network_of(host)):
            self._log.info(event, **fields)

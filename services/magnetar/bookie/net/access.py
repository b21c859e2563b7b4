"""The rights of a bookie's clients, by the role in their certificates.

A bookie serves the processes of its own cluster: brokers, other bookies and autorecovery do
everything, jobs only read. Without these rules, every client with a certificate of the authority
could write, fence and delete the ledgers of all tenants.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.protocol_v1 import Frame
from magnetar.security.api import AuthenticationFailed
from magnetar.security.certificate import subject_role


class Right(Enum):
    """The requests that a client may send."""

    NONE = "none"
    READ = "read"
    ALL = "all"


_READS: Final = frozenset((protocol.READ, protocol.LEDGER_END, protocol.PROVE))
"""PROVE sends checksums of entries that a reader may read anyway: `magnetar ledger check`."""


@dataclass(frozen=True, slots=True)
class Access:
    """The roles that a bookie serves. Without `members`, every client may do everything."""

    members: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()

    def of(self, certificate: bytes | None) -> Right:
        """Returns the right of a client with this verified certificate (DER)."""
        if not self.members:
            return Right.ALL
        if certificate is None:
            return Right.NONE
        try:
            role, _ = subject_role(certificate)
        except AuthenticationFailed:
            return Right.NONE
        if role in self.members:
            return Right.ALL
        return Right.READ if role in self.readers else Right.NONE


OPEN: Final = Access()


def only_reads(frame: Frame) -> bool:
    """Whether a request changes nothing: it reads, and fences no ledger."""
    return frame.kind in _READS and not frame.flags & protocol.FLAG_FENCE

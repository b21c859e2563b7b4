"""The claim under which a process writes a managed ledger's records."""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final

from magnetar.metadata.store import Check


@dataclass(frozen=True, slots=True)
class Grant:
    """This process's claim of a managed ledger, at this moment.

    `checks` bind a transaction to the claim. `origin` identifies the claim that this process was
    given: it stays the same when the bundle is split, and differs for every later claim.
    """

    origin: Hashable
    checks: tuple[Check, ...]


Guard = Callable[[str], Awaitable[Grant]]
"""Maps a managed ledger's name to the claim under which its owner writes.

Raises ManagedLedgerFenced if this process does not own it. Waits while this process exchanges the
claim for another one (a split of its bundle).
"""

_ALONE: Final = Grant(None, ())


async def unguarded(_name: str) -> Grant:
    """The guard of a process that shares the store with no other."""
    return _ALONE

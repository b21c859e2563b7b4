"""Leases of the in-process stores, on the store's monotonic clock.

The table maps keys to leases and knows when each lease expires. The store calls `take_due` before
every operation, so that no operation sees expired keys. A timer calls the store if there is no
operation; only the clock decides whether a lease has expired.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.clock import Clock
from magnetar.metadata.store import InvalidOperation, LeaseLost

LEASES_MAX: Final = 65_536
TIMER_S_MIN: Final = 0.001


@dataclass(slots=True, eq=False)
class LocalLease:
    """A `Lease` of an in-process store."""

    table: "LeaseTable"
    id: int
    ttl_s: float
    deadline: float
    keys: set[str] = field(default_factory=set)
    lost: bool = False

    @property
    def valid(self) -> bool:
        return not self.lost and self.table.clock.monotonic() < self.deadline

    async def keep_alive(self) -> None:
        await self.table.renew(self)

    async def revoke(self) -> None:
        await self.table.revoke(self)


class LeaseTable:
    """The leases of one store. `on_end` durably deletes the keys of ended leases.

    `on_call` runs before a lease's own methods: it raises if the store is closed, and ends expired
    leases.
    """

    def __init__(
        self,
        clock: Clock,
        on_end: Callable[[list[str]], Awaitable[None]],
        on_call: Callable[[], None],
        on_due: Callable[[], None],
    ) -> None:
        self.clock = clock
        self._on_end, self._on_call, self._on_due = on_end, on_call, on_due
        self._leases: dict[int, LocalLease] = {}
        self._of_key: dict[str, LocalLease] = {}
        self._next_id = 1
        self._due = float("inf")
        """A lower bound of the next expiry, in seconds of the clock."""
        self._timer: asyncio.TimerHandle | None = None

    def grant(self, ttl_s: float) -> LocalLease:
        if not 0 < ttl_s < float("inf"):
            raise InvalidOperation(f"a lease lasts a positive time, not {ttl_s} s")
        if len(self._leases) >= LEASES_MAX:
            raise InvalidOperation(f"there are {LEASES_MAX} leases already")
        lease = LocalLease(self, self._next_id, ttl_s, self.clock.monotonic() + ttl_s)
        self._next_id += 1
        self._leases[lease.id] = lease
        self._set_due(min(self._due, lease.deadline))
        return lease

    def require(self, lease_id: int) -> None:
        """Raises LeaseLost if the lease has ended."""
        if lease_id not in self._leases:
            raise LeaseLost(f"lease {lease_id} has expired or was revoked")

    def attach(self, key: str, lease_id: int | None) -> None:
        """Attaches a written key to this lease, or detaches it (None)."""
        if (former := self._of_key.pop(key, None)) is not None:
            former.keys.discard(key)
        if lease_id is not None:
            lease = self._leases[lease_id]
            lease.keys.add(key)
            self._of_key[key] = lease

    def holds(self, key: str) -> bool:
        """Whether the key is attached to a lease."""
        return key in self._of_key

    async def renew(self, lease: LocalLease) -> None:
        self._on_call()
        if lease.lost:
            raise LeaseLost(f"lease {lease.id} has expired or was revoked")
        lease.deadline = self.clock.monotonic() + lease.ttl_s

    async def revoke(self, lease: LocalLease) -> None:
        self._on_call()
        if not lease.lost:
            await self._on_end(self._take(lease))

    async def revoke_id(self, lease_id: int) -> None:
        """Ends a lease and deletes its keys; no effect if it has ended."""
        self._on_call()
        if (lease := self._leases.get(lease_id)) is not None:
            await self.revoke(lease)

    def take_due(self) -> list[str]:
        """Ends expired leases and returns their keys, which the store deletes."""
        now = self.clock.monotonic()
        if now < self._due:
            return []
        keys: list[str] = []
        for lease in [lease for lease in self._leases.values() if lease.deadline <= now]:
            keys += self._take(lease)
        self._set_due(min((x.deadline for x in self._leases.values()), default=float("inf")))
        return keys

    def _take(self, lease: LocalLease) -> list[str]:
        lease.lost = True
        del self._leases[lease.id]
        return sorted(lease.keys)

    def _set_due(self, due: float) -> None:
        if due == self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due != float("inf"):
            self._arm()

    def _arm(self) -> None:
        delay_s = max(self._due - self.clock.monotonic(), TIMER_S_MIN)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._on_due()
        if self._timer is None and self._due != float("inf"):
            self._arm()

    def close(self) -> None:
        """Ends all leases; their keys stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = float("inf")
        for lease in self._leases.values():
            lease.lost = True
        self._leases.clear()
        self._of_key.clear()

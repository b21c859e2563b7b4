"""A lease that forwards to another one; tests override the part that they control."""

from magnetar.metadata.store import Lease


class LeaseWrapper:
    """Forwards everything to `lease`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def id(self) -> int:
        return self._lease.id

    @property
    def ttl_s(self) -> float:
        return self._lease.ttl_s

    @property
    def deadline(self) -> float:
        return self._lease.deadline

    @property
    def valid(self) -> bool:
        return self._lease.valid

    async def keep_alive(self) -> None:
        await self._lease.keep_alive()

    async def revoke(self) -> None:
        await self._lease.revoke()

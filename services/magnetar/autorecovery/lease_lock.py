"""A key that one process holds at a time, under its session's lease.

The holder makes every write in a transaction with `check()`: if a process was paused and lost its
lease without noticing, the store refuses the write. If the outcome of a `take` is unknown, the
key's value shows it: it names the holder (`token`, drawn by every process) and the lease. So a
process takes a key at most once at a time, until it has released it.
"""

import asyncio
from contextlib import suppress
from typing import Final

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    LeaseLost,
    MetadataStore,
    StoreClosed,
)

STORE_TIMEOUT_S: Final = 30.0
RELEASE_PAUSES_S: Final = (1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Between attempts to release, while the store does not answer or a `take` is in doubt."""

log = get_logger("magnetar.autorecovery")


class LockLost(MetadataError):
    """Another process may hold the lock now: stop the work that it covers."""


class LeaseLock:
    """A lock in the metadata store that ends with the session's lease."""

    def __init__(
        self, store: MetadataStore, session: MetadataSession, key: str, token: str
    ) -> None:
        self._store = store
        self._session = session
        self.key = key
        self._token = token
        self._lease_id = 0
        self._revision = ABSENT
        self._requested = b""
        """The value that `take` wrote, if the outcome of that write is unknown."""
        self._requested_lease_id = 0
        """The lease of that write: it cannot land once the lease has ended."""
        self._to_delete = ABSENT
        """The revision to delete, if an earlier release did not succeed."""

    @property
    def held(self) -> bool:
        """Whether the holder may act now, by its own clock."""
        return (
            self._revision != ABSENT
            and self._session.valid
            and self._session.lease_id == self._lease_id
        )

    def check(self) -> Check:
        """Returns the check for every transaction of the holder; raises LockLost."""
        if not self.held:
            raise LockLost(f"{self.key} is not held any more")
        return Check(self.key, self._revision)

    def release_with(self) -> Delete:
        """Returns the operation that releases the lock in the holder's last transaction."""
        return Delete(self.key, self._revision)

    async def take(self) -> bool:
        """Tries to take the lock; returns whether it is held. Raises LeaseLost without a lease."""
        lease_id = self._session.lease_id
        value = self._requested = f"{self._token} {lease_id}".encode()
        self._requested_lease_id = lease_id
        try:
            self._revision = await self._store.put(
                self.key, value, expected=ABSENT, lease_id=lease_id
            )
        except BadRevision:
            record = await self._store.get(self.key)
            if record is None or record.value != value:
                self.forget()
                return False
            self._revision = record.revision
        self._requested = b""
        self._lease_id = lease_id
        return self.held

    async def release(self) -> None:
        """Deletes the key if this process holds it, also if `take` was never answered.

        May be repeated after an error. If `take` was not answered and the key is not held, the
        request may still reach the store: see `give_up`.
        """
        if self._revision != ABSENT:
            self._to_delete, self._revision = self._revision, ABSENT
        elif self._requested:
            record = await self._store.get(self.key)
            if record is not None and record.value == self._requested:
                self._to_delete, self._requested = record.revision, b""
        if self._to_delete != ABSENT:
            with suppress(BadRevision):  # an earlier attempt deleted it, or it went with the lease
                await self._store.delete(self.key, expected=self._to_delete)
            self._to_delete = ABSENT

    async def give_up(self) -> None:
        """Releases the lock; retries while the store does not answer or a request is in doubt.

        A lock that remained would block every other process until the lease ends.
        """
        for pause_s in (*RELEASE_PAUSES_S, 0.0):
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await self.release()
                if not self._requested or self._session.lease_id != self._requested_lease_id:
                    return
            except StoreClosed:
                return
            except LeaseLost:
                pass  # the lease may still be renewed, and the request may land
            except (MetadataError, TimeoutError) as error:
                log.info("lock not released, will retry", key=self.key, error=str(error))
            await asyncio.sleep(pause_s)

    def forget(self) -> None:
        """Clears the state: a transaction released the lock, or another process holds it."""
        self._revision = self._to_delete = ABSENT
        self._requested = b""

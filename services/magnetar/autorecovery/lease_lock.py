"""A key that one process holds at a time, under its session's lease.

Whoever holds it writes nothing without `check()` in the same transaction: a process that was
paused, lost its lease and does not know it yet is refused by the store. Where a write's outcome
stayed unknown the key's own value tells: it names its holder (`token`, drawn anew by every process)
and the lease. So a process asks for one key only once at a time, until it has released it.
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
RELEASE_TRIES: Final = 5
RELEASE_RETRY_S: Final = 1.0

log = get_logger("magnetar.autorecovery")


class LockLost(MetadataError):
    """What the lock covers may belong to another now: stop."""


class LeaseLock:
    """See the module's text."""

    def __init__(
        self, store: MetadataStore, session: MetadataSession, key: str, token: str
    ) -> None:
        self._store = store
        self._session = session
        self.key = key
        self._token = token
        self._lease_id = 0
        self._revision = ABSENT
        self._asked = b""
        """What `take` has written, if the outcome of that write is unknown."""
        self._left = ABSENT
        """The revision to delete, if an earlier release did not succeed."""

    @property
    def held(self) -> bool:
        """Whether it may be acted on now, by the holder's own clock."""
        return (
            self._revision != ABSENT
            and self._session.valid
            and self._session.lease_id == self._lease_id
        )

    def check(self) -> Check:
        """For every transaction that only the holder may do; raises LockLost."""
        if not self.held:
            raise LockLost(f"{self.key} is not held any more")
        return Check(self.key, self._revision)

    def release_with(self) -> Delete:
        """For the last transaction: the lock goes with it."""
        return Delete(self.key, self._revision)

    async def take(self) -> bool:
        """Whether it is ours now. Raises LeaseLost where the session has no lease."""
        lease_id = self._session.lease_id
        value = self._asked = f"{self._token} {lease_id}".encode()
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
        self._asked = b""
        self._lease_id = lease_id
        return self.held

    async def release(self) -> None:
        """Deletes the key if it is still ours, also if `take` was never answered.

        After an error it may be repeated.
        """
        if self._revision != ABSENT:
            self._left, self._revision = self._revision, ABSENT
        elif self._asked:
            record = await self._store.get(self.key)
            if record is not None and record.value == self._asked:
                self._left = record.revision
            self._asked = b""
        if self._left != ABSENT:
            with suppress(BadRevision):  # an earlier attempt deleted it, or it went with the lease
                await self._store.delete(self.key, expected=self._left)
            self._left = ABSENT

    async def give_up(self) -> None:
        """Releases it, and retries while the store does not answer.

        A lock that stays would keep every other process from its key until the lease ends.
        """
        for _ in range(RELEASE_TRIES):
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await self.release()
                return
            except (LeaseLost, StoreClosed):
                return  # it went with the lease, or will
            except (MetadataError, TimeoutError) as error:
                log.info("lock not released", key=self.key, error=str(error))
                await asyncio.sleep(RELEASE_RETRY_S)

    def forget(self) -> None:
        """It went with a transaction, or belongs to somebody else now."""
        self._revision = self._left = ABSENT
        self._asked = b""

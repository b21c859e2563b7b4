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
RELEASE_PAUSES_S: Final = (1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Between looks at a lock that was not released, or whose request may still reach the store."""

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
        self._asked_with = 0
        """The lease of that write: it cannot land once the lease has ended."""
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
        self._asked_with = lease_id
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

        After an error it may be repeated. If `take` was not answered and the key is not ours now,
        the request may still reach the store: see `give_up`.
        """
        if self._revision != ABSENT:
            self._left, self._revision = self._revision, ABSENT
        elif self._asked:
            record = await self._store.get(self.key)
            if record is not None and record.value == self._asked:
                self._left, self._asked = record.revision, b""
        if self._left != ABSENT:
            with suppress(BadRevision):  # an earlier attempt deleted it, or it went with the lease
                await self._store.delete(self.key, expected=self._left)
            self._left = ABSENT

    async def give_up(self) -> None:
        """Releases it, and looks again while the store does not answer or a request is in doubt.

        A lock that stays would keep every other process from its key until the lease ends.
        """
        for pause_s in (*RELEASE_PAUSES_S, 0.0):
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await self.release()
                if not self._asked or self._session.lease_id != self._asked_with:
                    return
            except StoreClosed:
                return
            except LeaseLost:
                pass  # it may be renewed still, and the request land
            except (MetadataError, TimeoutError) as error:
                log.info("lock not released", key=self.key, error=str(error))
            await asyncio.sleep(pause_s)

    def forget(self) -> None:
        """It went with a transaction, or belongs to somebody else now."""
        self._revision = self._left = ABSENT
        self._asked = b""

"""A key that one process holds at a time, under its session's lease.

Whoever holds it writes nothing without `check()` in the same transaction: a process that was
paused, lost its lease and does not know it yet is refused by the store. Where a write's outcome
stayed unknown the key's own value tells: it names its holder (`token`, drawn anew by every process)
and the lease. So a process asks for one key only once at a time.
"""

from magnetar.core.errors import MetadataError
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import ABSENT, BadRevision, Check, Delete, MetadataStore


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
        value = f"{self._token} {lease_id}".encode()
        try:
            self._revision = await self._store.put(
                self.key, value, expected=ABSENT, lease_id=lease_id
            )
        except BadRevision:
            record = await self._store.get(self.key)
            if record is None or record.value != value:
                self._revision = ABSENT
                return False
            self._revision = record.revision
        self._lease_id = lease_id
        return self.held

    async def release(self) -> None:
        """Gives it up, where it is still ours."""
        revision, self._revision = self._revision, ABSENT
        if revision != ABSENT:
            try:
                await self._store.delete(self.key, expected=revision)
            except BadRevision:
                return

    def forget(self) -> None:
        """It went with a transaction, or belongs to somebody else now."""
        self._revision = ABSENT

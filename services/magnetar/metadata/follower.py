"""An in-memory copy of a key prefix of the metadata store: a list, then a watch.

If the watch ends (too slow, compacted, store unavailable), the follower lists again; until that
succeeds, the last state remains. A newer record is never replaced by an older one, so a late event
does not undo a record that the owner wrote or read itself (`seen`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.store import Compacted, EventKind, MetadataStore, Record, StoreClosed

LIST_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.25

log = get_logger("magnetar.metadata.follower")


class Follower:
    """Keeps `records` (by key) equal to the store's, while `run` runs."""

    def __init__(
        self, store: MetadataStore, prefix: str, changed: Callable[[str, Record | None], None]
    ) -> None:
        """Calls `changed(key, record)` for every record found and every change; it must not raise.

        The record is None if the key was deleted.
        """
        self._store = store
        self._prefix = prefix
        self._changed = changed
        self._listed = asyncio.Event()
        self._at = 0
        self.records: dict[str, Record] = {}

    async def ready(self) -> None:
        """Returns once the first list is complete."""
        await self._listed.wait()

    async def run(self) -> None:
        """Returns when the store is closed."""
        while True:
            try:
                await self._follow()
            except StoreClosed:
                return
            except Compacted as error:
                log.info("listed again", prefix=self._prefix, error=str(error))
                continue
            except (MetadataError, TimeoutError) as error:
                log.info("listed again", prefix=self._prefix, error=str(error))
            except Exception:
                # A bug, for example in `changed`. If this task ended, the records would go stale.
                log.exception("listed again", prefix=self._prefix)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            # The revision first: a change between the two reads is seen twice, and never missed.
            revision = await self._store.revision()
            listed = {record.key: record for record in await self._store.list(self._prefix)}
        for key, record in list(self.records.items()):
            if key not in listed and record.revision <= revision:
                self._gone(key)
        for record in listed.values():
            self._put(record)
        self._at = max(self._at, revision)
        self._listed.set()
        async for event in self._store.watch(self._prefix, from_revision=revision + 1):
            record = event.record
            self._at = max(self._at, record.revision)
            if event.kind is EventKind.PUT:
                self._put(record)
            elif (known := self.records.get(record.key)) and known.revision < record.revision:
                self._gone(record.key)

    def seen(self, record: Record) -> bool:
        """Adds a record that was just written or read. Returns False if it is outdated."""
        known = self.records.get(record.key)
        if known is None and record.revision < self._at:
            return False  # the watch is past this revision, so the key was deleted since
        self._put(record)
        return known is None or known.revision <= record.revision

    def missing(self, key: str, revision: int) -> None:
        """Removes a key that a read did not find; the read began when its record had `revision`."""
        known = self.records.get(key)
        if known is not None and known.revision == revision:
            self._at = max(self._at, revision + 1)
            self._gone(key)

    def _put(self, record: Record) -> None:
        known = self.records.get(record.key)
        if known is None or known.revision < record.revision:
            self.records[record.key] = record
            self._changed(record.key, record)

    def _gone(self, key: str) -> None:
        del self.records[key]
        self._changed(key, None)

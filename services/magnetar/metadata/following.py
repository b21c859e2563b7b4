"""A part of the metadata store kept in memory: listed once, then followed by a watch.

A watch that is cut off (too slow, compacted, the store away for a while) is made up for by listing
again; until that works the last known state stands. A record is only ever replaced by a newer one,
so what its holder wrote or read itself (`seen`) is not undone by events that come late.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.store import Compacted, EventKind, MetadataStore, Record, StoreClosed

LIST_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.25

log = get_logger("magnetar.metadata.following")


class Following:
    """`records` by key. `run` keeps it up to date until the store is closed."""

    def __init__(
        self, store: MetadataStore, prefix: str, changed: Callable[[str, Record | None], None]
    ) -> None:
        """`changed(key, record)` hears of all that is found and of every change; must not raise.

        The record is None where the key has gone.
        """
        self._store = store
        self._prefix = prefix
        self._changed = changed
        self._listed = asyncio.Event()
        self._at = 0
        self.records: dict[str, Record] = {}

    async def ready(self) -> None:
        """Returns once it was listed for the first time."""
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
                # A bug, of `changed` say. A task that ends would leave the records as they are.
                log.exception("listed again", prefix=self._prefix)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            # The revision first: what changes between the two comes twice, never not at all.
            revision = await self._store.revision()
            found = {record.key: record for record in await self._store.list(self._prefix)}
        for key, record in list(self.records.items()):
            if key not in found and record.revision <= revision:
                self._gone(key)
        for record in found.values():
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
        """Takes a record that was just written or read; False where it is known to be outdated."""
        known = self.records.get(record.key)
        if known is None and record.revision < self._at:
            return False  # the watch is past it: it has gone meanwhile
        self._put(record)
        return known is None or known.revision <= record.revision

    def missing(self, key: str, revision: int) -> None:
        """Takes that a key was found gone by a read that began when `revision` was known of it."""
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

"""A part of the metadata store kept in memory: listed once, then followed by a watch.

A watch that is cut off (too slow, compacted, the store away for a while) is made up for by listing
again; until that works the last known state stands. Readers see whole records only.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.store import EventKind, MetadataStore, Record, StoreClosed

LIST_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5

log = get_logger("magnetar.balance")


class Following:
    """`records` by key, as of the last event. `run` keeps it so, until the store is closed."""

    def __init__(
        self, store: MetadataStore, prefix: str, changed: Callable[[str, Record | None], None]
    ) -> None:
        """`changed(key, record)` is told of everything found and of every change; it must not
        raise. The record is None where the key has gone."""
        self._store = store
        self._prefix = prefix
        self._changed = changed
        self.records: dict[str, Record] = {}

    async def run(self) -> None:
        """Returns when the store is closed."""
        while True:
            try:
                await self._follow()
            except StoreClosed:
                return
            except (MetadataError, TimeoutError) as error:
                log.info("listed again", prefix=self._prefix, error=str(error))
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            # The revision first: what changes between the two comes twice, never not at all.
            revision = await self._store.revision()
            found = {record.key: record for record in await self._store.list(self._prefix)}
        for key in [key for key in self.records if key not in found]:
            self._gone(key)
        for record in found.values():
            self._put(record)
        async for event in self._store.watch(self._prefix, from_revision=revision + 1):
            record = event.record
            if event.kind is EventKind.PUT:
                self._put(record)
            elif (known := self.records.get(record.key)) and known.revision < record.revision:
                self._gone(record.key)

    def _put(self, record: Record) -> None:
        known = self.records.get(record.key)
        if known is None or known.revision < record.revision:
            self.records[record.key] = record
            self._changed(record.key, record)

    def _gone(self, key: str) -> None:
        del self.records[key]
        self._changed(key, None)

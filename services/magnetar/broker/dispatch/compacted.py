"""The log as a consumer with `read_compacted` sees it: the artefact up to its horizon, then the raw
log. It stands where an `EntryReader` otherwise has the managed ledger.

Positions are those of the raw log, so there is no seam: what is at or before the horizon comes from
the artefact, what is behind it from the log. In between nothing is skipped and nothing comes twice:

- A newer artefact is looked for every RENEW_S while one is read below its horizon. The reader goes
  on in it from where it is: it has the latest values of all that comes.
- The raw log may be trimmed up to the newest horizon, not beyond. So where the log was trimmed
  beyond the place that is to be read, the newest artefact has it: it is asked for first.
- An artefact whose files are gone was replaced long ago: the newest one is read.

Only topics with such consumers ask for artefacts at all.
"""

from collections.abc import Callable
from typing import Final

from magnetar.compaction.artefact import Artefact, Artefacts
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.offload.errors import ColdFileMissing

RENEW_S: Final = 10.0

log = get_logger("magnetar.dispatch")


class CompactedLog:
    """See the module's text. One per consumer."""

    def __init__(self, ledger: ManagedLedger, artefacts: Artefacts, clock: Clock) -> None:
        self._ledger = ledger
        self._artefacts = artefacts
        self._clock = clock
        self._artefact: Artefact | None = None
        self._renewed_at = 0.0
        self._trimmed_to = EARLIEST
        """Up to where the log was trimmed when the artefact was asked for last."""

    @classmethod
    async def open(
        cls, ledger: ManagedLedger, artefacts: Artefacts, clock: Clock
    ) -> "CompactedLog":
        """Raises MetadataError where it cannot be known what is compacted."""
        opened = cls(ledger, artefacts, clock)
        await opened.renew()
        return opened

    @property
    def artefact(self) -> Artefact | None:
        """The newest that is known of."""
        return self._artefact

    @property
    def last_confirmed(self) -> Position:
        return self._ledger.last_confirmed

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        self._ledger.add_append_listener(listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        self._ledger.remove_append_listener(listener)

    def next_position(self, position: Position) -> Position:
        """As the log's, but any place may have an entry below the horizon; and, until a newer
        artefact was asked for, below where the log was trimmed to."""
        known = EARLIEST if self._artefact is None else self._artefact.horizon
        if self._ledger.trimmed_to != self._trimmed_to:
            known = max(known, self._ledger.trimmed_to)
        if position < known:
            return Position(position.ledger_id, position.entry_id + 1)
        return self._ledger.next_position(position)

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """What is in memory of the log; None where it has to be read."""
        if self._has_to_renew(start):
            return None
        artefact = self._artefact
        if artefact is not None and start <= artefact.horizon:
            if not artefact.ends_before(start):
                return None
            start = _behind(artefact)
        return self._ledger.read_cached(start, entries_max, bytes_max)

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` (inclusive) on, at least one where there is one."""
        if self._has_to_renew(start):
            await self.renew()
        try:
            found = await self._read(start, entries_max, bytes_max)
        except ColdFileMissing:
            known = self._artefact
            await self.renew()
            if known is None or self._artefact is None or self._artefact.record == known.record:
                raise
            found = await self._read(start, entries_max, bytes_max)
        while self._has_gone(start):
            # Meanwhile: of the log was read what comes behind that, and it is in an artefact.
            await self.renew()
            found = await self._read(start, entries_max, bytes_max)
        return found

    async def _read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        artefact = self._artefact
        if artefact is not None and start <= artefact.horizon:
            found = await artefact.read(start, entries_max, bytes_max)
            if found:
                return [Entry(*each) for each in found]
            start = _behind(artefact)
        return await self._ledger.read(start, entries_max, bytes_max)

    def _has_to_renew(self, start: Position) -> bool:
        artefact = self._artefact
        if self._has_gone(start):
            return True
        if artefact is None or start > artefact.horizon:
            return False
        return self._clock.monotonic() - self._renewed_at >= RENEW_S

    def _has_gone(self, start: Position) -> bool:
        """Whether the log was trimmed beyond the horizon, and beyond the reader, since the artefact
        was asked for: the newest one has what has gone."""
        trimmed_to, artefact = self._ledger.trimmed_to, self._artefact
        if trimmed_to == self._trimmed_to:
            return False
        return (start if artefact is None else max(start, _behind(artefact))) <= trimmed_to

    async def renew(self) -> None:
        """Asks for the newest artefact. Where one is known, not being told is no error."""
        ledger = self._ledger
        trimmed_to = ledger.trimmed_to
        try:
            self._artefact = await self._artefacts.live(ledger.name, ledger.created_ms)
        except MetadataError as error:
            if self._artefact is None or trimmed_to != self._trimmed_to:
                raise
            log.info("artefact not renewed", managed_ledger=ledger.name, error=str(error))
        self._trimmed_to = trimmed_to
        self._renewed_at = self._clock.monotonic()


def _behind(artefact: Artefact) -> Position:
    horizon = artefact.horizon
    return Position(horizon.ledger_id, horizon.entry_id + 1)

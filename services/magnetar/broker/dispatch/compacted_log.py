"""The log of a `read_compacted` consumer: the artifact up to its horizon, then the raw log.

An `EntryReader` reads it in place of the managed ledger. Positions are those of the raw log:
entries up to the horizon come from the artifact, later ones from the log. No entry is skipped and
none comes twice:

- While the reader is below the horizon, it checks for a newer artifact every RENEW_S, and continues
  in that one from its position: it has the latest values of all later keys.
- The raw log may be trimmed up to the newest horizon, and not beyond. If the log was trimmed beyond
  the reader's position, the newest artifact therefore has the entries, and is fetched first.
- An artifact whose files were deleted was replaced long ago: the reader fetches the newest one.

Only topics with such consumers fetch artifacts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.compaction.artifact import Artifact, Artifacts
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.log import get_logger
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.offload.errors import ColdFileMissing

if TYPE_CHECKING:
    from magnetar.offload.file_format import ColdEntry

RENEW_S: Final = 10.0

log = get_logger("magnetar.dispatch")


class CompactedLog:
    """The artifact and the raw log of one `read_compacted` consumer, as one log."""

    def __init__(self, ledger: ManagedLedger, artifacts: Artifacts, clock: Clock) -> None:
        self._ledger = ledger
        self._artifacts = artifacts
        self._clock = clock
        self._artifact: Artifact | None = None
        self._renewed_at = 0.0
        self._trimmed_to = EARLIEST
        """The log's `trimmed_to` when the artifact was last fetched."""

    @classmethod
    async def open(
        cls, ledger: ManagedLedger, artifacts: Artifacts, clock: Clock
    ) -> "CompactedLog":
        """Fetches the artifact; raises MetadataError if the metadata store does not answer."""
        opened = cls(ledger, artifacts, clock)
        await opened.renew()
        return opened

    @property
    def artifact(self) -> Artifact | None:
        """The last artifact fetched; None if the topic was never compacted."""
        return self._artifact

    @property
    def last_confirmed(self) -> Position:
        """The last confirmed position of the raw log."""
        return self._ledger.last_confirmed

    @property
    def horizon(self) -> Position | None:
        """The first entry of an open transaction in the raw log."""
        return self._ledger.horizon

    def add_append_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each append to the raw log."""
        self._ledger.add_append_listener(listener)

    def remove_append_listener(self, listener: Callable[[], None]) -> None:
        """Ends the calls of `listener`."""
        self._ledger.remove_append_listener(listener)

    def next_position(self, position: Position) -> Position:
        """The position that follows `position`, whether or not it has an entry.

        The raw log knows its positions, except below the horizon. Until a newer artifact is
        fetched, it does not know those below its `trimmed_to` either.
        """
        unknown_end = EARLIEST if self._artifact is None else self._artifact.horizon
        if self._ledger.trimmed_to != self._trimmed_to:
            unknown_end = max(unknown_end, self._ledger.trimmed_to)
        if position < unknown_end:
            return Position(position.ledger_id, position.entry_id + 1)
        return self._ledger.next_position(position)

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Returns entries from `start` that are in memory, None if they must be read."""
        if self._has_to_renew(start):
            return None
        artifact = self._artifact
        if artifact is not None and start <= artifact.horizon:
            if not artifact.ends_before(start):
                return None
            start = _behind(artifact)
        return self._ledger.read_cached(start, entries_max, bytes_max)

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        """Reads entries from `start` (inclusive) on; at least one if one exists."""
        if self._has_to_renew(start):
            await self.renew()
        try:
            entries = await self._read(start, entries_max, bytes_max)
        except ColdFileMissing:
            if not await self._replaced():
                raise
            entries = await self._read(start, entries_max, bytes_max)
        while self._has_gone(start):
            # The log was trimmed during the read, which returned only entries behind that. The
            # trimmed ones are in the newest artifact.
            await self.renew()
            entries = await self._read(start, entries_max, bytes_max)
        return entries

    async def _read(self, start: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        artifact = self._artifact
        if artifact is not None and start <= artifact.horizon:
            rows = await artifact.read(start, entries_max, bytes_max)
            if rows:
                return [Entry(*row) for row in rows]
            start = _behind(artifact)
        return await self._ledger.read(start, entries_max, bytes_max)

    def _has_to_renew(self, start: Position) -> bool:
        artifact = self._artifact
        if self._has_gone(start):
            return True
        if artifact is None or start > artifact.horizon:
            return False
        return self._clock.monotonic() - self._renewed_at >= RENEW_S

    def _has_gone(self, start: Position) -> bool:
        """Whether the log was trimmed beyond horizon and reader since the artifact was fetched.

        The newest artifact has the trimmed entries.
        """
        trimmed_to, artifact = self._ledger.trimmed_to, self._artifact
        if trimmed_to == self._trimmed_to:
            return False
        return (start if artifact is None else max(start, _behind(artifact))) <= trimmed_to

    async def current(self) -> Artifact | None:
        """Returns the artifact; the newest one if the log was trimmed since the last was fetched.

        Raises MetadataError.
        """
        if self._ledger.trimmed_to != self._trimmed_to:
            await self.renew()
        return self._artifact

    async def last_entry(self) -> "ColdEntry | None":
        """Returns the artifact's last entry, None if it has none; raises MetadataError."""
        try:
            return None if self._artifact is None else await self._artifact.last_entry()
        except ColdFileMissing:
            if not await self._replaced():
                raise
            return await self.last_entry()

    async def _replaced(self) -> bool:
        """Fetches the newest artifact; returns whether it is another one."""
        former = self._artifact
        await self.renew()
        if former is None or self._artifact is None:
            return False
        return self._artifact.record != former.record

    async def renew(self) -> None:
        """Fetches the newest artifact. A failure is no error while the one at hand suffices."""
        ledger = self._ledger
        trimmed_to = ledger.trimmed_to
        try:
            self._artifact = await self._artifacts.live(ledger.name, ledger.created_ms)
        except MetadataError as error:
            if self._artifact is None or trimmed_to != self._trimmed_to:
                raise
            log.info("artifact not renewed", managed_ledger=ledger.name, error=str(error))
        self._trimmed_to = trimmed_to
        self._renewed_at = self._clock.monotonic()


def _behind(artifact: Artifact) -> Position:
    horizon = artifact.horizon
    return Position(horizon.ledger_id, horizon.entry_id + 1)

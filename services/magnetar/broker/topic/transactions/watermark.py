"""The watermark of a topic with transactions: every entry up to it is settled.

Settled means that the entry belongs to no transaction, or to an ended one. The watermark is a
property of the managed ledger. A topic that never had a transaction has none. It is written for the
first transaction, then once WATERMARK_ENTRIES more entries or WATERMARK_BYTES are settled, at most
once in WATERMARK_INTERVAL_S, and when the topic is closed. So both bound what a next owner, Spark
and the compaction job read to find the open transactions.
"""

from collections.abc import Callable
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import WATERMARK_PROPERTY, watermark_of

WATERMARK_ENTRIES: Final = 10_000
WATERMARK_BYTES: Final = 64 << 20
WATERMARK_INTERVAL_S: Final = 2.0

log = get_logger("magnetar.transactions")


class Watermark:
    """Stores how far a topic's entries are settled."""

    __slots__ = (
        "_clock", "_ledger", "_listening", "_settled_to", "_stored", "_stored_s", "_tasks",
        "_writing",
    )  # fmt: skip

    def __init__(
        self,
        ledger: ManagedLedger,
        clock: Clock,
        tasks: TaskSet,
        settled_to: Callable[[], Position],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._tasks = tasks
        self._settled_to = settled_to
        self._stored: Position | None = None
        self._stored_s = 0.0
        self._writing = False
        self._listening = False

    @staticmethod
    def of(ledger: ManagedLedger) -> Position | None:
        """Returns the stored watermark, None if the log never had a transaction."""
        return watermark_of(ledger.properties)

    def start(self, stored: Position) -> None:
        """Follows the log, given the stored watermark."""
        self._stored = stored
        self._stored_s = self._clock.monotonic()
        if not self._listening:
            self._listening = True
            self._ledger.add_append_listener(self._appended)

    @property
    def stored(self) -> bool:
        """Whether the log has a watermark."""
        return self._stored is not None

    async def create(self) -> None:
        """Stores a first watermark if there is none."""
        if self._stored is None:
            settled = self._settled_to()
            await self._store(settled)
            if self._stored is None:
                self.start(settled)

    def _appended(self) -> None:
        """Called once per fsync of the log, and when the horizon moves."""
        stored = self._stored
        if (
            stored is None
            or self._writing
            or self._clock.monotonic() - self._stored_s < WATERMARK_INTERVAL_S
            or not self._is_due(stored, self._settled_to())
        ):
            return
        self._writing = True
        if self._tasks.start(self._advance(), f"watermark of {self._ledger.name}") is None:
            self._writing = False

    def _is_due(self, stored: Position, settled: Position) -> bool:
        if self._ledger.entries_between(stored, settled) >= WATERMARK_ENTRIES:
            return True
        bytes_after = self._ledger.index.bytes_after
        return bytes_after(*stored) - bytes_after(*settled) >= WATERMARK_BYTES

    async def _advance(self) -> None:
        self._stored_s = self._clock.monotonic()
        try:
            settled = self._settled_to()
            await self._store(settled)
            self._stored = settled
        except MagnetarError as error:
            log.info("watermark not stored", managed_ledger=self._ledger.name, error=str(error))
        finally:
            self._writing = False

    async def _store(self, settled: Position) -> None:
        await self._ledger.set_properties({WATERMARK_PROPERTY: str(settled)})

    def stop(self) -> None:
        """Stops following the log."""
        if self._listening:
            self._listening = False
            self._ledger.remove_append_listener(self._appended)

    async def close(self) -> None:
        """Stores how far the entries are settled now, if that has moved."""
        if self._stored is not None and self._settled_to() != self._stored:
            await self._advance()

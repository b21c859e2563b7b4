"""Stores the ids of deduplication with the cursor `pulsar.dedup` of a topic.

The ids are the payload of the cursor's own ledger, so they are as durable as acks. Mark-delete is
the position that the stored ids cover: entries after it stay until the next snapshot, so that the
topic's next owner can replay them. A snapshot is due after a number of entries, which bounds the
replay and how much data the cursor holds back, and after a time (`Deduplication.sweep`).

The cursor is created when the first producer attaches: a topic without producers costs nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.broker.topic.deduplication.codec_v1 import Snapshot, SnapshotInvalid, decode, encode
from magnetar.broker.topic.deduplication.sequences import ProducerSequence
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import DEDUPLICATION_CURSOR

CURSOR: Final = DEDUPLICATION_CURSOR
"""The name of the cursor, which is Pulsar's."""

log = get_logger("magnetar.topic.deduplication")


class SnapshotUnreadable(ServiceNotReady):
    """The stored ids cannot be read now, so the topic cannot tell duplicates."""


class Snapshots:
    """The stored ids of one topic."""

    __slots__ = (
        "_clock",
        "_creating",
        "_due_at",
        "_encoded_at",
        "_entries_max",
        "_ledger",
        "_producers",
        "_taken_at",
        "_writing",
        "cursor",
        "taken_s",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        producers: Callable[[], dict[str, ProducerSequence]],
        entries_max: int,
        clock: SteadyClock,
    ) -> None:
        """`producers()` returns the present ids; `entries_max` entries make a snapshot due."""
        self.cursor: Cursor | None = None
        self.taken_s = clock.monotonic()
        """When the last snapshot was stored, on the monotonic clock."""
        self._clock = clock
        self._ledger = ledger
        self._producers = producers
        self._entries_max = entries_max
        self._creating: asyncio.Lock | None = None
        self._encoded_at: tuple[Position, int] = (EARLIEST, 0)
        self._taken_at = 0
        self._due_at = ledger.entries_added + entries_max
        self._writing = False

    def load(self) -> Snapshot | None:
        """Returns the stored ids and attaches to the cursor; None if there is no cursor.

        Raises SnapshotUnreadable. The ledger's entries after the position are to be replayed.
        """
        if (broken := self._ledger.broken_cursors.get(CURSOR)) is not None:
            raise self._unreadable(broken[1])
        cursor = self._ledger.cursors.get(CURSOR)
        if cursor is None:
            return None
        # A cursor without a payload was created shortly before a crash, or is a subscription that
        # an earlier version allowed: the entries after it are replayed.
        snapshot = Snapshot(cursor.mark_delete, {})
        if cursor.payload is not None:
            try:
                snapshot = decode(cursor.payload())
            except SnapshotInvalid as error:
                raise self._unreadable(error) from error
        cursor.payload_covers(snapshot.position)
        self.cursor = cursor
        return snapshot

    def _unreadable(self, reason: Exception) -> SnapshotUnreadable:
        return SnapshotUnreadable(
            f"The ids for the deduplication of {self._ledger.name} cannot be read: {reason}. Retry "
            "once all bookies are up. If the ids are lost, switch deduplication off for the topic, "
            "which deletes them, and on again"
        )

    def begin(self, replayed: int) -> None:
        """Stores the present ids from now on: they are complete up to the last entry.

        `replayed` is the number of entries that the stored ids do not cover yet.
        """
        self._taken_at = self._ledger.entries_added - replayed
        self._due_at = self._taken_at + self._entries_max
        if self.cursor is not None:
            self._ledger.carry_payload(self.cursor, self._payload)

    async def create(self) -> None:
        """Creates the cursor after the last entry, if there is none. Raises MagnetarError."""
        if self.cursor is not None:
            return
        if self._creating is None:
            self._creating = asyncio.Lock()
        async with self._creating:
            if self.cursor is None:
                self.cursor = await self._ledger.open_cursor(CURSOR, initial=LATEST)

    def _payload(self) -> bytes:
        position = self._ledger.last_confirmed
        self._encoded_at = (position, self._ledger.entries_added)
        return encode(position, self._producers())

    def entries_confirmed(self) -> None:
        """Takes a snapshot if enough entries were added since the last one."""
        if self._ledger.entries_added >= self._due_at:
            self.take()

    @property
    def entries_since(self) -> int:
        """The number of entries that the last snapshot does not cover."""
        return self._ledger.entries_added - self._taken_at

    def take(self) -> None:
        """Starts storing the present ids, unless a write is under way."""
        if self.cursor is None or self._writing:
            return
        self._writing = True
        self._due_at = self._ledger.entries_added + self._entries_max
        self.cursor.store_payload(self._stored)

    def _stored(self, error: MagnetarError | None) -> None:
        self._writing = False
        if error is not None:
            log.warning(
                "snapshot of deduplication not stored, will retry; until then more entries must "
                "be replayed when the topic is loaded",
                topic=self._ledger.name,
                error=str(error),
            )
            return
        position, self._taken_at = self._encoded_at
        self.taken_s = self._clock.monotonic()
        if self.cursor is not None:
            self.cursor.payload_covers(position)


async def delete_stored(ledger: ManagedLedger) -> None:
    """Deletes the topic's stored ids, readable or not. Raises MagnetarError."""
    if CURSOR in ledger.cursors or CURSOR in ledger.broken_cursors:
        await ledger.delete_cursor(CURSOR)

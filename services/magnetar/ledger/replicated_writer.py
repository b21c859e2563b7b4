"""The writer of a ledger whose entries are on several bookies.

A group goes to every bookie of its write set, split where stripes end. It is confirmed when each of
its pieces has an ack quorum and all earlier groups are confirmed. The bytes of confirmed pieces are
kept, in order, until their whole write set has them (`late_bytes_max`, over all writers).

A bookie that fails, is deregistered, or has not answered for `add_timeout_s`, is replaced
(`ensemble_change`). If no other bookie is available, the ledger continues on the remaining ones
while they are an ack quorum; it is `degraded` if that means fewer copies. Below the ack quorum the
writer fails, and its user continues in another ledger. LedgerFenced from any bookie is final.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieLate,
    BookieUnavailable,
    LedgerFenced,
    NoSuchLedger,
)
from magnetar.bookie.packed import pack
from magnetar.core.errors import MagnetarError, PersistenceError
from magnetar.core.log import get_logger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.ensemble_change import EnsembleChange
from magnetar.ledger.metadata import NO_ENTRY, Ensemble, LedgerMetadata
from magnetar.ledger.quorum import UNENDED, stripe_last, with_ensemble
from magnetar.ledger.replicas import NO_PIECES, Layout, Piece, Replica
from magnetar.ledger.writer import LedgerWriter, OnAppended

TICKS: Final = 4
"""Checks of a replica's oldest add within its timeout: after a pause of the process, one tick
passes, not all."""

log = get_logger("magnetar.ledger.writer")


class ReplicatedWriter(LedgerWriter):
    """Writes a ledger to several bookies. It is a `ChangingWriter` for `EnsembleChange`."""

    __slots__ = (
        "_ack_quorum",
        "_bits",
        "_change",
        "_count_at",
        "_dead",
        "_loop",
        "_missing",
        "_striped",
        "_timer",
        "late",
        "layout",
        "pending",
        "possible",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        revision: int,
        bookies: Sequence[Bookie],
        context: LedgerContext,
    ) -> None:
        super().__init__(metadata, revision, context)
        self._loop = asyncio.get_running_loop()
        self._ack_quorum = metadata.ack_quorum
        self._bits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._missing: tuple[int, tuple[BookieIdentity, ...]] | None = None
        self.pending: deque[Piece] = NO_PIECES
        self.late: deque[Piece] = NO_PIECES
        """Confirmed pieces that some replica lacks, and the confirmed ones behind them."""
        self._dead = 0
        """The replicas that failed."""
        self.layout = self.layout_of(0, [self.replica_of(bookie) for bookie in bookies])
        """The layout to which appended entries go."""
        self.possible: tuple[Layout, ...] = (self.layout,)
        """The layouts that the record may hold as its last ensemble; several during a change."""
        self._striped = self.layout.striped
        """Whether one of these is striped: pieces end with stripes then."""
        self._change = EnsembleChange(self, context)
        self._count_at = 0
        self.count_later()

    def replica_of(self, bookie: Bookie) -> Replica:
        """Returns a new replica on the bookie."""
        self._bits += 1
        return Replica(self, bookie, 1 << (self._bits - 1))

    def layout_of(self, first_entry: int, replicas: Sequence[Replica]) -> Layout:
        """Returns a layout of the replicas, from `first_entry` on."""
        metadata = self.metadata
        return Layout(first_entry, replicas, metadata.write_quorum, metadata.stripe_entries)

    @property
    def bookies(self) -> Sequence[BookieIdentity]:
        return self.layout.bookies

    def append(self, entries: list[bytes], on_appended: OnAppended) -> int:
        """See `LedgerWriter.append`."""
        size = sum(map(len, entries))
        if self._error is not None:
            self._loop.call_soon(on_appended, NO_ENTRY, self._error)
            return size
        first = self._next_entry
        self._next_entry = end = first + len(entries)
        layout, confirmed = self.layout, self.last_add_confirmed
        if self._striped and end - 1 > self._stripe_last(first):
            self._append_pieces(first, entries, size, on_appended)
        else:
            want, replicas = layout.set_of(first)
            need = want if len(self.possible) == 1 else self.need_of(first, want)
            piece = Piece(first, end, entries, size, want, need, first, size, on_appended)
            if self.pending is NO_PIECES:
                self.pending = deque()
            self.pending.append(piece)
            group = pack(entries)
            for replica in replicas:
                replica.send(piece, group, confirmed)
        if self._timer is None:
            self.watch()
        return size

    def _stripe_last(self, entry_id: int) -> int:
        return stripe_last(self.metadata.stripe_entries, entry_id)

    def _append_pieces(
        self, group_first: int, entries: list[bytes], group_bytes: int, on_appended: OnAppended
    ) -> None:
        """Sends a group that crosses the end of a stripe."""
        first, group_end = group_first, self._next_entry
        while first < group_end:
            end = min(group_end, self._stripe_last(first) + 1)
            part = entries[first - group_first : end - group_first]
            want, replicas = self.layout.set_of(first)
            need = want if len(self.possible) == 1 else self.need_of(first, want)
            callback = on_appended if end == group_end else None
            piece = Piece(
                first,
                end,
                part,
                sum(map(len, part)),
                want,
                need,
                group_first,
                group_bytes,
                callback,
            )
            if self.pending is NO_PIECES:
                self.pending = deque()
            self.pending.append(piece)
            group = pack(part)
            for replica in replicas:
                replica.send(piece, group, self.last_add_confirmed)
            first = end

    def need_of(self, entry_id: int, want: int) -> int:
        """Returns the replicas that count towards an entry's ack quorum: see `replicas`."""
        for layout in self.possible:
            if layout.first_entry <= entry_id:
                want &= layout.set_of(entry_id)[0]
        return want

    def piece_acked(self, piece: Piece) -> None:
        """See `ReplicaOwner.piece_acked`."""
        pending = self.pending
        if pending:
            if piece is pending[0]:
                if (piece.acked & piece.need).bit_count() >= self._ack_quorum:
                    self.confirm()
                return
            if not self.late:
                return
        if self.late:
            self.release()
            self._change.wake()

    def confirm(self) -> None:
        """Completes, in order, the pieces that have their ack quorum."""
        pending, quorum = self.pending, self._ack_quorum
        while pending:
            piece = pending[0]
            if (piece.acked & piece.need).bit_count() < quorum:
                break
            pending.popleft()
            on_appended = piece.on_appended
            if (
                self.late
                or on_appended is None
                or piece.acked & piece.want != piece.want
                or len(self.possible) > 1
            ):
                self._keep(piece)
            if on_appended is not None:
                self.last_add_confirmed = piece.end - 1
                self.length_bytes += piece.group_bytes
                on_appended(piece.group_first, None)
        if not self.pending:
            self.pending = NO_PIECES
        if self.late:
            self.release()
        if not self.lac_watched:
            self._context.explicit_lac.watch(self)
        if self.last_add_confirmed >= self._count_at and self._error is None:
            self._change.start()
        if self._drained is not None:
            self._wake_closer()

    def _keep(self, piece: Piece) -> None:
        """Keeps a confirmed piece for the replicas that lack it."""
        context = self._context
        if self.late is NO_PIECES:
            self.late = deque()
        self.late.append(piece)
        context.late_bytes += piece.size
        if context.late_bytes > context.settings.late_bytes_max:
            self._loop.call_soon(self._too_late)

    def _too_late(self) -> None:
        """Drops the slowest replica, because its entries take too much memory."""
        context = self._context
        if self._error is not None or not self.late:
            return
        if context.late_bytes <= context.settings.late_bytes_max:
            return
        confirmed = self.last_add_confirmed
        busy = [replica for replica in self.layout.replicas if replica.inflight]
        behind = [replica for replica in busy if replica.inflight[0].first <= confirmed]
        if behind:
            slowest = min(behind, key=lambda replica: replica.inflight[0].first)
            name = slowest.identity.bookie_id
            self.replica_failed(
                slowest, BookieLate(f"bookie {name} is too far behind with its adds")
            )
        elif len(self.possible) > 1:
            self.fail(
                PersistenceError(
                    f"ledger {self.ledger_id}: its ensemble could not be recorded in time"
                )
            )

    def release(self) -> None:
        """Releases, in order, the pieces that their whole write set has."""
        if len(self.possible) > 1:
            return
        late, confirmed = self.late, self.last_add_confirmed
        while late and late[0].acked & late[0].want == late[0].want:
            if late[0].first > confirmed:
                break  # its group is not confirmed: all of it may have to go to another bookie
            self._context.late_bytes -= late.popleft().size
        if not late:
            self.late = NO_PIECES
        if self._drained is not None:
            self._wake_closer()

    def replica_failed(self, replica: Replica, error: BookieError) -> None:
        """See `ReplicaOwner.replica_failed`."""
        if self._error is not None or replica.error is not None:
            return
        if isinstance(error, LedgerFenced | NoSuchLedger):
            self.fail(error)
            return
        replica.stop(error)
        self._dead |= replica.bit
        self._context.bookies.failed(replica.identity, error)
        self._change.avoid(replica.identity, str(error))
        self._change.start()

    def bookie_lost(self, identity: BookieIdentity) -> None:
        """See `LedgerWriter.bookie_lost`."""
        for replica in self.layout.replicas:
            if replica.identity == identity:
                lost = BookieUnavailable(f"bookie {identity.bookie_id} has left")
                self.replica_failed(replica, lost)

    def grow(self) -> None:
        """See `LedgerWriter.grow`."""
        if self._error is None and self.degraded:
            self._change.start_growing()

    def watch(self) -> None:
        """Checks the replicas for overdue adds, until nothing is in flight."""
        if self._timer is not None:
            return
        interval_s = self._context.settings.add_timeout_s / TICKS
        self._timer = self._loop.call_later(interval_s, self._check_replicas)

    def _check_replicas(self) -> None:
        self._timer = None
        if self._error is not None:
            return
        for replica in self.layout.replicas:
            if replica.overdue(TICKS):
                timeout_s = self._context.settings.add_timeout_s
                name = replica.identity.bookie_id
                late = f"bookie {name} did not answer an add within {timeout_s:g} s"
                self.replica_failed(replica, BookieLate(late))
        if any(replica.inflight for replica in self.layout.replicas):
            self.watch()

    def count_later(self) -> None:
        """Schedules the next count of the ledger's length on the record."""
        self._count_at = UNENDED
        if self.layout.striped or len(self.metadata.ensembles) > 1:
            self._count_at = self.last_add_confirmed + self._context.settings.count_entries

    @property
    def count_due(self) -> bool:
        return self.last_add_confirmed >= self._count_at

    def fail(self, error: MagnetarError) -> None:
        """See `LedgerWriter.fail`."""
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._missing = self._lacking()
        for replica in self.layout.replicas:
            replica.stop(BookieError("the writer has ended"))
        self._context.late_bytes -= sum(piece.size for piece in self.late)
        self.late = NO_PIECES
        pending, self.pending = self.pending, NO_PIECES
        for piece in pending:
            if piece.on_appended is not None:
                piece.on_appended(NO_ENTRY, error)
        self._change.wake()
        self._wake_closer()

    @property
    def unconfirmed(self) -> bool:
        return bool(self.pending)

    @property
    def idle(self) -> bool:
        return not (self.pending or self.late)

    @property
    def first_unsafe(self) -> int:
        for piece in self.late:
            if piece.want & self._dead & ~piece.acked:
                return min(self.last_add_confirmed + 1, piece.first)
        return self.last_add_confirmed + 1

    def switch(self, layout: Layout) -> None:
        """See `ChangingWriter.switch`."""
        self.layout = layout
        self.possible = (*self.possible, layout)
        self._striped = self._striped or layout.striped
        confirmed = self.last_add_confirmed
        for pieces in (self.late, self.pending):
            for piece in pieces:
                if piece.first < layout.first_entry:
                    continue
                piece.want, replicas = layout.set_of(piece.first)
                piece.need = self.need_of(piece.first, piece.want)
                lacking = [replica for replica in replicas if not piece.sent & replica.bit]
                if lacking:
                    group = pack(piece.entries)
                    for replica in lacking:
                        piece.sent |= replica.bit
                        replica.send(piece, group, confirmed)
        self.watch()

    def copied(self) -> bool:
        """See `ChangingWriter.copied`."""
        first, quorum = self.layout.first_entry, self._ack_quorum
        return all(
            (piece.acked & piece.want).bit_count() >= quorum
            for piece in self.late
            if piece.first >= first
        )

    def rewritten(self, metadata: LedgerMetadata, revision: int) -> None:
        """Takes over the record as it was written."""
        self.metadata, self._revision = metadata, revision
        self.count_later()

    def recorded(self, layout: Layout) -> None:
        """Makes this layout, which is on record now, the only possible one."""
        self.possible, self._striped = (layout,), layout.striped
        for piece in self.pending:
            piece.need = piece.want
        self.confirm()
        self.release()

    def settle(self) -> None:
        """Resumes a close that waits for the change to end."""
        if self._drained is not None:
            self._wake_closer()

    def _lacking(self) -> tuple[int, tuple[BookieIdentity, ...]] | None:
        """Returns the first confirmed entry with missing copies, and the bookies that have all."""
        unrecorded = min((layout.first_entry for layout in self.possible[1:]), default=UNENDED)
        lacking = deque(piece for piece in self.late if piece.first <= self.last_add_confirmed)
        while lacking and lacking[0].first < unrecorded:
            if lacking[0].acked & lacking[0].want != lacking[0].want:
                break
            lacking.popleft()
        if not lacking or self.layout.striped:
            return None
        everything = -1
        for piece in lacking:
            everything &= piece.acked
        replicas = self.layout.replicas
        have = tuple(replica.identity for replica in replicas if replica.bit & everything)
        return (lacking[0].first, have) if len(have) >= self._ack_quorum else None

    def _final_ensembles(self, ensembles: tuple[Ensemble, ...]) -> tuple[Ensemble, ...]:
        """Leaves out bookies that lack entries, so that autorecovery copies them again."""
        if self._missing is None:
            return ensembles
        first, have = self._missing
        return with_ensemble(self.metadata.with_ensembles(ensembles), first, have)

    def _settled(self) -> bool:
        if self._error is not None:
            return not self._change.running
        return not (self.pending or self.late or self._change.running)

    async def _quiesce(self) -> None:
        await self._change.stop()

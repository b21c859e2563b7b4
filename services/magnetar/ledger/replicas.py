"""The entries that a replicated writer has in flight, and the bookies they go to.

A `Replica` is one bookie as one writer uses it, once: after its first failure it gets no more adds,
and its later answers are ignored. It is then replaced; the same bookie may return as another
replica. A bookie answers adds in order (`bookie.api`), so a replica keeps a queue and needs no
callback per add. Each replica is a bit; sets of replicas are masks.

A `Piece` is a run of entries of one group with the same write set. `want` is the replicas that must
have it, `acked` those that have it on disk, and `need` those whose acks count towards its ack
quorum now: while the ledger's record may hold several ensembles, only the replicas in its write set
by every one of them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieError, BookieIdentity
from magnetar.bookie.packed import PackedEntries
from magnetar.core.errors import MagnetarError
from magnetar.ledger.quorum import striped, write_sets

OnAppended = Callable[[int, MagnetarError | None], None]


class Piece:
    """A run of entries with one write set; the last piece of a group carries its callback."""

    __slots__ = (
        "acked",
        "end",
        "entries",
        "first",
        "group_bytes",
        "group_first",
        "need",
        "on_appended",
        "sent",
        "size",
        "want",
    )

    def __init__(
        self,
        first: int,
        end: int,
        entries: list[bytes],
        size: int,
        want: int,
        need: int,
        group_first: int,
        group_bytes: int,
        on_appended: OnAppended | None,
    ) -> None:
        self.first = first
        self.end = end
        self.entries = entries
        self.size = size
        self.want = self.sent = want
        self.need = need
        self.acked = 0
        self.group_first = group_first
        self.group_bytes = group_bytes
        self.on_appended = on_appended


NO_PIECES: Final[deque[Piece]] = deque(maxlen=0)
"""Stands for an empty deque, which would take 760 bytes: most ledgers have nothing in flight."""


class ReplicaOwner(Protocol):
    """The writer of a replica."""

    ledger_id: int

    def piece_acked(self, piece: Piece) -> None:
        """A replica has the piece on disk; `piece.acked` has its bit already."""

    def replica_failed(self, replica: "Replica", error: BookieError) -> None:
        """The replica failed an add; it is used no more."""


class Replica:
    """One bookie, as one writer uses it until its first failure."""

    __slots__ = ("_owner", "bit", "bookie", "error", "identity", "inflight", "ticks", "watched")

    def __init__(self, owner: ReplicaOwner, bookie: Bookie, bit: int) -> None:
        self._owner = owner
        self.bookie = bookie
        self.identity = bookie.identity
        self.bit = bit
        self.error: BookieError | None = None
        self.inflight: deque[Piece] = NO_PIECES
        self.watched: Piece | None = None
        self.ticks = 0

    def send(self, piece: Piece, group: PackedEntries, last_add_confirmed: int) -> None:
        """Sends the piece, unless the replica has failed; `group` is its entries, packed."""
        if self.error is not None:
            return
        if self.inflight is NO_PIECES:
            self.inflight = deque()
        self.inflight.append(piece)
        self.bookie.add_entries(
            self._owner.ledger_id,
            range(piece.first, piece.end),
            group,
            last_add_confirmed=last_add_confirmed,
            on_added=self.on_added,
        )

    def on_added(self, error: BookieError | None) -> None:
        """Handles the answer to the oldest piece in flight."""
        if self.error is not None:
            return
        if error is not None:
            self._owner.replica_failed(self, error)
            return
        piece = self.inflight.popleft()
        if not self.inflight:
            self.inflight = NO_PIECES
        piece.acked |= self.bit
        self._owner.piece_acked(piece)

    def stop(self, error: BookieError) -> None:
        """Stops the replica; its later answers are ignored."""
        self.error = error
        self.inflight = NO_PIECES
        self.watched = None

    def overdue(self, ticks_max: int) -> bool:
        """Whether the oldest piece in flight stayed the same for this many ticks in a row."""
        head = self.inflight[0] if self.inflight else None
        if head is None or head is not self.watched:
            self.watched, self.ticks = head, 0
            return False
        self.ticks += 1
        return self.ticks >= ticks_max


class Layout:
    """The replicas that hold the entries from `first_entry` on."""

    __slots__ = ("_sets", "_stripe", "first_entry", "mask", "replicas", "striped")

    def __init__(
        self, first_entry: int, replicas: Sequence[Replica], write_quorum: int, stripe: int
    ) -> None:
        self.first_entry = first_entry
        self.replicas = tuple(replicas)
        self.mask = sum(replica.bit for replica in replicas)
        self.striped = striped(len(replicas), write_quorum)
        self._stripe = stripe
        self._sets = [
            (sum(replicas[slot].bit for slot in slots), tuple(replicas[slot] for slot in slots))
            for slots in write_sets(len(replicas), write_quorum)
        ]

    @property
    def bookies(self) -> tuple[BookieIdentity, ...]:
        return tuple(replica.identity for replica in self.replicas)

    def set_of(self, entry_id: int) -> tuple[int, tuple[Replica, ...]]:
        """Returns the write set of an entry: its mask, its replicas."""
        return self._sets[(entry_id // self._stripe) % len(self.replicas)]

"""What a replicated writer has on its way: pieces of groups, the bookies they go to, the layout.

A `Replica` is one bookie as one writer uses it, once: after its first failure it is not sent
anything any more, and what it still answers does not count (it is replaced; the same bookie may
come back later as another replica). It answers in the order in which it was asked (`bookie.api`),
so it keeps a queue and needs no callback for each add. A replica is a bit, sets of them are masks.

A `Piece` is a run of entries of one group that have the same write set. `want` is who shall have
it, `acked` who has it on disk, `need` whose word counts now towards its ack quorum: while it is not
known which ensemble stands in the ledger's record, only those that are in its write set by every
one of the records that may stand.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieError, BookieIdentity
from magnetar.core.errors import MagnetarError
from magnetar.ledger.quorum import striped, write_sets

OnAppended = Callable[[int, MagnetarError | None], None]


class Piece:
    """See the module's text. The last piece of a group carries whom to tell of it."""

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
"""In place of an empty one: each would take 760 bytes, and most ledgers have nothing on its way."""


class ReplicaOwner(Protocol):
    """What a replica asks of its writer."""

    ledger_id: int

    def piece_acked(self, piece: Piece) -> None:
        """A replica has it on disk: `piece.acked` says so already."""

    def replica_failed(self, replica: "Replica", error: BookieError) -> None:
        """It failed an add: the first time is the last."""


class Replica:
    """See the module's text."""

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

    def send(self, piece: Piece, last_add_confirmed: int) -> None:
        """Sends it, unless the replica has failed."""
        if self.error is not None:
            return
        if self.inflight is NO_PIECES:
            self.inflight = deque()
        self.inflight.append(piece)
        self.bookie.add_entries(
            self._owner.ledger_id,
            range(piece.first, piece.end),
            piece.entries,
            last_add_confirmed=last_add_confirmed,
            on_added=self.on_added,
        )

    def on_added(self, error: BookieError | None) -> None:
        """The oldest piece that was sent is answered."""
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
        """Is done with: what it still says is not listened to."""
        self.error = error
        self.inflight = NO_PIECES
        self.watched = None

    def overdue(self, ticks_max: int) -> bool:
        """Whether its oldest piece was the same for so many looks in a row."""
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
        """The write set of an entry: its mask, its replicas."""
        return self._sets[(entry_id // self._stripe) % len(self.replicas)]

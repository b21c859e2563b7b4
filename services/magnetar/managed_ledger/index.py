"""Arithmetic on the positions of one managed ledger. Pure.

A managed ledger is a list of ledgers with ascending ids. Only the last may still grow. Any of them
may be empty. An entry's rank is its index in the whole managed ledger, counted from an origin that
never moves while the index lives; trimming does not renumber. So the number of entries between two
positions is a subtraction, regardless of ledger boundaries, and a position in a trimmed ledger has
the rank of the place where it was.

The position before everything, in a managed ledger that never had a ledger, is EARLIEST, (-1, -1).
"""

from bisect import bisect_left, bisect_right
from operator import attrgetter

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.errors import LedgerIdRegression

_ledger_id = attrgetter("ledger_id")


class LedgerInfo:
    """One ledger of the list. `closed_ms` is 0 while it may grow."""

    __slots__ = (
        "base_bytes",
        "base_rank",
        "closed_ms",
        "created_ms",
        "entries",
        "ledger_id",
        "size_bytes",
    )

    def __init__(
        self,
        ledger_id: int,
        created_ms: int,
        *,
        entries: int = 0,
        size_bytes: int = 0,
        closed_ms: int = 0,
    ) -> None:
        self.ledger_id = ledger_id
        self.created_ms = created_ms
        self.entries = entries
        self.size_bytes = size_bytes
        self.closed_ms = closed_ms
        self.base_rank = 0
        self.base_bytes = 0


class LedgerIndex:
    """The ledgers in order. `last_ledger`, `last_entry`: the last confirmed position."""

    __slots__ = (
        "_by_id",
        "_rank_end",
        "_size_end",
        "infos",
        "last_entry",
        "last_ledger",
        "trimmed_to",
    )

    def __init__(self, last: Position = EARLIEST) -> None:
        self.infos: list[LedgerInfo] = []
        self.last_ledger, self.last_entry = last
        self.trimmed_to = last
        """The last entry that was trimmed; EARLIEST if there is none."""
        self._by_id: dict[int, LedgerInfo] = {}
        self._rank_end = 0
        self._size_end = 0

    @property
    def last_confirmed(self) -> Position:
        return Position(self.last_ledger, self.last_entry)

    @property
    def first_position(self) -> Position:
        """The position just before the first kept entry."""
        return Position(self.infos[0].ledger_id, -1) if self.infos else self.last_confirmed

    @property
    def rank_end(self) -> int:
        """The number of entries since the origin, including trimmed ones."""
        if not self.infos:
            return self._rank_end
        last = self.infos[-1]
        return last.base_rank + last.entries

    @property
    def entries(self) -> int:
        return self.rank_end - self.infos[0].base_rank if self.infos else 0

    @property
    def size_bytes(self) -> int:
        if not self.infos:
            return 0
        last = self.infos[-1]
        return last.base_bytes + last.size_bytes - self.infos[0].base_bytes

    def get(self, ledger_id: int) -> LedgerInfo | None:
        return self._by_id.get(ledger_id)

    def check_new(self, ledger_id: int) -> None:
        """Raises LedgerIdRegression if a ledger with this id would move positions back."""
        newest = self.infos[-1].ledger_id if self.infos else -1
        if ledger_id <= max(newest, self.last_ledger):
            raise LedgerIdRegression(
                f"new ledger {ledger_id} is not above {max(newest, self.last_ledger)}"
            )

    def add(self, info: LedgerInfo) -> None:
        """Appends a ledger; its entries, if any, count as confirmed."""
        self.check_new(info.ledger_id)
        if self.infos:
            previous = self.infos[-1]
            info.base_rank = previous.base_rank + previous.entries
            info.base_bytes = previous.base_bytes + previous.size_bytes
        else:
            info.base_rank, info.base_bytes = self._rank_end, self._size_end
        self.infos.append(info)
        self._by_id[info.ledger_id] = info
        if info.entries:
            self.last_ledger, self.last_entry = info.ledger_id, info.entries - 1
        elif self.last_ledger < 0:
            self.last_ledger = info.ledger_id

    def grow(self, info: LedgerInfo, entries: int, size_bytes: int) -> None:
        """Counts entries that were confirmed at the end of the last ledger."""
        info.entries = count = info.entries + entries
        info.size_bytes += size_bytes
        self.last_ledger, self.last_entry = info.ledger_id, count - 1

    def remove(self, ledger_ids: set[int]) -> None:
        """Removes ledgers: a head of the list, or an empty last one. Ranks do not change."""
        for info in self.infos:
            if info.ledger_id in ledger_ids and info.entries:
                self.trimmed_to = Position(info.ledger_id, info.entries - 1)
        self._rank_end = self.rank_end
        if self.infos:
            last = self.infos[-1]
            self._size_end = last.base_bytes + last.size_bytes
        self.infos = [info for info in self.infos if info.ledger_id not in ledger_ids]
        for ledger_id in ledger_ids:
            self._by_id.pop(ledger_id, None)

    def last_entry_of(self, ledger_id: int) -> int:
        """Returns the ledger's last entry id; -1 if it is empty or not listed."""
        info = self._by_id.get(ledger_id)
        return -1 if info is None else info.entries - 1

    def ledger_after(self, ledger_id: int) -> LedgerInfo | None:
        """Returns the next ledger that has entries."""
        at = bisect_right(self.infos, ledger_id, key=_ledger_id)
        if at == len(self.infos):
            return None
        if self.infos[at].entries:
            return self.infos[at]
        passed = self.infos[at].base_rank
        return self._ledger_of(passed + 1) if passed < self.rank_end else None

    def locate(self, ledger_id: int, entry_id: int) -> tuple[LedgerInfo, int] | None:
        """Returns the first entry at or after this position; None if there is none yet."""
        info = self._by_id.get(ledger_id)
        if info is not None and max(entry_id, 0) < info.entries:
            return info, max(entry_id, 0)
        after = self.ledger_after(ledger_id)
        return None if after is None else (after, 0)

    def next_position(self, ledger_id: int, entry_id: int) -> Position:
        """Returns the first entry after this position, or a position that sorts before it."""
        following = self.locate(ledger_id, entry_id + 1)
        if following is not None:
            return Position(following[0].ledger_id, following[1])
        return Position(ledger_id, entry_id + 1)

    def floor(self, ledger_id: int, entry_id: int) -> Position:
        """Returns the last entry at or before this position, or `first_position`."""
        info = self._by_id.get(ledger_id)
        if info is not None and info.entries and entry_id >= 0:
            return Position(ledger_id, min(entry_id, info.entries - 1))
        at = bisect_left(self.infos, ledger_id, key=_ledger_id)
        if at == 0:
            return self.first_position
        before = self.infos[at - 1]
        rank = before.base_rank + before.entries
        return self.position_at(rank) if rank > self.infos[0].base_rank else self.first_position

    def previous_position(self, ledger_id: int, entry_id: int) -> Position:
        """Returns the last entry before this position, or `first_position`."""
        return self.floor(ledger_id, entry_id - 1)

    def rank(self, ledger_id: int, entry_id: int) -> int:
        """Returns the number of entries since the origin at or before this position."""
        info = self._by_id.get(ledger_id)
        if info is not None:
            return info.base_rank + max(min(entry_id + 1, info.entries), 0)
        at = bisect_right(self.infos, ledger_id, key=_ledger_id)
        return self.infos[at].base_rank if at < len(self.infos) else self.rank_end

    def position_at(self, rank: int) -> Position:
        """Returns the entry of this rank (the first kept entry's base + 1, …, `rank_end`)."""
        info = self._ledger_of(rank)
        return Position(info.ledger_id, rank - info.base_rank - 1)

    def _ledger_of(self, rank: int) -> LedgerInfo:
        """Returns the ledger of the entry with this rank."""
        at = bisect_left(self.infos, rank, key=lambda info: info.base_rank + info.entries)
        return self.infos[at]

    def bytes_after(self, ledger_id: int, entry_id: int) -> int:
        """Estimates the bytes after this position: whole ledgers, and the mean within one."""
        if not self.infos:
            return 0
        last = self.infos[-1]
        total = last.base_bytes + last.size_bytes
        info = self._by_id.get(ledger_id)
        if info is None:
            at = bisect_right(self.infos, ledger_id, key=_ledger_id)
            return total - self.infos[at].base_bytes if at < len(self.infos) else 0
        passed = max(min(entry_id + 1, info.entries), 0)
        part = info.size_bytes * passed // info.entries if info.entries else 0
        return total - info.base_bytes - part

    def place_leaving(self, size_bytes: int) -> Position:
        """Returns the first position with at most `size_bytes` after it, as `bytes_after`
        estimates."""
        end = self._size_end
        if self.infos:
            end = self.infos[-1].base_bytes + self.infos[-1].size_bytes
        for info in self.infos:
            if end - info.base_bytes - info.size_bytes > size_bytes:
                continue
            over = end - info.base_bytes - size_bytes
            if over <= 0:
                return Position(info.ledger_id, -1)
            return Position(info.ledger_id, -(-over * info.entries // info.size_bytes) - 1)
        return self.last_confirmed

"""A group of entries with its joined body, size, CRC-32C and lengths, computed once.

The network frame, the journal and the entry log all need the same CRC over the entries as if they
were joined. A `PackedEntries` carries it through `Bookie.add_entries` as a list of the entries: the
writer packs a group once for all bookies of its write set, a bookie's server verifies the CRC on
arrival and passes it on, and the journal writes it unchanged.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from magnetar.bookie.api import ID_END
from magnetar.bookie.journal.codec_v1 import body_of, pack_lengths


class PackedEntries(list[bytes]):
    """The entries of one group. Must not be changed."""

    __slots__ = ("body", "body_bytes", "crc", "lengths")

    def __init__(
        self,
        entries: Iterable[bytes],
        body: Sequence[bytes],
        body_bytes: int,
        crc: int,
        lengths: bytes,
    ) -> None:
        super().__init__(entries)
        self.body = body
        """The entries' bytes as buffers to write; small entries are joined."""
        self.body_bytes = body_bytes
        self.crc = crc
        self.lengths = lengths
        """u32 per entry."""


def pack(entries: Sequence[bytes]) -> PackedEntries:
    """Packs the entries; returns them unchanged if they are packed already."""
    if type(entries) is PackedEntries:
        return entries
    body, body_bytes, crc = body_of(entries)
    return PackedEntries(entries, body, body_bytes, crc, pack_lengths(entries))


def checked_ids(entry_ids: Sequence[int], count: int, last_add_confirmed: int) -> Sequence[int]:
    """Returns the ids of a group of `count` entries, as a range if they are consecutive.

    Raises ValueError unless there is an ascending, valid id per entry, and at least one entry.
    """
    if type(entry_ids) is not range or entry_ids.step != 1:
        entry_ids = ascending(entry_ids)
    if not count or count != len(entry_ids) or entry_ids[0] < 0 or entry_ids[-1] >= ID_END:
        raise ValueError(f"{count} entries for {len(entry_ids)} ids from 0 to {ID_END - 1}")
    if not -1 <= last_add_confirmed < ID_END:
        raise ValueError(f"last add confirmed {last_add_confirmed} is neither an entry id nor -1")
    return entry_ids


def ascending(entry_ids: Sequence[int]) -> "range | tuple[int, ...]":
    """Returns the ids, as a range if they are consecutive; raises ValueError unless they ascend."""
    ids = tuple(entry_ids)
    if not ids:
        return range(0)
    span = range(ids[0], ids[0] + len(ids))
    if ids == tuple(span):
        return span
    if any(after <= before for before, after in pairwise(ids)):
        raise ValueError("entry ids must ascend")
    return ids

"""A group of entries with what is computed once for it: joined body, size, CRC-32C, lengths.

The journal, the network frame and the entry log all want the same CRC over the entries as if they
were joined. `PackedEntries` is a list of the entries that carries it, so that it passes through
`Bookie.add_entries` as any list does: the client of a bookie computes it, the server checks it when
it arrives and hands it on, and the bookie's journal takes it as it is. A ledger writer hands the
same list to each bookie of a write quorum: `packed` remembers the last list it was given, until the
caller's turn of the loop ends (`forget`), so that three copies cost one CRC and one join.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from magnetar.bookie.journal_codec_v1 import body_of, pack_lengths


class PackedEntries(list[bytes]):
    """Entries of one group. Not to be changed."""

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
        """The entries' bytes as buffers to write: joined where they are small."""
        self.body_bytes = body_bytes
        self.crc = crc
        self.lengths = lengths
        """u32 per entry."""


class _Last:
    """The list that was packed last. Held by reference, so its identity is nobody else's."""

    entries: Sequence[bytes] | None = None
    group: PackedEntries | None = None


def packed(entries: Sequence[bytes]) -> PackedEntries:
    """The entries as a group; computed once for a list that comes again in the same turn."""
    if type(entries) is PackedEntries:
        return entries
    if entries is _Last.entries and _Last.group is not None:
        return _Last.group
    body, body_bytes, crc = body_of(entries)
    group = PackedEntries(entries, body, body_bytes, crc, pack_lengths(entries))
    _Last.entries, _Last.group = entries, group
    return group


def forget() -> None:
    """Lets go of the last list: call before anybody may change it."""
    _Last.entries = _Last.group = None


def ascending(entry_ids: Sequence[int]) -> "range | tuple[int, ...]":
    """The ids as a range if they are one; raises ValueError unless they ascend."""
    ids = tuple(entry_ids)
    if not ids:
        return range(0)
    span = range(ids[0], ids[0] + len(ids))
    if ids == tuple(span):
        return span
    if any(after <= before for before, after in pairwise(ids)):
        raise ValueError("entry ids must ascend")
    return ids

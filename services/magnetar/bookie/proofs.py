"""Proves that entries are here by reading them: each is checked against its CRC on the way.

What is read is not sent; the caller compares the CRC-32C and length with those of other bookies. An
entry that fails its CRC is reported, and the walk goes on behind it. A bookie that lost state and
cannot know whether it had an entry says so for each id, so that its silence proves nothing.
"""

from typing import Final

from google_crc32c import value

from magnetar.bookie.api import (
    EntryCorrupt,
    EntryProof,
    EntryProofs,
    EntryUnknown,
    NoSuchEntry,
    ProofKind,
)
from magnetar.bookie.reads import Reader

READ_BYTES: Final = 1 << 20


async def prove(
    reader: Reader, ledger_id: int, first: int, last: int, count_max: int
) -> EntryProofs:
    """See `Bookie.prove_entries`; reads READ_BYTES at a time."""
    last = min(last, first + count_max - 1)
    proofs: list[EntryProof] = []
    position = first
    reader.existing(ledger_id)
    while position <= last:
        try:
            entries = await reader.read(ledger_id, position, last, bytes_max=READ_BYTES)
        except EntryCorrupt:
            proofs.append(EntryProof(position, ProofKind.CORRUPT))
        except EntryUnknown:
            proofs.append(EntryProof(position, ProofKind.UNKNOWN))
        except NoSuchEntry:
            pass
        else:
            for entry_id, data in entries:
                proofs.append(EntryProof(entry_id, ProofKind.PRESENT, len(data), value(data)))
            position = entries[-1].entry_id
        position += 1
    return EntryProofs(proofs, last + 1)

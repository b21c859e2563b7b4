"""How many bytes a ledger has that its writer did not close.

Three sources, the cheapest that suits: what a bookie that was in the ledger's only ensemble all the
time knows of all its entries; the last count that the writer put on record, and the proofs that
bookies give of the entries behind it; the entries that recovery has read itself. Proofs are asked
of as few bookies as have every entry, then of the others for what is still missing. An entry that
no bookie can prove counts as empty: it cannot be read either. Where one that may prove it does not
answer, the ledger is not ended now (RecoveryFailed).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.bookie.api import BookieError, BookieIdentity, LedgerEnd, ProofKind, StoredEntry
from magnetar.core.log import get_logger
from magnetar.ledger.asking import ask_proofs, blames_bookie
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.quorum import ensemble_index, last_of, striped

PROOFS_AT_ONCE: Final = 4096

log = get_logger("magnetar.ledger.length")


class Lengths:
    """See the module's text. Of one recovery."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata) -> None:
        self._context = context
        self._metadata = metadata
        self._confirmed = -1
        self._ends: Mapping[BookieIdentity, LedgerEnd] = {}
        self._tail: list[int] = []

    def begin(self, confirmed: int, ends: Mapping[BookieIdentity, LedgerEnd]) -> None:
        """What was known when the ledger was fenced."""
        self._confirmed = confirmed
        self._ends = ends

    def add(self, entries: Sequence[StoredEntry]) -> None:
        """The next entries behind the confirmed ones, as recovery read them."""
        self._tail += [len(entry.data) for entry in entries]

    def add_harmed(self) -> None:
        """The next entry is there, but its bytes are not."""
        self._tail.append(0)

    async def until(self, last: int) -> int:
        """The length of the entries up to `last`."""
        known = self._from_end(last)
        if known is not None:
            return known
        metadata, confirmed = self._metadata, self._confirmed
        counted = min(metadata.counted_entries, last + 1)
        length = metadata.counted_bytes if counted == metadata.counted_entries else 0
        if counted < metadata.counted_entries:
            counted = 0
        position = counted
        while position <= confirmed:
            index = ensemble_index(metadata, position)
            end = min(confirmed, last_of(metadata, index), position + PROOFS_AT_ONCE - 1)
            length += await self._prove(metadata.ensembles[index].bookies, position, end)
            position = end + 1
        return length + sum(self._tail[max(0, counted - confirmed - 1) :])

    def _from_end(self, last: int) -> int | None:
        """What a bookie knows that has had every entry."""
        metadata = self._metadata
        bookies = metadata.ensembles[0].bookies
        if len(metadata.ensembles) > 1 or striped(len(bookies), metadata.write_quorum):
            return None
        known = [
            end.length_bytes + sum(self._tail[end.last_entry - self._confirmed :])
            for end in self._ends.values()
            if end.length_bytes >= 0 and self._confirmed <= end.last_entry <= last
        ]
        return max(known, default=None)

    async def _prove(self, bookies: Sequence[BookieIdentity], first: int, last: int) -> int:
        """The bytes of these entries of one ensemble."""
        step = max(1, min(self._metadata.write_quorum, len(bookies)))
        enough = bookies[::step]
        found: dict[int, int] = {}
        silent: list[str] = []
        for asked in (enough, [one for one in bookies if one not in enough]):
            if len(found) <= last - first and asked:
                await asyncio.gather(
                    *(self._proven(identity, first, last, found, silent) for identity in asked)
                )
        missing = last - first + 1 - len(found)
        if missing and silent:
            raise RecoveryFailed(
                f"the length of ledger {self._metadata.ledger_id} cannot be known now: "
                f"{missing} of its entries {first} to {last} are not counted ({'; '.join(silent)})"
            )
        if missing:
            log.warning(
                "entries could not be counted",
                ledger=self._metadata.ledger_id,
                first_entry=first,
                last_entry=last,
                missing=missing,
            )
        return sum(found.values())

    async def _proven(
        self,
        identity: BookieIdentity,
        first: int,
        last: int,
        found: dict[int, int],
        silent: list[str],
    ) -> None:
        """Adds what the bookie proves to `found`, or what it failed with to `silent`."""
        if self._context.bookies.get(identity) is None:
            return  # gone, with its disks or for long: nobody waits for it here
        while first <= last:
            proofs = await ask_proofs(
                self._context, self._metadata.ledger_id, identity, first, last
            )
            if isinstance(proofs, BookieError):
                if blames_bookie(proofs):
                    silent.append(str(proofs))
                return
            for proof in proofs.proofs:
                if proof.kind is ProofKind.PRESENT:
                    found[proof.entry_id] = proof.length_bytes
            if proofs.next_entry <= first:
                return
            first = proofs.next_entry

"""The byte length of a ledger that its writer did not close.

There are three sources, cheapest first: the length known to a bookie that was in the ledger's only
ensemble from the start; the last count on the writer's record plus proofs of the later entries; and
the entries that recovery itself read. Proofs are requested from as few bookies as hold every entry,
then from the others for what is missing. An entry that no bookie can prove counts as empty, because
it cannot be read either. If a bookie that may prove it does not answer, the ledger is not closed
now (RecoveryFailed).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.bookie.api import BookieError, BookieIdentity, LedgerEnd, ProofKind, StoredEntry
from magnetar.core.log import get_logger
from magnetar.ledger.bookie_calls import ask_proofs
from magnetar.ledger.bookies import blames_bookie
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.errors import RecoveryFailed
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.quorum import ensemble_index, last_of, striped

PROOFS_AT_ONCE: Final = 4096

log = get_logger("magnetar.ledger.length")


class Lengths:
    """Determines the length for one recovery."""

    def __init__(self, context: LedgerContext, metadata: LedgerMetadata) -> None:
        self._context = context
        self._metadata = metadata
        self._confirmed = -1
        self._ends: Mapping[BookieIdentity, LedgerEnd] = {}
        self._tail: list[int] = []

    def begin(self, confirmed: int, ends: Mapping[BookieIdentity, LedgerEnd]) -> None:
        """Records the confirmed end and the bookies' answers, as of the fence."""
        self._confirmed = confirmed
        self._ends = ends

    def add(self, entries: Sequence[StoredEntry]) -> None:
        """Counts the next entries behind the confirmed ones, as recovery read them."""
        self._tail += [len(entry.data) for entry in entries]

    def add_harmed(self) -> None:
        """Counts the next entry, whose bytes are damaged on every copy, as empty."""
        self._tail.append(0)

    async def until(self, last: int) -> int:
        """Returns the length of the entries up to `last`. Raises RecoveryFailed."""
        whole = self._from_end(last)
        if whole is not None:
            return whole
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
        """Returns the length known to a bookie that holds every entry, if there is one."""
        metadata = self._metadata
        bookies = metadata.ensembles[0].bookies
        if len(metadata.ensembles) > 1 or striped(len(bookies), metadata.write_quorum):
            return None
        lengths = [
            end.length_bytes + sum(self._tail[end.last_entry - self._confirmed :])
            for end in self._ends.values()
            if end.length_bytes >= 0 and self._confirmed <= end.last_entry <= last
        ]
        return max(lengths, default=None)

    async def _prove(self, bookies: Sequence[BookieIdentity], first: int, last: int) -> int:
        """Returns the bytes of these entries of one ensemble."""
        step = max(1, min(self._metadata.write_quorum, len(bookies)))
        enough = bookies[::step]
        lengths: dict[int, int] = {}
        silent: list[str] = []
        for asked in (enough, [identity for identity in bookies if identity not in enough]):
            if len(lengths) <= last - first and asked:
                await asyncio.gather(
                    *(self._proven(identity, first, last, lengths, silent) for identity in asked)
                )
        missing = last - first + 1 - len(lengths)
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
        return sum(lengths.values())

    async def _proven(
        self,
        identity: BookieIdentity,
        first: int,
        last: int,
        lengths: dict[int, int],
        silent: list[str],
    ) -> None:
        """Adds the bookie's proofs to `lengths`, or its failure to `silent`."""
        if self._context.bookies.get(identity) is None:
            return  # deregistered for long, or its disks were replaced: do not wait for it
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
                    lengths[proof.entry_id] = proof.length_bytes
            if proofs.next_entry <= first:
                return
            first = proofs.next_entry

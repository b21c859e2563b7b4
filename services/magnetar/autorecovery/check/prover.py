"""Proves the copies of a ledger's entries: their bookies read them from disk and send checksums.

All bookies of an ensemble prove a window of entries at the same time, and the proofs are compared.
A copy counts if its bookie could read it, its CRC is right, and its CRC and length equal those of
the other copies. The verdict on an entry has the answer of every bookie. Memory is bounded by one
window.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar.autorecovery.answers import (
    CORRUPT,
    NO_ENTRY,
    NOT_REGISTERED,
    UNAVAILABLE,
    UNKNOWN,
    answer_of,
)
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.shape import Part, copies_wanted, holders
from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    EntryUnknown,
    NoSuchLedger,
    ProofKind,
)
from magnetar.ledger.bookie_calls import call
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import LedgerMetadata

WINDOW_ENTRIES: Final = 2048

PRESENT: Final = "present"
DIFFERENT: Final = "differs from most"
CONTRADICTS: Final = "differs, and no majority tells which is right"

_DAMAGED: Final = {ProofKind.CORRUPT: CORRUPT, ProofKind.UNKNOWN: UNKNOWN}
_Proofs = dict[int, tuple[str, int, int]]
"""The proofs by entry id: the answer's text, and the length and CRC of the copy."""


class Verdict(StrEnum):
    """The verdict on an entry, from best to worst."""

    HEALTHY = "healthy"
    UNPROVEN = "could not tell"
    TOO_FEW = "too few proven copies"
    DIVERGENT = "divergent"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class EntryCopies:
    """The verdict on one entry, and the answers of its bookies."""

    entry_id: int
    verdict: Verdict
    good: tuple[BookieIdentity, ...]
    """The bookies whose copies count."""
    answers: tuple[Answer, ...]
    """The answer of every bookie that should have the entry, including the good ones."""
    length_bytes: int


class Prover:
    """Asks bookies for proofs and compares them, no faster than `rate`."""

    def __init__(self, bookies: BookieSet, rate: ByteRate, timeout_s: float) -> None:
        self._bookies = bookies
        self._rate = rate
        self._timeout_s = timeout_s

    async def prove_part(
        self,
        metadata: LedgerMetadata,
        part: Part,
        *,
        excluded: Collection[str] = (),
    ) -> AsyncIterator[list[EntryCopies]]:
        """Yields the copies of every entry of a part, a window at a time. The part has an end.

        Bookies whose ids are in `excluded` are not asked, and their copies do not count.
        """
        wanted = copies_wanted(metadata)
        first = part.first
        while first <= part.last:
            last = min(part.last, first + WINDOW_ENTRIES - 1)
            asked = [bookie for bookie in part.bookies if bookie.bookie_id not in excluded]
            proofs = await self.prove_window(metadata.ledger_id, asked, first, last)
            window: list[EntryCopies] = []
            size = 0
            for entry_id in range(first, last + 1):
                write_set = holders(
                    part.bookies, metadata.write_quorum, metadata.stripe_entries, entry_id
                )
                counted = tuple(bookie for bookie in write_set if bookie in asked)
                copies = judge(entry_id, counted, proofs, wanted)
                size += copies.length_bytes * len(copies.good)
                window.append(copies)
            yield window
            await self._rate.spend(size)
            first = last + 1

    async def prove_window(
        self, ledger_id: int, asked: Sequence[BookieIdentity], first: int, last: int
    ) -> dict[BookieIdentity, _Proofs | str]:
        """Returns each bookie's proofs of the range, or a text if it proves none of the entries."""
        answers = await asyncio.gather(
            *(self._prove(identity, ledger_id, first, last) for identity in asked)
        )
        proofs = dict(zip(asked, answers, strict=True))
        if UNAVAILABLE in answers:
            living = {info.identity for info in self._bookies.living()}
            for identity in asked:
                # The address of a bookie that has left may still be cached.
                if proofs[identity] == UNAVAILABLE and identity not in living:
                    proofs[identity] = NOT_REGISTERED
        return proofs

    async def _prove(
        self, identity: BookieIdentity, ledger_id: int, first: int, last: int
    ) -> _Proofs | str:
        bookie = self._bookies.get(identity)
        if bookie is None:
            return NOT_REGISTERED
        proofs: _Proofs = {}
        position = first
        try:
            while position <= last:
                request = bookie.prove_entries(
                    ledger_id, position, last, count_max=last - position + 1
                )
                answer = await call(self._bookies, identity, request, self._timeout_s)
                for proof in answer.proofs:
                    text = _DAMAGED.get(proof.kind, PRESENT)
                    proofs[proof.entry_id] = (text, proof.length_bytes, proof.crc)
                if answer.next_entry <= position:
                    return UNAVAILABLE
                position = answer.next_entry
        except (NoSuchLedger, EntryUnknown) as error:
            return answer_of(identity, error).text
        except BookieError:
            return UNAVAILABLE
        return proofs


def judge(
    entry_id: int,
    bookies: Sequence[BookieIdentity],
    proofs: dict[BookieIdentity, _Proofs | str],
    copies_wanted: int,
) -> EntryCopies:
    """Compares the copies of one entry on these bookies. Pure."""
    texts: dict[BookieIdentity, str] = {}
    contents: dict[tuple[int, int], list[BookieIdentity]] = {}
    for identity in bookies:
        answer = proofs[identity]
        if isinstance(answer, str):
            texts[identity] = answer
            continue
        text, length_bytes, crc = answer.get(entry_id, (NO_ENTRY, 0, 0))
        texts[identity] = text
        if text == PRESENT:
            contents.setdefault((length_bytes, crc), []).append(identity)
    best = max(contents.values(), key=len, default=[])
    ties = sum(1 for group in contents.values() if len(group) == len(best))
    length = next((key[0] for key, group in contents.items() if group is best), 0)
    for group in contents.values():
        if ties > 1 or group is not best:
            for identity in group:
                texts[identity] = CONTRADICTS if ties > 1 else DIFFERENT
    good = () if ties > 1 else tuple(best)
    answers = tuple(Answer(identity, text) for identity, text in texts.items())
    return EntryCopies(
        entry_id, _verdict(contents, good, texts, copies_wanted), good, answers, length
    )


def _verdict(
    contents: dict[tuple[int, int], list[BookieIdentity]],
    good: Collection[BookieIdentity],
    texts: dict[BookieIdentity, str],
    copies_wanted: int,
) -> Verdict:
    if len(contents) > 1:
        return Verdict.DIVERGENT
    if len(good) >= copies_wanted:
        return Verdict.HEALTHY
    # A registered bookie that does not answer may have its copy, so nothing is lost yet.
    silent = sum(1 for text in texts.values() if text == UNAVAILABLE)
    if silent and len(good) + silent >= copies_wanted:
        return Verdict.UNPROVEN
    return Verdict.TOO_FEW if good or silent else Verdict.LOST

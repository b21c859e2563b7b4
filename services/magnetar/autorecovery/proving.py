"""Which copies of a ledger's entries are really there: by proofs that their bookies read from disk.

Windows of entries are proven by all bookies of an ensemble at the same time, and compared: a copy
counts where its bookie read it, its CRC held, and its CRC and length are those of the others. The
verdict on an entry names every copy that does not count. Memory is bounded by one window.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar.autorecovery.asking import (
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
    BookieUnavailable,
    EntryUnknown,
    NoSuchLedger,
    ProofKind,
)
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import LedgerMetadata

WINDOW_ENTRIES: Final = 2048

PRESENT: Final = "present"
DIFFERENT: Final = "differs from most"
CONTRADICTS: Final = "differs, and no majority tells which is right"

_PROVEN: Final = {ProofKind.CORRUPT: CORRUPT, ProofKind.UNKNOWN: UNKNOWN}
_Proven = dict[int, tuple[str, int, int]]


class Verdict(StrEnum):
    """On one entry, from best to worst."""

    HEALTHY = "healthy"
    UNPROVEN = "could not tell"
    TOO_FEW = "too few proven copies"
    DIVERGENT = "divergent"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class EntryCopies:
    """One entry: who has it, and what the others said."""

    entry_id: int
    verdict: Verdict
    good: tuple[BookieIdentity, ...]
    answers: tuple[Answer, ...]
    """Of every bookie that should have it, good ones included."""
    length_bytes: int


class Prover:
    """See the module's text."""

    def __init__(self, bookies: BookieSet, rate: ByteRate, timeout_s: float) -> None:
        self._bookies = bookies
        self._rate = rate
        self._timeout_s = timeout_s

    async def part(
        self,
        metadata: LedgerMetadata,
        part: Part,
        *,
        not_counting: Collection[str] = (),
    ) -> AsyncIterator[list[EntryCopies]]:
        """Every entry of a part with an end, a window at a time.

        Copies on bookies named in `not_counting` are not asked and do not count.
        """
        wanted = copies_wanted(metadata)
        first = part.first
        while first <= part.last:
            last = min(part.last, first + WINDOW_ENTRIES - 1)
            asked = [one for one in part.bookies if one.bookie_id not in not_counting]
            proven = await self.window(metadata.ledger_id, asked, first, last)
            window: list[EntryCopies] = []
            size = 0
            for entry_id in range(first, last + 1):
                named = holders(
                    part.bookies, metadata.write_quorum, metadata.stripe_entries, entry_id
                )
                named = tuple(one for one in named if one.bookie_id not in not_counting)
                copies = judge(entry_id, named, proven, wanted)
                size += copies.length_bytes * len(copies.good)
                window.append(copies)
            yield window
            await self._rate.spend(size)
            first = last + 1

    async def window(
        self, ledger_id: int, asked: Sequence[BookieIdentity], first: int, last: int
    ) -> dict[BookieIdentity, _Proven | str]:
        """What each bookie has of the range; words where it can say nothing of any entry."""
        answers = await asyncio.gather(
            *(self._one(identity, ledger_id, first, last) for identity in asked)
        )
        proven = dict(zip(asked, answers, strict=True))
        if UNAVAILABLE in answers:
            living = {info.identity for info in self._bookies.living()}
            for identity in asked:
                # One that has left may still be known where to find: it is gone all the same.
                if proven[identity] == UNAVAILABLE and identity not in living:
                    proven[identity] = NOT_REGISTERED
        return proven

    async def _one(
        self, identity: BookieIdentity, ledger_id: int, first: int, last: int
    ) -> _Proven | str:
        bookie = self._bookies.get(identity)
        if bookie is None:
            return NOT_REGISTERED
        found: _Proven = {}
        position = first
        try:
            while position <= last:
                async with asyncio.timeout(self._timeout_s):
                    proofs = await bookie.prove_entries(
                        ledger_id, position, last, count_max=last - position + 1
                    )
                for proof in proofs.proofs:
                    said = _PROVEN.get(proof.kind, PRESENT)
                    found[proof.entry_id] = (said, proof.length_bytes, proof.crc)
                if proofs.next_entry <= position:
                    return UNAVAILABLE
                position = proofs.next_entry
        except TimeoutError:
            late = BookieUnavailable(f"bookie {identity.bookie_id} is late with its proofs")
            self._bookies.failed(identity, late)
            return UNAVAILABLE
        except (NoSuchLedger, EntryUnknown) as error:
            return answer_of(identity, error).said
        except BookieError:
            return UNAVAILABLE
        return found


def judge(
    entry_id: int,
    named: Sequence[BookieIdentity],
    proven: dict[BookieIdentity, _Proven | str],
    copies_wanted: int,
) -> EntryCopies:
    """Compares the copies of one entry. Pure."""
    said: dict[BookieIdentity, str] = {}
    contents: dict[tuple[int, int], list[BookieIdentity]] = {}
    for identity in named:
        answer = proven[identity]
        if isinstance(answer, str):
            said[identity] = answer
            continue
        found = answer.get(entry_id)
        if found is None:
            said[identity] = NO_ENTRY
            continue
        said[identity] = found[0]
        if found[0] == PRESENT:
            contents.setdefault((found[1], found[2]), []).append(identity)
    best = max(contents.values(), key=len, default=[])
    ties = sum(1 for group in contents.values() if len(group) == len(best))
    length = next((key[0] for key, group in contents.items() if group is best), 0)
    for group in contents.values():
        if ties > 1 or group is not best:
            for identity in group:
                said[identity] = CONTRADICTS if ties > 1 else DIFFERENT
    good = () if ties > 1 else tuple(best)
    answers = tuple(Answer(identity, words) for identity, words in said.items())
    return EntryCopies(
        entry_id, _verdict(contents, good, said, copies_wanted), good, answers, length
    )


def _verdict(
    contents: dict[tuple[int, int], list[BookieIdentity]],
    good: Collection[BookieIdentity],
    said: dict[BookieIdentity, str],
    copies_wanted: int,
) -> Verdict:
    if len(contents) > 1:
        return Verdict.DIVERGENT
    if len(good) >= copies_wanted:
        return Verdict.HEALTHY
    # One that is there but does not answer may well have it: that is no loss yet.
    unheard = sum(1 for words in said.values() if words == UNAVAILABLE)
    if unheard and len(good) + unheard >= copies_wanted:
        return Verdict.UNPROVEN
    return Verdict.TOO_FEW if good or unheard else Verdict.LOST

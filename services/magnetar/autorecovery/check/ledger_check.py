"""Checks one ledger: its bookies prove every copy of every entry, and the report has the verdict.

A closed ledger is checked to its end. An open ledger is not fenced. Its earlier ensembles are
checked completely, and the last one up to the highest last-add-confirmed that its bookies know:
adds above that may still be under way.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from magnetar.autorecovery.check.prover import EntryCopies, Prover, Verdict
from magnetar.autorecovery.check.repairer import Repaired, Repairer
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.shape import OPEN_END, Part, copies_wanted, parts
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import NO_ENTRY, LedgerMetadata

FINDINGS_MAX: Final = 100

_SEVERITY: Final = list(Verdict)


class Finding(msgspec.Struct, frozen=True):
    """Entries `first` to `last`, with the same verdict (not healthy) and the same answers."""

    first: int
    last: int
    verdict: str
    answers: tuple[Answer, ...]


class LedgerReport(msgspec.Struct, frozen=True):
    """The result of the check of one ledger."""

    ledger_id: int
    verdict: str
    state: str
    entries: int
    bytes: int
    copies_wanted: int
    findings: tuple[Finding, ...] = ()
    """The first FINDINGS_MAX findings; `entries_wrong` counts all."""
    entries_wrong: int = 0
    repaired_entries: int = 0
    repair_failed: str = ""

    def after_repair(self, repair: "LedgerReport") -> "LedgerReport":
        """Returns this report, of a check after a repair, with the result of the repair."""
        return msgspec.structs.replace(
            self,
            repaired_entries=repair.repaired_entries,
            repair_failed=repair.repair_failed,
        )


@dataclass(slots=True)
class _Tally:
    """The counts of a check under way."""

    entries: int = 0
    bytes: int = 0
    wrong: int = 0
    worst: Verdict = Verdict.HEALTHY
    findings: list[Finding] = field(default_factory=list)

    def count(self, copies: EntryCopies) -> None:
        """Adds one entry; merges equal neighbors into one finding."""
        self.entries += 1
        self.bytes += copies.length_bytes
        if copies.verdict is Verdict.HEALTHY:
            return
        self.wrong += 1
        self.worst = max(self.worst, copies.verdict, key=_SEVERITY.index)
        last = self.findings[-1] if self.findings else None
        new = Finding(copies.entry_id, copies.entry_id, copies.verdict, copies.answers)
        if (
            last is not None
            and last.last == copies.entry_id - 1
            and (last.verdict, last.answers) == (new.verdict, new.answers)
        ):
            self.findings[-1] = msgspec.structs.replace(last, last=copies.entry_id)
        elif len(self.findings) < FINDINGS_MAX:
            self.findings.append(new)


class LedgerChecker:
    """Reads and compares all copies of a ledger; with a repairer, it also repairs them."""

    def __init__(
        self, bookies: BookieSet, prover: Prover, repairer: Repairer | None, timeout_s: float
    ) -> None:
        self._bookies = bookies
        self._prover = prover
        self._repairer = repairer
        self._timeout_s = timeout_s

    async def check(
        self, metadata: LedgerMetadata, *, excluded: Collection[str] = ()
    ) -> LedgerReport:
        """Checks the ledger. Copies on bookies whose ids are in `excluded` count as absent.

        With a repairer, wrong copies are rewritten if the right content is known.
        """
        tally = _Tally()
        repaired = Repaired()
        for part in parts(metadata):
            confirmed = part
            if part.last == OPEN_END:
                last = await self._last_confirmed(metadata.ledger_id, part)
                confirmed = replace(part, last=last)
            async for window in self._prover.prove_part(metadata, confirmed, excluded=excluded):
                for copies in window:
                    tally.count(copies)
                if self._repairer is not None:
                    await self._repairer.repair_window(
                        metadata.ledger_id, window, confirmed.last, repaired
                    )
        return LedgerReport(
            ledger_id=metadata.ledger_id,
            verdict=tally.worst,
            state=metadata.state,
            entries=tally.entries,
            bytes=tally.bytes,
            copies_wanted=copies_wanted(metadata),
            findings=tuple(tally.findings),
            entries_wrong=tally.wrong,
            repaired_entries=repaired.copied.entries,
            repair_failed=repaired.failed,
        )

    async def _last_confirmed(self, ledger_id: int, part: Part) -> int:
        """Returns the highest last-add-confirmed that the bookies of an open ensemble know."""
        known = (self._last_add_confirmed(identity, ledger_id) for identity in part.bookies)
        return max(part.first - 1, *await asyncio.gather(*known))

    async def _last_add_confirmed(self, identity: BookieIdentity, ledger_id: int) -> int:
        bookie = self._bookies.get(identity)
        if bookie is None:
            return NO_ENTRY
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await bookie.ledger_end(ledger_id)).last_add_confirmed
        except (BookieError, TimeoutError):
            return NO_ENTRY

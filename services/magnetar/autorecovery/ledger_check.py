"""The check of one ledger: every copy of every entry, proven by its bookie, and the verdict.

Closed ledgers are checked to their end. An open one is checked as far as it is confirmed, and not
fenced: its earlier ensembles whole, the last one up to the highest last-add-confirmed that its
bookies know (entries above may be on their way).
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from magnetar.autorecovery.proving import EntryCopies, Prover, Verdict
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.repairing import Repaired, Repairer
from magnetar.autorecovery.shape import UNENDED, Part, copies_wanted, parts
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import NO_ENTRY, LedgerMetadata

FINDINGS_MAX: Final = 100

_SEVERITY: Final = list(Verdict)


class Finding(msgspec.Struct, frozen=True):
    """Entries `first` to `last` that are not healthy, all for the same reason."""

    first: int
    last: int
    verdict: str
    answers: tuple[Answer, ...]


class LedgerReport(msgspec.Struct, frozen=True):
    """The check of one ledger."""

    ledger_id: int
    verdict: str
    state: str
    entries: int
    bytes: int
    copies_wanted: int
    findings: tuple[Finding, ...] = ()
    """FINDINGS_MAX at most; `entries_wrong` counts all."""
    entries_wrong: int = 0
    repaired_entries: int = 0
    repair_failed: str = ""

    def after_repair(self, repair: "LedgerReport") -> "LedgerReport":
        """This report, made after that repair."""
        return msgspec.structs.replace(
            self,
            repaired_entries=repair.repaired_entries,
            repair_failed=repair.repair_failed,
        )


@dataclass(slots=True)
class _Tally:
    entries: int = 0
    bytes: int = 0
    wrong: int = 0
    worst: Verdict = Verdict.HEALTHY
    findings: list[Finding] = field(default_factory=list)

    def count(self, copies: EntryCopies) -> None:
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
    """See the module's text."""

    def __init__(
        self, bookies: BookieSet, prover: Prover, repairer: Repairer | None, timeout_s: float
    ) -> None:
        self._bookies = bookies
        self._prover = prover
        self._repairer = repairer
        self._timeout_s = timeout_s

    async def check(
        self, metadata: LedgerMetadata, *, not_counting: Collection[str] = ()
    ) -> LedgerReport:
        """Reads all its copies; those on bookies named in `not_counting` count as absent.

        With a repairer, copies that are wrong are written again where a right one is known.
        """
        tally = _Tally()
        repaired = Repaired()
        for part in parts(metadata):
            ended = part
            if part.last == UNENDED:
                ended = replace(part, last=await self._confirmed(metadata.ledger_id, part))
            async for window in self._prover.part(metadata, ended, not_counting=not_counting):
                for copies in window:
                    tally.count(copies)
                if self._repairer is not None:
                    await self._repairer.window(metadata.ledger_id, window, ended.last, repaired)
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

    async def _confirmed(self, ledger_id: int, part: Part) -> int:
        """The last entry of an open ensemble that is known to be confirmed."""
        ends = await asyncio.gather(*(self._end(one, ledger_id) for one in part.bookies))
        return max(part.first - 1, *ends)

    async def _end(self, identity: BookieIdentity, ledger_id: int) -> int:
        bookie = self._bookies.get(identity)
        if bookie is None:
            return NO_ENTRY
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await bookie.ledger_end(ledger_id)).last_add_confirmed
        except (BookieError, TimeoutError):
            return NO_ENTRY

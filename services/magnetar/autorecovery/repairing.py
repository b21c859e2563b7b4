"""Finds copies that are missing, corrupt or different on living bookies, and writes them again.

The record of the ledger is right and stays; only what bookies hold under it is wrong. What is
right is decided by proofs (`proving`): the content that most copies agree on. Where copies
contradict each other and none has a majority, and where there is no copy at all, nothing is
written: the entries are named.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.autorecovery.asking import CORRUPT, NO_ENTRY, UNKNOWN
from magnetar.autorecovery.assess import shown
from magnetar.autorecovery.copying import Copied, Copier, Need
from magnetar.autorecovery.proving import DIFFERENT, EntryCopies, Prover, Verdict
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.shape import UNENDED, parts
from magnetar.ledger.metadata import LedgerMetadata

WRONG_COPIES = frozenset({NO_ENTRY, CORRUPT, UNKNOWN, DIFFERENT})


@dataclass(slots=True)
class Repaired:
    """What came of it."""

    copied: Copied = field(default_factory=Copied)
    hopeless: list[tuple[int, tuple[Answer, ...]]] = field(default_factory=list)
    failed: str = ""


class Repairer:
    """See the module's text."""

    def __init__(self, prover: Prover, copier: Copier) -> None:
        self._prover = prover
        self._copier = copier

    async def repair(self, metadata: LedgerMetadata, holding: Callable[[], object]) -> Repaired:
        """Proves every ensemble that has an end, and writes again what is wrong."""
        repaired = Repaired()
        for part in parts(metadata):
            if part.last == UNENDED:
                continue
            async for window in self._prover.part(metadata, part):
                holding()
                await self.window(metadata.ledger_id, window, part.last, repaired)
        return repaired

    async def window(
        self, ledger_id: int, window: list[EntryCopies], confirmed: int, repaired: Repaired
    ) -> None:
        """Writes again what is wrong among these entries."""
        wanted: dict[int, Need] = {}
        for copies in window:
            if copies.verdict is Verdict.HEALTHY and len(copies.good) == len(copies.answers):
                continue
            if not copies.good:
                if copies.verdict in (Verdict.LOST, Verdict.DIVERGENT):
                    repaired.hopeless.append((copies.entry_id, copies.answers))
                else:
                    repaired.failed = f"entry {copies.entry_id} could not be proven anywhere"
                continue
            wrong = tuple(one.bookie for one in copies.answers if one.said in WRONG_COPIES)
            if wrong:
                wanted[copies.entry_id] = Need(copies.good, wrong)
        if not wanted:
            return
        done = repaired.copied
        await self._copier.copy(ledger_id, wanted, confirmed, done)
        if done.refused:
            said = "; ".join(f"{shown(one)}: {text}" for one, text in done.refused.items())
            repaired.failed = f"copies could not be written again: {said}"
        if done.lost:
            repaired.failed = f"entry {done.lost[0][0]} was proven, but could not be read"

"""Finds copies that are missing, corrupt or different on living bookies, and rewrites them.

The ledger's record is right and does not change; only copies on its bookies are wrong. Proofs
(`check.prover`) decide which content is right: that of most copies. If copies differ without a
majority, or no copy exists, nothing is written, and the result names the entries.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnetar.autorecovery.answers import CORRUPT, NO_ENTRY, UNKNOWN, bookie_text
from magnetar.autorecovery.check.prover import DIFFERENT, EntryCopies, Prover, Verdict
from magnetar.autorecovery.copier import Copier, CopyResult, CopyTask
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.shape import parts
from magnetar.ledger.metadata import LedgerMetadata

WRONG_COPIES: Final = frozenset({NO_ENTRY, CORRUPT, UNKNOWN, DIFFERENT})
HOPELESS: Final = frozenset({Verdict.LOST, Verdict.DIVERGENT})
"""Verdicts on entries without a copy that is known to be right."""


@dataclass(slots=True)
class Repaired:
    """The result of a repair so far."""

    copied: CopyResult = field(default_factory=CopyResult)
    hopeless: list[tuple[int, tuple[Answer, ...]]] = field(default_factory=list)
    """Entries without a copy that is known to be right, with the bookies' answers."""
    failed: str = ""
    """Why some copies were not rewritten; empty if none failed."""


class Repairer:
    """Proves the copies of ledgers and rewrites the wrong ones."""

    def __init__(self, prover: Prover, copier: Copier) -> None:
        self._prover = prover
        self._copier = copier

    async def repair(self, metadata: LedgerMetadata, check_lock: Callable[[], object]) -> Repaired:
        """Proves and repairs every ensemble except the last one of an open ledger.

        Calls `check_lock` before each window is repaired.
        """
        repaired = Repaired()
        for part in parts(metadata):
            async for window in self._prover.prove_part(metadata, part):
                check_lock()
                await self.repair_window(metadata.ledger_id, window, part.last, repaired)
        return repaired

    async def repair_window(
        self, ledger_id: int, window: list[EntryCopies], confirmed: int, repaired: Repaired
    ) -> None:
        """Rewrites the wrong copies of these entries."""
        tasks: dict[int, CopyTask] = {}
        for copies in window:
            if copies.verdict is Verdict.HEALTHY:
                continue
            if not copies.good:
                if copies.verdict in HOPELESS:
                    repaired.hopeless.append((copies.entry_id, copies.answers))
                else:
                    repaired.failed = f"entry {copies.entry_id} could not be proven on any bookie"
                continue
            wrong = tuple(answer.bookie for answer in copies.answers if answer.text in WRONG_COPIES)
            if wrong:
                tasks[copies.entry_id] = CopyTask(copies.good, wrong)
        if not tasks:
            return
        result = repaired.copied
        await self._copier.copy(ledger_id, tasks, confirmed, result)
        if result.refused:
            problems = "; ".join(
                f"{bookie_text(target)}: {problem}" for target, problem in result.refused.items()
            )
            repaired.failed = f"copies could not be rewritten: {problems}"
        if result.lost:
            repaired.failed = f"entry {result.lost[0][0]} was proven, but could not be read"

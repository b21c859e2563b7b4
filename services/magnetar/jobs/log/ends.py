"""Finds the current end of a ledger by asking its bookies, without fencing it.

Bookies know the last confirmed entry from the writer's next add, or from the writer itself after it
has paused for a second or two (`ledger.explicit_lac`). Until then the last group of entries is
stored but not known to be confirmed. Only in that case the broker that writes the ledger is asked,
if the log has a way to (`log.Log.admin`).
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    LedgerEnd,
    NoSuchLedger,
)
from magnetar.core.tasks import TaskScope
from magnetar.ledger.bookie_calls import ask_end
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import answers_cover, striped

LATER_ANSWERS_S: Final = 0.25
"""Wait for further answers once the ack quorum is covered: each may raise the lower bound."""


@dataclass(frozen=True, slots=True)
class End:
    """`confirmed` is the last entry that may be read, `stored` the last entry on any bookie.

    `size_bytes` covers all entries up to `stored`; -1 if unknown.
    """

    confirmed: int
    stored: int
    size_bytes: int


async def end_of(context: LedgerContext, metadata: LedgerMetadata) -> End:
    """Asks the last ensemble until its answers cover the ack quorum, then briefly for more.

    Raises BookieError if they do not: a bookie that does not answer may have entries that the
    others lack, so no end computed without it bounds the entries with receipts. The answer that a
    bookie has no such ledger counts: it has no entry of it.
    """
    if metadata.state is LedgerState.CLOSED:
        return End(metadata.last_entry, metadata.last_entry, metadata.length_bytes)
    last = metadata.ensembles[-1]
    answers: list[LedgerEnd] = []
    answered: set[BookieIdentity] = set()
    failures: list[BookieError] = []
    delay: float | None = None
    async with TaskScope(f"end of ledger {metadata.ledger_id}") as scope:
        tasks = {
            scope.start(
                ask_end(context, metadata.ledger_id, bookie, fence=False), bookie.bookie_id
            ): bookie
            for bookie in last.bookies
        }
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=delay, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                answer = task.result()
                if isinstance(answer, LedgerEnd):
                    answers.append(answer)
                elif not isinstance(answer, NoSuchLedger):
                    failures.append(answer)
                    continue
                answered.add(tasks[task])
            if answers_cover(metadata, answered):
                delay = LATER_ANSWERS_S
    if not answers_cover(metadata, answered):
        raise BookieUnavailable(
            f"the end of ledger {metadata.ledger_id} is unknown: too few bookies of "
            f"{', '.join(bookie.bookie_id for bookie in last.bookies)} answer ({failures[0]}); try "
            "again once they are back"
        )
    before = last.first_entry - 1
    whole = not striped(len(last.bookies), metadata.write_quorum) and not before >= 0
    return End(
        max([before, *(answer.last_add_confirmed for answer in answers)]),
        max([before, *(answer.last_entry for answer in answers)]),
        max([-1, *(answer.length_bytes for answer in answers)]) if whole else -1,
    )

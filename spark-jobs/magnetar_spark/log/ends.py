"""Where a ledger ends now, asked of its bookies without fencing it.

They know what is confirmed from the writer's next add, or from the writer itself once it has paused
for a second or two (`ledger.explicit_lac`). Until then the last group of entries is there, and not
known to be confirmed. With an admin URL, and only where there is such a group, the broker that
writes the ledger is asked (`internalStats`).
"""

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    LedgerEnd,
    NoSuchLedger,
)
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.ledger.asking import ask_end
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import answers_cover, striped

LATER_ANSWERS_S: Final = 0.25
"""After the answers cover the ack quorum: each further answer may raise the lower bound."""
ADMIN_TIMEOUT_S: Final = 10.0
REDIRECTS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class End:
    """`confirmed` is the last entry that may be read; `stored` the last that any bookie has.

    `size_bytes` is of all entries up to `stored`, or -1 where nobody knows.
    """

    confirmed: int
    stored: int
    size_bytes: int


async def end_of(context: LedgerContext, metadata: LedgerMetadata) -> End:
    """Asks the last ensemble until its answers cover the ack quorum, then briefly for more.

    Raises BookieError if they do not: a bookie that does not answer may have entries that the
    others do not have, so no end that is computed without it bounds what was receipted. A bookie
    that has no such ledger counts as an answer: it has no entry of it.
    """
    if metadata.state is LedgerState.CLOSED:
        return End(metadata.last_entry, metadata.last_entry, metadata.length_bytes)
    last = metadata.ensembles[-1]
    tasks = {
        asyncio.ensure_future(ask_end(context, metadata.ledger_id, one, fence=False)): one
        for one in last.bookies
    }
    answers: list[LedgerEnd] = []
    answered: set[BookieIdentity] = set()
    failures: list[BookieError] = []
    waiting, delay = set(tasks), None
    try:
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
    finally:
        for task in tasks:
            task.cancel()
    if not answers_cover(metadata, answered):
        raise BookieUnavailable(
            f"where ledger {metadata.ledger_id} ends is not known: too few bookies of "
            f"{', '.join(one.bookie_id for one in last.bookies)} answer ({failures[0]}); try again "
            "once they are back"
        )
    before = last.first_entry - 1
    whole = not striped(len(last.bookies), metadata.write_quorum) and not before >= 0
    return End(
        max([before, *(answer.last_add_confirmed for answer in answers)]),
        max([before, *(answer.last_entry for answer in answers)]),
        max([-1, *(answer.length_bytes for answer in answers)]) if whole else -1,
    )


class Admin:
    """The admin REST of any broker of the cluster."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def confirmed(self, topic: TopicName, ledger_id: int) -> int:
        """The last entry that the broker may hand out, -1 where the ledger is not its newest."""
        import httpx  # a third of what this package's import costs each of Spark's processes

        name = f"{topic.namespace}/{quote(topic.local, safe='')}"
        url = f"{self._url}/admin/v2/persistent/{name}/internalStats"
        try:
            async with httpx.AsyncClient(
                timeout=ADMIN_TIMEOUT_S, follow_redirects=True, max_redirects=REDIRECTS_MAX
            ) as client:
                answer = await client.get(url)
                answer.raise_for_status()
            ledger, _, entry = str(answer.json()["lastConfirmedEntry"]).partition(":")
            return int(entry) if int(ledger) == ledger_id else -1
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError) as error:
            raise ServiceNotReady(f"admin.url {self._url}: {url}: {error!r}") from error

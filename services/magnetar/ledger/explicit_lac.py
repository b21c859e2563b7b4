"""Sends bookies the last-add-confirmed (LAC) of idle writers: BookKeeper's explicit LAC.

Adds carry the LAC, so the newest group of an idle writer is on its bookies, but its bookies do not
know that it is confirmed. A reader that opens the ledger without its writer would not see that
group for as long as the writer is idle.

A writer is watched from its next confirmation on. One timer scans all watched writers. If a writer
confirmed nothing between two scans and is at rest (every bookie has every entry), its LAC is sent
to all its bookies once, and it is watched no more. So a busy writer costs one comparison per group
and per scan, an idle one nothing. A bookie gets the LACs of many ledgers in one request; there is
no task and no timer per ledger. Scans continue while requests are under way: a slow bookie does not
delay the others. It gets no second request meanwhile; its LACs wait for the next scan, which does
not count as a try.

A LAC is a fact: it may arrive late, twice, after a fence, or not at all. Recovery treats it like
the LAC of an add, as a lower bound of the ledger's end. A bookie that does not accept the request
is not blamed: its release may not know it. It is tried TRIES_MAX times, at growing intervals. After
that, or if all bookies of a ledger crashed, readers see less until the next add.

Bounds: SENT_PER_SCAN_MAX writers per scan, one request per bookie at a time.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import NO_ENTRY
from magnetar.ledger.settings import LedgerSettings

SENT_PER_SCAN_MAX: Final = 4096
TRIES_MAX: Final = 4

log = get_logger("magnetar.ledger.explicit_lac")


class Watched(Protocol):
    """The part of a writer that explicit LAC uses."""

    ledger_id: int
    last_add_confirmed: int
    lac_watched: bool

    @property
    def error(self) -> MagnetarError | None: ...

    @property
    def at_rest(self) -> bool: ...

    @property
    def bookies(self) -> Sequence[BookieIdentity]: ...


class _Seen:
    """The state of one watched writer."""

    __slots__ = ("confirmed", "pause", "sending", "tries")

    def __init__(self) -> None:
        self.confirmed = NO_ENTRY
        self.tries = 0
        self.pause = 0
        """Scans until the next try."""
        self.sending = False
        """Whether a request for it is under way."""


class ExplicitLac:
    """Sends the LACs of idle writers. For the event loop's thread."""

    def __init__(self, bookies: BookieSet, settings: LedgerSettings, tasks: TaskSet) -> None:
        self._bookies = bookies
        self._settings = settings
        self._tasks = tasks
        self._watched: dict[Watched, _Seen] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._requested: set[BookieIdentity] = set()
        self._closed = False

    def watch(self, writer: Watched) -> None:
        """Watches a writer that confirmed more, or whose bookies changed."""
        writer.lac_watched = True
        self._watched[writer] = _Seen()
        if self._timer is None:
            self._scan_later()

    def close(self) -> None:
        """Stops the scans; requests under way belong to their task set."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._watched.clear()

    def _scan_later(self) -> None:
        if self._watched and not self._closed:
            loop = asyncio.get_running_loop()
            interval_s = self._settings.explicit_lac_interval_s
            self._timer = loop.call_later(interval_s, self._scan)

    def _scan(self) -> None:
        self._timer = None
        due: list[tuple[Watched, int, _Seen]] = []
        done: list[Watched] = []
        for writer, seen in self._watched.items():
            confirmed = writer.last_add_confirmed
            if writer.error is not None or confirmed == NO_ENTRY:
                done.append(writer)
            elif confirmed != seen.confirmed:
                seen.confirmed, seen.tries, seen.pause = confirmed, 0, 0
            elif seen.sending:
                continue
            elif seen.pause:
                seen.pause -= 1
            elif seen.tries == TRIES_MAX:
                done.append(writer)
            elif len(due) < SENT_PER_SCAN_MAX and writer.at_rest:
                seen.tries += 1
                seen.pause = (1 << seen.tries) - 1
                seen.sending = True
                due.append((writer, confirmed, seen))
        self._forget(done)
        if due:
            self._tasks.start(self._tell(due), "explicit LAC")
        self._scan_later()

    def _forget(self, writers: Sequence[Watched]) -> None:
        for writer in writers:
            writer.lac_watched = False
            self._watched.pop(writer, None)

    async def _tell(self, due: Sequence[tuple[Watched, int, _Seen]]) -> None:
        try:
            per_bookie: dict[BookieIdentity, list[tuple[int, int]]] = {}
            requests = [
                (writer, confirmed, seen, writer.bookies) for writer, confirmed, seen in due
            ]
            for writer, confirmed, _, bookies in requests:
                for identity in bookies:
                    per_bookie.setdefault(identity, []).append((writer.ledger_id, confirmed))
            busy = self._requested & per_bookie.keys()
            free = [identity for identity in per_bookie if identity not in busy]
            answers = await asyncio.gather(
                *(self._ask(identity, per_bookie[identity]) for identity in free)
            )
            accepted = dict.fromkeys(busy, False) | dict(zip(free, answers, strict=True))
            done: list[Watched] = []
            for writer, confirmed, seen, bookies in requests:
                sent = all(accepted[identity] for identity in bookies)
                if not busy.isdisjoint(bookies):
                    seen.tries, seen.pause = max(seen.tries - 1, 0), 0
                # Otherwise the writer is busy again, or has other bookies.
                if writer.last_add_confirmed == confirmed and writer.bookies == bookies and sent:
                    done.append(writer)
            self._forget(done)
        finally:
            for _, _, seen in due:
                seen.sending = False

    async def _ask(self, identity: BookieIdentity, lacs: Sequence[tuple[int, int]]) -> bool:
        """Sends LACs to one bookie; returns whether it accepted them."""
        bookie = self._bookies.get(identity)
        if bookie is None:
            return False
        self._requested.add(identity)
        try:
            async with asyncio.timeout(self._settings.recovery_request_timeout_s):
                await bookie.note_confirmed(lacs)
        except (BookieError, TimeoutError) as error:
            log.debug("LACs not accepted", bookie=identity.bookie_id, error=str(error))
            return False
        finally:
            self._requested.discard(identity)
        return True

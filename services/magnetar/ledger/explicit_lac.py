"""Tells bookies how far idle writers' ledgers are confirmed: BookKeeper's explicit LAC.

Adds carry the last add confirmed (LAC), so of a writer that pauses the newest group is on its
bookies, and not known there to be confirmed. Who reads the open ledger without asking its writer
would miss it for as long as the writer is idle.

A writer is watched from when something is confirmed. One timer for all looks at those that are
watched: who confirmed nothing between two looks, and is at rest (every bookie has what it shall
have), has its LAC told to all of its bookies, once, and is watched no more. So who writes costs one
compare per group and per look, who is idle nothing. Each bookie is told of many ledgers in one
request; there is no task and no timer per ledger. Looks go on while bookies are asked: one that
does not answer holds up no word to others. While it is asked it is not asked again: what it shall
know besides is told at the look after, and counts as no try until then.

What is told is a fact already: it may come late, twice, after a fence or not at all. Recovery takes
it for what it takes the LAC of an add for, a lower bound of the ledger's end. A bookie that does
not take it is not blamed: it may be of a release that knows no such request. It is told TRIES_MAX
times, at ever rarer looks. Beyond that, and where all of a ledger's bookies crashed since, readers
see less until the next add.

Bounds: TOLD_PER_LOOK_MAX writers in one look, one request to each bookie at a time.
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

TOLD_PER_LOOK_MAX: Final = 4096
TRIES_MAX: Final = 4

log = get_logger("magnetar.ledger.explicit_lac")


class Watched(Protocol):
    """What is asked of a writer."""

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
    """Of one writer that is watched."""

    __slots__ = ("confirmed", "pause", "telling", "tries")

    def __init__(self) -> None:
        self.confirmed = NO_ENTRY
        self.tries = 0
        self.pause = 0
        """Looks until it may be told again."""
        self.telling = False
        """Its bookies are being told."""


class ExplicitLac:
    """See the module's text. For the event loop's thread."""

    def __init__(self, bookies: BookieSet, settings: LedgerSettings, tasks: TaskSet) -> None:
        self._bookies = bookies
        self._settings = settings
        self._tasks = tasks
        self._watched: dict[Watched, _Seen] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: set[BookieIdentity] = set()
        self._closed = False

    def watch(self, writer: Watched) -> None:
        """More was confirmed, or its bookies are others."""
        writer.lac_watched = True
        self._watched[writer] = _Seen()
        if self._timer is None:
            self._look_later()

    def close(self) -> None:
        """Looks no more; a request under way is its task's."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._watched.clear()

    def _look_later(self) -> None:
        if self._watched and not self._closed:
            loop = asyncio.get_running_loop()
            interval_s = self._settings.explicit_lac_interval_s
            self._timer = loop.call_later(interval_s, self._look)

    def _look(self) -> None:
        self._timer = None
        due: list[tuple[Watched, int, _Seen]] = []
        done: list[Watched] = []
        for writer, seen in self._watched.items():
            confirmed = writer.last_add_confirmed
            if writer.error is not None or confirmed == NO_ENTRY:
                done.append(writer)
            elif confirmed != seen.confirmed:
                seen.confirmed, seen.tries, seen.pause = confirmed, 0, 0
            elif seen.telling:
                continue
            elif seen.pause:
                seen.pause -= 1
            elif seen.tries == TRIES_MAX:
                done.append(writer)
            elif len(due) < TOLD_PER_LOOK_MAX and writer.at_rest:
                seen.tries += 1
                seen.pause = (1 << seen.tries) - 1
                seen.telling = True
                due.append((writer, confirmed, seen))
        self._forget(done)
        if due:
            self._tasks.start(self._tell(due), "explicit LAC")
        self._look_later()

    def _forget(self, writers: Sequence[Watched]) -> None:
        for writer in writers:
            writer.lac_watched = False
            self._watched.pop(writer, None)

    async def _tell(self, due: Sequence[tuple[Watched, int, _Seen]]) -> None:
        try:
            per_bookie: dict[BookieIdentity, list[tuple[int, int]]] = {}
            asked = [(*each, each[0].bookies) for each in due]
            for writer, confirmed, _, bookies in asked:
                for identity in bookies:
                    per_bookie.setdefault(identity, []).append((writer.ledger_id, confirmed))
            busy = self._asking & per_bookie.keys()
            free = [identity for identity in per_bookie if identity not in busy]
            answers = await asyncio.gather(
                *(self._ask(identity, per_bookie[identity]) for identity in free)
            )
            took = dict.fromkeys(busy, False) | dict(zip(free, answers, strict=True))
            done: list[Watched] = []
            for writer, confirmed, seen, bookies in asked:
                told = all(took[identity] for identity in bookies)
                if not busy.isdisjoint(bookies):
                    seen.tries, seen.pause = max(seen.tries - 1, 0), 0
                # Otherwise it writes again, or has others to tell.
                if writer.last_add_confirmed == confirmed and writer.bookies == bookies and told:
                    done.append(writer)
            self._forget(done)
        finally:
            for _, _, seen in due:
                seen.telling = False

    async def _ask(self, identity: BookieIdentity, told: Sequence[tuple[int, int]]) -> bool:
        """Whether the bookie was told."""
        bookie = self._bookies.get(identity)
        if bookie is None:
            return False
        self._asking.add(identity)
        try:
            async with asyncio.timeout(self._settings.recovery_request_timeout_s):
                await bookie.note_confirmed(told)
        except (BookieError, TimeoutError) as error:
            log.debug("not told of ledgers' ends", bookie=identity.bookie_id, error=str(error))
            return False
        finally:
            self._asking.discard(identity)
        return True

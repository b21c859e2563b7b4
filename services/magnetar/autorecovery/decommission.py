"""Empties a bookie, and proves that nothing is needed of it any more.

Marking it as draining is all that is done to it: autorecovery moves its ledgers. Meanwhile this
looks at what is left, and at last proves by checksum that every ledger which the bookie held has
its full number of copies elsewhere. Which those were is not taken from one witness: the ledgers
whose records name it (any life of it), and, where it lives, those that it says it has.

A record that cannot be read may name the bookie, so it refuses the proof. A broker that has not
seen the mark may still put a ledger on the bookie, so `late` reads all records and asks the bookie
once more after the proof, at least MARK_SETTLES_S after the mark.

Nothing here moves or deletes an entry, so it may be broken off and begun again at any time.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from magnetar.autorecovery.check_all import CheckRun, CheckSummary, OnReport, these_ledgers
from magnetar.autorecovery.ledger_check import LedgerChecker
from magnetar.autorecovery.pages import LedgerPages, Page, read_page
from magnetar.autorecovery.records import (
    AUDITOR_KEY,
    RecordState,
    UnderReplicated,
    page_prefix,
    readable,
)
from magnetar.autorecovery.shape import holding, parts
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.bookie.registration import KNOWN_PREFIX, draining_key
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore

NAMED_MAX: Final = 100
"""Ledgers that are named one by one; all are counted."""
UNREADABLE_NAMED_MAX: Final = 10
"""Keys that a refusal names."""
LIST_TIMEOUT_S: Final = 120.0
ASK_PATIENCE_S: Final = 30.0
"""One that has just died is registered until its lease ends."""
MARK_SETTLES_S: Final = 3.0
"""Brokers learn of the mark by a watch; the last walk over the records waits this long for it."""
MARK_TRIES: Final = 5


class InTheWay(msgspec.Struct, frozen=True):
    """A ledger that still needs the bookie, and why."""

    ledger_id: int
    why: str
    hopeless: bool
    """Autorecovery has given up on it until something changes."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What emptying the bookie would mean."""

    ledgers: int
    bytes: int
    living: bool
    others: int
    """Bookies that could take what it has."""
    needed: int
    """Of those; set by the widest ledger."""
    problem: str = ""
    """Why it cannot be done; the empty string: it can."""
    unreadable: tuple[str, ...] = ()
    """Keys of ledger records that cannot be read: they refuse the proof."""


@dataclass(slots=True)
class Left:
    """What is left on the bookie."""

    ledgers: int = 0
    bytes: int = 0
    hopeless: int = 0
    open: int = 0
    audited: bool = True
    """Whether anybody runs autorecovery."""
    unproven: int = 0
    """Ledgers that the bookie lists and the last proof does not cover."""
    unreadable: list[str] = field(default_factory=list)
    """Keys of records that cannot be read; known once `ledgers` is 0."""
    in_the_way: list[InTheWay] = field(default_factory=list)
    """NAMED_MAX at most, and as many hopeless ones, which come first."""


class Decommission:
    """See the module's text. One for one bookie."""

    def __init__(
        self, store: MetadataStore, bookies: BookieSet, clock: Clock, bookie_id: str
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self.bookie_id = bookie_id
        self._pages = LedgerPages(store)
        self._left: set[int] = set()
        """Pages with ledgers that name it."""
        self.held: set[int] = set()
        """Every ledger that it is known to have held."""
        self._proven: frozenset[int] = frozenset()
        """Ledgers that the last proof covered."""
        self._unreadable: list[str] = []
        """Keys of the records that the last full walk could not read."""
        self._marked_at = float("-inf")
        self._mark_revision = ABSENT

    async def look_first(self) -> Preflight:
        """Finds what it holds, and whether the others could take it. Changes nothing."""
        needed, widest, ledgers, size = 1, 0, 0, 0
        unreadable: list[str] = []
        async for page in self._pages.walk():
            unreadable += page.unreadable
            for record in page.ledgers:
                metadata = record.metadata
                width = metadata.write_quorum
                widths = self._widths(metadata)
                if widths:
                    ledgers += 1
                    size += _share(metadata)
                    self._note(page, metadata)
                    width = max(width, *widths)
                if width > needed:
                    needed, widest = width, metadata.ledger_id
        self._unreadable = unreadable
        living = [info for info in self._bookies.living() if self._is_it(info.identity)]
        others = sum(
            info.writable and not info.draining and not self._is_it(info.identity)
            for info in self._bookies.living()
        )
        problem = ""
        if not ledgers and not living:
            problem = await self._stranger()
        elif others < needed:
            problem = (
                f"{others} bookies would be left that take entries, and {needed} are needed: "
                f"ledger {widest} is on so many. Add a bookie first"
            )
        for info in living:
            # Where it does not answer now its lease may be about to end: `prove` asks again.
            with contextlib.suppress(BookieError, TimeoutError):
                await self._ask(info.identity)
        return Preflight(
            ledgers, size, bool(living), others, needed, problem, tuple(unreadable[:NAMED_MAX])
        )

    async def _stranger(self) -> str:
        """Why a name that nothing is known of cannot be emptied."""
        if await self._store.list(f"{KNOWN_PREFIX}{self.bookie_id}/"):
            return ""
        return f"no bookie {self.bookie_id} was ever registered"

    async def _ask(self, identity: BookieIdentity) -> None:
        """The bookie's own word on what it has; raises BookieError, TimeoutError."""
        bookie = self._bookies.get(identity)
        if bookie is not None:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                self.held.update(await bookie.list_ledgers())

    async def _ask_while_it_lives(self) -> None:
        """Until it has answered, or is registered no more; raises what it says in the end."""
        deadline = self._clock.monotonic() + ASK_PATIENCE_S
        while True:
            living = [one for one in self._bookies.living() if self._is_it(one.identity)]
            try:
                for info in living:
                    await self._ask(info.identity)
            except (BookieError, TimeoutError):
                if self._clock.monotonic() >= deadline:
                    raise
                await asyncio.sleep(1.0)
            else:
                return

    async def mark(self) -> None:
        """From now on no new ledger goes to it, and autorecovery empties it.

        Idempotent: a mark that is there stays as it is, since a drain's worker holds its writes to
        the mark's revision.
        """
        key, since = draining_key(self.bookie_id), str(self._clock.now_ms()).encode()
        for _ in range(MARK_TRIES):
            stored = await self._store.get(key)
            if stored is not None:
                self.marked(stored.revision)
                return
            with contextlib.suppress(BadRevision):
                self.marked(await self._store.put(key, since, expected=ABSENT))
                return
        raise MetadataError(f"{key} changes all the time")

    def marked(self, revision: int) -> None:
        """Notes that the mark stands, at this revision."""
        self._marked_at, self._mark_revision = self._clock.monotonic(), revision

    async def still_marked(self) -> bool:
        """Whether the mark that `mark` found or put was never taken away since."""
        stored = await self._store.get(draining_key(self.bookie_id))
        return stored is not None and stored.revision == self._mark_revision

    async def look(self) -> Left:
        """What is left. Only when that seems to be nothing is everything read again."""
        left = Left(audited=await self._store.get(AUDITOR_KEY) is not None)
        pages, self._left = sorted(self._left), set()
        for number in pages:
            await self._look_at(await read_page(self._store, number), left)
        if not left.ledgers:
            await self._walk(left)
        left.in_the_way.sort(key=lambda one: (not one.hopeless, one.ledger_id))
        return left

    async def late(self) -> Left:
        """What names the bookie or lies on it now, and was not there when `prove` began.

        Raises what `prove` raises. With nothing in it, the proof is good.
        """
        settles_s = self._marked_at + MARK_SETTLES_S - self._clock.monotonic()
        await asyncio.sleep(max(0.0, settles_s))
        left = Left()
        await self._walk(left)
        await self._ask_while_it_lives()
        left.unproven = len(self.held - self._proven)
        return left

    async def _walk(self, left: Left) -> None:
        """Reads every record, and notes those that name the bookie or cannot be read."""
        unreadable: list[str] = []
        async for page in self._pages.walk():
            unreadable += page.unreadable
            await self._look_at(page, left)
        self._unreadable = left.unreadable = unreadable

    async def _look_at(self, page: Page, left: Left) -> None:
        naming = [one.metadata for one in page.ledgers if self._widths(one.metadata)]
        if not naming:
            return
        records = await self._records(page.number)
        for metadata in naming:
            self._note(page, metadata)
            left.ledgers += 1
            left.bytes += _share(metadata)
            left.open += metadata.state is not LedgerState.CLOSED
            record = records.get(metadata.ledger_id)
            hopeless = record is not None and record.state is not RecordState.WAITING
            left.hopeless += hopeless
            if len(left.in_the_way) < (2 if hopeless else 1) * NAMED_MAX:
                why = _why(metadata, record)
                left.in_the_way.append(InTheWay(metadata.ledger_id, why, hopeless))

    async def _records(self, page: int) -> dict[int, UnderReplicated]:
        found = (readable(one.key, one.value) for one in await self._store.list(page_prefix(page)))
        return {record.ledger_id: record for record in found if record is not None}

    async def prove(self, checker: LedgerChecker, on_report: OnReport) -> CheckSummary:
        """Reads every copy of every ledger that it held, its own not counted.

        `late` has to find nothing afterwards. Raises BookieError or TimeoutError where it is
        registered and does not say what it holds.
        """
        await self._ask_while_it_lives()
        self._proven = frozenset(self.held)
        summary = CheckSummary(unreadable=list(self._unreadable))
        run = CheckRun(self._store, checker, None, not_counting={self.bookie_id})
        ledgers = these_ledgers(self._store, sorted(self._proven), summary)
        await run.run(ledgers, on_report, summary)
        return summary

    def _note(self, page: Page, metadata: LedgerMetadata) -> None:
        self._left.add(page.number)
        self.held.add(metadata.ledger_id)

    def _is_it(self, identity: BookieIdentity) -> bool:
        return identity.bookie_id == self.bookie_id

    def _widths(self, metadata: LedgerMetadata) -> list[int]:
        """How many bookies each ensemble has of which this one holds something, or may come to."""
        return [
            len(part.bookies)
            for part in parts(metadata)
            if any(self._is_it(identity) for identity in holding(metadata, part))
        ]


def unreadable_records(keys: Sequence[str]) -> str:
    """Why records that cannot be read refuse a proof, and what to do."""
    named = ", ".join(keys[:UNREADABLE_NAMED_MAX])
    more = (
        f" and {len(keys) - UNREADABLE_NAMED_MAX} more" if len(keys) > UNREADABLE_NAMED_MAX else ""
    )
    return (
        f"the records of {len(keys)} ledgers cannot be read, and any of them may need the bookie: "
        f"{named}{more}. Run the release that wrote them, or restore or delete these keys"
    )


def _why(metadata: LedgerMetadata, record: UnderReplicated | None) -> str:
    if record is not None and record.state is RecordState.LOST:
        lost = ", ".join(f"{one.first}-{one.last}" for one in record.lost)
        return f"entries {lost} have no copy that could be read"
    if record is not None:
        words = record.detail or "; ".join(record.reasons)
        return f"{record.state}: {words}" if words else record.state
    if metadata.state is not LedgerState.CLOSED:
        return "open: its writer goes on elsewhere, or it is ended after the grace time"
    return "waits for the auditor"


def _share(metadata: LedgerMetadata) -> int:
    """About how many bytes one bookie has of it."""
    size = max((len(one.bookies) for one in metadata.ensembles), default=1)
    length = metadata.length_bytes or metadata.counted_bytes
    return length * min(metadata.write_quorum, size) // size


def eta_s(bytes_at_start: int, bytes_left: int, elapsed_s: float) -> float | None:
    """How long it still takes at the pace so far; None where nothing was moved yet."""
    moved = bytes_at_start - bytes_left
    if moved <= 0 or elapsed_s <= 0:
        return None
    return bytes_left * elapsed_s / moved

"""Decommissions a bookie: marks it as draining, and proves that no ledger needs it any more.

Autorecovery moves the ledgers of a marked bookie. `remaining` reports the ledgers that still name
it. `prove` then proves by checksum that every ledger which the bookie held has its full number of
copies on other bookies. These are the ledgers whose records named the bookie, under any of its
incarnations, and the ledgers that the bookie itself lists while it lives.

An unreadable record may name the bookie, so it refuses the proof. A broker that has not seen the
mark may still place a ledger on the bookie. `late_arrivals` therefore reads all records and asks
the bookie again after the proof, at least MARK_SETTLES_S after the mark.

Nothing here moves or deletes an entry, so a decommission may be cancelled and restarted any time.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.autorecovery.check.check_all import CheckRun, CheckSummary, OnReport, selected_ledgers
from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.pages import LedgerPages, Page, read_page
from magnetar.autorecovery.records import (
    AUDITOR_KEY,
    RecordState,
    UnderReplicated,
    page_prefix,
    readable,
)
from magnetar.autorecovery.shape import bookies_with_entries, parts
from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.bookie.registration import KNOWN_PREFIX, draining_key
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.documents.bookies import InTheWay as InTheWay
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore

NAMED_MAX: Final = 100
"""Ledgers that a document names; all are counted."""
UNREADABLE_NAMED_MAX: Final = 10
"""Keys that a refusal names."""
LIST_TIMEOUT_S: Final = 120.0
ASK_TIMEOUT_S: Final = 30.0
"""How long a bookie's list is requested again: a dead bookie stays registered until its lease
ends."""
MARK_SETTLES_S: Final = 3.0
"""Brokers see the mark through a watch; the last walk over the records waits this long for it."""
MARK_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Preflight:
    """The ledgers that a drain of the bookie must move, and whether it can succeed."""

    ledgers: int
    bytes: int
    living: bool
    others: int
    """Bookies that could take its ledgers."""
    needed: int
    """The number of other bookies that the widest ledger requires."""
    problem: str = ""
    """Why the bookie cannot be drained; empty if it can."""
    unreadable: tuple[str, ...] = ()
    """Keys of unreadable ledger records, which refuse the proof."""


@dataclass(slots=True)
class Remaining:
    """The ledgers that still need the bookie."""

    ledgers: int = 0
    bytes: int = 0
    hopeless: int = 0
    """Ledgers that autorecovery has given up on until something changes."""
    open: int = 0
    audited: bool = True
    """Whether the cluster has an auditor, so that autorecovery runs."""
    unproven: int = 0
    """Ledgers that the bookie lists and the last proof did not cover."""
    unreadable: list[str] = field(default_factory=list)
    """Keys of unreadable ledger records; only set once `ledgers` is 0."""
    in_the_way: list[InTheWay] = field(default_factory=list)
    """The first NAMED_MAX obstacles, after as many hopeless ones."""


class Decommission:
    """The decommission of one bookie."""

    def __init__(
        self, store: MetadataStore, bookies: BookieSet, clock: Clock, bookie_id: str
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self.bookie_id = bookie_id
        self._pages = LedgerPages(store)
        self._left: set[int] = set()
        """Pages with ledgers that name the bookie."""
        self.held: set[int] = set()
        """Every ledger that the bookie is known to have held."""
        self._proven: frozenset[int] = frozenset()
        """Ledgers that the last proof covered."""
        self._unreadable: list[str] = []
        """Keys of the records that the last full walk could not read."""
        self._marked_at = float("-inf")
        self._mark_revision = ABSENT

    async def preflight(self) -> Preflight:
        """Finds the bookie's ledgers, and whether other bookies could take them; only reads."""
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
                    self._add_held(page, metadata)
                    width = max(width, *widths)
                if width > needed:
                    needed, widest = width, metadata.ledger_id
        self._unreadable = unreadable
        living = [info for info in self._bookies.living() if self._is_bookie(info.identity)]
        others = sum(
            info.writable and not info.draining and not self._is_bookie(info.identity)
            for info in self._bookies.living()
        )
        problem = ""
        if not ledgers and not living:
            problem = await self._unknown_problem()
        elif others < needed:
            problem = (
                f"{others} writable bookies would be left, and ledger {widest} needs {needed}. "
                "Add a bookie first"
            )
        for info in living:
            # A bookie that does not answer may be dead with a valid lease: `prove` asks again.
            with contextlib.suppress(BookieError, TimeoutError):
                await self._add_listed(info.identity)
        return Preflight(
            ledgers, size, bool(living), others, needed, problem, tuple(unreadable[:NAMED_MAX])
        )

    async def _unknown_problem(self) -> str:
        """Returns the problem if no bookie of this id was ever registered."""
        if await self._store.list(f"{KNOWN_PREFIX}{self.bookie_id}/"):
            return ""
        return f"no bookie {self.bookie_id} was ever registered"

    async def _add_listed(self, identity: BookieIdentity) -> None:
        """Adds the ledgers that the bookie lists to `held`; raises BookieError, TimeoutError."""
        bookie = self._bookies.get(identity)
        if bookie is not None:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                self.held.update(await bookie.list_ledgers())

    async def _add_listed_while_living(self) -> None:
        """Adds the ledgers that the bookie lists to `held`, unless it is not registered.

        Retries for ASK_TIMEOUT_S, then raises the last BookieError or TimeoutError.
        """
        deadline = self._clock.monotonic() + ASK_TIMEOUT_S
        while True:
            living = [info for info in self._bookies.living() if self._is_bookie(info.identity)]
            try:
                for info in living:
                    await self._add_listed(info.identity)
            except (BookieError, TimeoutError):
                if self._clock.monotonic() >= deadline:
                    raise
                await asyncio.sleep(1.0)
            else:
                return

    async def mark(self) -> None:
        """Marks the bookie as draining: it gets no new ledgers, and autorecovery moves its copies.

        Idempotent. An existing mark is not rewritten, since the writes of a drain's worker check
        the mark's revision.
        """
        key, since = draining_key(self.bookie_id), str(self._clock.now_ms()).encode()
        for _ in range(MARK_TRIES):
            stored = await self._store.get(key)
            if stored is not None:
                self.note_mark(stored.revision)
                return
            with contextlib.suppress(BadRevision):
                self.note_mark(await self._store.put(key, since, expected=ABSENT))
                return
        raise MetadataError(f"{key} kept changing")

    def note_mark(self, revision: int) -> None:
        """Records that the mark exists, at this revision."""
        self._marked_at, self._mark_revision = self._clock.monotonic(), revision

    async def is_still_marked(self) -> bool:
        """Whether the mark still exists and was never deleted since `mark`."""
        stored = await self._store.get(draining_key(self.bookie_id))
        return stored is not None and stored.revision == self._mark_revision

    async def remaining(self) -> Remaining:
        """Returns the ledgers that still name the bookie.

        Reads only the pages that had such ledgers before; once there are none, all records.
        """
        left = Remaining(audited=await self._store.get(AUDITOR_KEY) is not None)
        pages, self._left = sorted(self._left), set()
        for number in pages:
            await self._add_page(await read_page(self._store, number), left)
        if not left.ledgers:
            await self._walk(left)
        left.in_the_way.sort(key=lambda ledger: (not ledger.hopeless, ledger.ledger_id))
        return left

    async def late_arrivals(self) -> Remaining:
        """Returns the ledgers that came to the bookie after `prove` began; the proof lacks these.

        If there are none, the proof is valid. Raises what `prove` raises.
        """
        settles_s = self._marked_at + MARK_SETTLES_S - self._clock.monotonic()
        await asyncio.sleep(max(0.0, settles_s))
        left = Remaining()
        await self._walk(left)
        await self._add_listed_while_living()
        left.unproven = len(self.held - self._proven)
        return left

    async def _walk(self, left: Remaining) -> None:
        """Reads all records; adds those that name the bookie and the unreadable ones to `left`."""
        unreadable: list[str] = []
        async for page in self._pages.walk():
            unreadable += page.unreadable
            await self._add_page(page, left)
        self._unreadable = left.unreadable = unreadable

    async def _add_page(self, page: Page, left: Remaining) -> None:
        """Adds the page's ledgers that name the bookie to `left`."""
        naming = [ledger.metadata for ledger in page.ledgers if self._widths(ledger.metadata)]
        if not naming:
            return
        records = await self._records(page.number)
        for metadata in naming:
            self._add_held(page, metadata)
            left.ledgers += 1
            left.bytes += _share(metadata)
            left.open += metadata.state is not LedgerState.CLOSED
            record = records.get(metadata.ledger_id)
            hopeless = record is not None and record.state is not RecordState.WAITING
            left.hopeless += hopeless
            if len(left.in_the_way) < (2 if hopeless else 1) * NAMED_MAX:
                why = _reason(metadata, record)
                left.in_the_way.append(InTheWay(metadata.ledger_id, why, hopeless))

    async def _records(self, page: int) -> dict[int, UnderReplicated]:
        stored = await self._store.list(page_prefix(page))
        records = (readable(record.key, record.value) for record in stored)
        return {record.ledger_id: record for record in records if record is not None}

    async def prove(self, checker: LedgerChecker, on_report: OnReport) -> CheckSummary:
        """Checks every ledger that the bookie held; its own copies do not count.

        The proof is valid if `late_arrivals` returns no ledger afterwards. Raises BookieError or
        TimeoutError if the bookie is registered and does not list its ledgers.
        """
        await self._add_listed_while_living()
        self._proven = frozenset(self.held)
        summary = CheckSummary(unreadable=list(self._unreadable))
        run = CheckRun(self._store, checker, None, excluded={self.bookie_id})
        ledgers = selected_ledgers(self._store, sorted(self._proven), summary)
        await run.run(ledgers, on_report, summary)
        return summary

    def _add_held(self, page: Page, metadata: LedgerMetadata) -> None:
        self._left.add(page.number)
        self.held.add(metadata.ledger_id)

    def _is_bookie(self, identity: BookieIdentity) -> bool:
        return identity.bookie_id == self.bookie_id

    def _widths(self, metadata: LedgerMetadata) -> list[int]:
        """Returns the sizes of the ensembles in which the bookie holds entries, or may get some."""
        return [
            len(part.bookies)
            for part in parts(metadata)
            if any(self._is_bookie(identity) for identity in bookies_with_entries(metadata, part))
        ]


def unreadable_records(keys: Sequence[str]) -> str:
    """Returns why unreadable records refuse a proof, and what to do."""
    named = ", ".join(keys[:UNREADABLE_NAMED_MAX])
    more = (
        f" and {len(keys) - UNREADABLE_NAMED_MAX} more" if len(keys) > UNREADABLE_NAMED_MAX else ""
    )
    return (
        f"the records of {len(keys)} ledgers cannot be read, and any of these may need the bookie: "
        f"{named}{more}. Run the release that wrote them, or restore or delete these keys"
    )


def _reason(metadata: LedgerMetadata, record: UnderReplicated | None) -> str:
    if record is not None and record.state is RecordState.LOST:
        lost = ", ".join(f"{entries.first}-{entries.last}" for entries in record.lost)
        return f"entries {lost} have no readable copy"
    if record is not None:
        detail = record.detail or "; ".join(record.reasons)
        return f"{record.state}: {detail}" if detail else record.state
    if metadata.state is not LedgerState.CLOSED:
        return "open: its writer replaces the bookie, or it is closed after the grace time"
    return "waits for the auditor"


def _share(metadata: LedgerMetadata) -> int:
    """Returns the approximate bytes that one bookie holds of the ledger."""
    size = max((len(ensemble.bookies) for ensemble in metadata.ensembles), default=1)
    length = metadata.length_bytes or metadata.counted_bytes
    return length * min(metadata.write_quorum, size) // size


def eta_s(bytes_at_start: int, bytes_left: int, elapsed_s: float) -> float | None:
    """Returns the remaining time at the rate so far; None if nothing has moved yet."""
    moved = bytes_at_start - bytes_left
    if moved <= 0 or elapsed_s <= 0:
        return None
    return bytes_left * elapsed_s / moved

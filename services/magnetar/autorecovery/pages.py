"""The records of all ledgers, read a page at a time, so that memory is bounded.

A page has the ledgers whose ids share all but the last three digits; one `list` by prefix reads it.
Ledger ids only increase, so an empty page below the newest id stays empty and is not read again. A
repeated walk therefore costs one request per page that has ledgers.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from magnetar.autorecovery.records import PAGE_LEDGERS
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.ledger.metadata import LEDGER_ID_KEY, LedgerMetadata, decode, ledger_key
from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.autorecovery")

PAGE_DIGITS = len(str(PAGE_LEDGERS - 1))


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A ledger's metadata, with the revision of its record."""

    metadata: LedgerMetadata
    revision: int


@dataclass(slots=True)
class Page:
    """The ledgers of one page; `unreadable` has the keys of records that cannot be decoded."""

    number: int
    ledgers: list[LedgerRecord] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


class LedgerPages:
    """Walks over all ledgers, and remembers which pages have any."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._filled: list[int] = []
        self._next = 0

    async def walk(self) -> AsyncIterator[Page]:
        """Yields the pages with ledgers, in order, up to the newest ledger when the walk began."""
        newest = await newest_ledger(self._store)
        pages = [*self._filled, *range(self._next, newest // PAGE_LEDGERS + 1)]
        filled: list[int] = []
        for number in pages:
            page = await read_page(self._store, number)
            if page.ledgers or page.unreadable:
                filled.append(number)
                yield page
        full_until = newest // PAGE_LEDGERS
        # New ledgers are still added to the newest page, so the next walk reads it again.
        self._filled = [number for number in filled if number < full_until]
        self._next = max(self._next, full_until)


async def newest_ledger(store: MetadataStore) -> int:
    """Returns the highest ledger id that was ever allocated; 0 if there is none."""
    record = await store.get(LEDGER_ID_KEY)
    try:
        return 0 if record is None else int(record.value)
    except ValueError:
        raise MetadataError(f"{LEDGER_ID_KEY} holds no number") from None


async def read_page(store: MetadataStore, number: int) -> Page:
    """Reads one page, which may be empty."""
    page = Page(number)
    prefix = ledger_key(number * PAGE_LEDGERS)[:-PAGE_DIGITS]
    for record in await store.list(prefix):
        try:
            page.ledgers.append(LedgerRecord(decode(record.key, record.value), record.revision))
        except MetadataError as error:
            log.error("ledger record unreadable", key=record.key, error=str(error))
            page.unreadable.append(record.key)
    return page

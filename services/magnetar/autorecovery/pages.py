"""All ledgers' records, a page at a time, so that memory stays bounded however many there are.

A page is the ledgers whose ids share all but the last three digits: one `list` by prefix. Ids are
only given out upwards, so a page that lies below the newest id and was found empty stays empty: it
is not asked for again, and a walk costs as many requests as there are pages with ledgers in them.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from magnetar.autorecovery.records import PAGE_LEDGERS
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.ledger.metadata import LEDGER_ID_KEY, LedgerMetadata, decode, ledger_key
from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.autorecovery")

DIGITS_OF_A_PAGE = len(str(PAGE_LEDGERS - 1))


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One ledger as it stands in the store."""

    metadata: LedgerMetadata
    revision: int


@dataclass(slots=True)
class Page:
    """The ledgers of one page; `unreadable` are keys whose value is no ledger."""

    number: int
    ledgers: list[LedgerRecord] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


class LedgerPages:
    """See the module's text."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._filled: list[int] = []
        self._next = 0

    async def walk(self) -> AsyncIterator[Page]:
        """Every page with ledgers that existed when the walk began, in order."""
        newest = await newest_ledger(self._store)
        pages = [*self._filled, *range(self._next, newest // PAGE_LEDGERS + 1)]
        filled: list[int] = []
        for number in pages:
            page = await read_page(self._store, number)
            if page.ledgers or page.unreadable:
                filled.append(number)
                yield page
        full_until = newest // PAGE_LEDGERS
        # The newest page is still being filled: it is asked for again.
        self._filled = [number for number in filled if number < full_until]
        self._next = max(self._next, full_until)


async def newest_ledger(store: MetadataStore) -> int:
    """The highest id that was ever given out, 0 where there is none."""
    record = await store.get(LEDGER_ID_KEY)
    try:
        return 0 if record is None else int(record.value)
    except ValueError:
        raise MetadataError(f"{LEDGER_ID_KEY} holds no number") from None


async def read_page(store: MetadataStore, number: int) -> Page:
    """One page, empty or not."""
    page = Page(number)
    prefix = ledger_key(number * PAGE_LEDGERS)[:-DIGITS_OF_A_PAGE]
    for record in await store.list(prefix):
        try:
            page.ledgers.append(LedgerRecord(decode(record.key, record.value), record.revision))
        except MetadataError as error:
            log.error("ledger record unreadable", key=record.key, error=str(error))
            page.unreadable.append(record.key)
    return page

"""Writes and reads runs: the ledgers that hold the moments which are not in memory.

A run's ledger has its pages, in order of time, and its head as the last entry. It is closed before
anything refers to it, and never changes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from heapq import merge
from typing import Final

from magnetar.bookie.api import BookieError
from magnetar.broker.topic.delayed.codec_v1 import (
    LEDGERS_MAX,
    IndexInvalid,
    PageInfo,
    decode_head,
    decode_page,
    describe,
    encode_head,
    encode_page,
    fits_page,
)
from magnetar.broker.topic.delayed.schedule import PAGE_MOMENTS
from magnetar.broker.topic.delayed.store import unreadable
from magnetar.core.errors import MagnetarError
from magnetar.core.futures import settle
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.cursor_log import CursorLog

assert PAGE_MOMENTS <= LEDGERS_MAX  # noqa: S101  (a page never has more ledgers than moments)

PAGES_PER_TURN: Final = 8
"""Pages sorted or encoded in one turn of the loop: a turn per page would take long on a broker
whose turns are long."""
WRITE_TIMEOUT_S: Final = 60.0
READ_TIMEOUT_S: Final = 30.0
READ_BYTES_MAX: Final = 4 << 20


async def write_run(
    writer: LedgerWriter, moments: Sequence[int]
) -> tuple[list[PageInfo], list[int]]:
    """Writes and closes the ledger of a run; returns its pages, and the moments in order.

    Raises MagnetarError, TimeoutError. Yields to the event loop after some pages.
    """
    pages: list[PageInfo] = []
    ordered: list[int] = []
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        async for page in _pages(moments):
            writer.append([encode_page(page)], _ignore)
            pages.append(describe(page))
            ordered += page
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Completions come in order, and all fail after a failure: the last one counts.
        writer.append([encode_head(pages)], lambda _, error: settle(done, error))
        await done
        await writer.close()
    return pages, ordered


async def _pages(moments: Sequence[int]) -> AsyncIterator[list[int]]:
    """Yields the moments in order, a page at a time."""
    pieces = []
    for start in range(0, len(moments), PAGE_MOMENTS):
        pieces.append(sorted(moments[start : start + PAGE_MOMENTS]))
        if len(pieces) % PAGES_PER_TURN == 0:
            await asyncio.sleep(0)
    page: list[int] = []
    count = 0
    for moment in merge(*pieces):
        if page and (len(page) == PAGE_MOMENTS or not fits_page(page[-1], moment)):
            yield page
            page = []
            count += 1
            if count % PAGES_PER_TURN == 0:
                await asyncio.sleep(0)
        page.append(moment)
    if page:
        yield page


async def read_head(log: CursorLog, ledger_id: int) -> list[PageInfo]:
    """Returns the pages of a run. Raises IndexUnreadable."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            reader = await log.open_kept(ledger_id)
            if reader.last_entry < 0:
                raise IndexInvalid("the ledger is empty")
            last = reader.last_entry
            (entry,) = await reader.read(last, last, bytes_max=READ_BYTES_MAX)
        return decode_head(entry.data)
    except (BookieError, TimeoutError, IndexInvalid) as error:
        raise unreadable(log.key, error) from error


async def read_page(log: CursorLog, ledger_id: int, page: int) -> list[int]:
    """Returns the moments of a page, in order. Raises IndexUnreadable."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            reader = await log.open_kept(ledger_id)
            (entry,) = await reader.read(page, page, bytes_max=READ_BYTES_MAX)
        return decode_page(entry.data)
    except (BookieError, TimeoutError, IndexInvalid) as error:
        raise unreadable(log.key, error) from error


def _ignore(_first_entry: int, _error: MagnetarError | None) -> None:
    """The callback for all entries of a run but the last."""

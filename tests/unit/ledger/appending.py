"""Small words for tests of writers over several bookies."""

import asyncio
from typing import Any

from tests.unit.ledger.cluster import Links
from tests.unit.ledger.stage import write

from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter


def quorum(ensemble: int, write: int, ack: int, **changes: Any) -> LedgerSettings:
    fields = {"stripe_entries": 2, "add_timeout_s": 1.0, "metadata_timeout_s": 3.0} | changes
    return LedgerSettings(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, **fields)


def link(links: Links, writer: LedgerWriter, slot: int) -> Any:
    """The writer's link to one bookie of its ensemble."""
    return links.links[writer.bookies[slot]]


def later(writer: LedgerWriter, *entries: bytes) -> "asyncio.Future[int]":
    """Appends a group; when it is confirmed, its first entry."""
    return asyncio.ensure_future(write(writer, *entries))


def names(bookies: Any) -> list[str]:
    return [one.bookie_id for one in bookies]


async def appended(writer: LedgerWriter, count: int) -> None:
    for number in range(count):
        await write(writer, b"%d" % number)

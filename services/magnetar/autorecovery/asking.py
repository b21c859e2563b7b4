"""One question to one bookie, with a deadline, and its answer in words that can be kept.

Whatever fails becomes an `Answer` that names the bookie and what it said: that is what is shown
where entries are lost. Answers in PASSING (not there, no connection, late) may be others soon.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from magnetar.autorecovery.records import Answer
from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    EntryCorrupt,
    EntryUnknown,
    NoSuchEntry,
    NoSuchLedger,
)

UNAVAILABLE: Final = "unavailable"
NOT_REGISTERED: Final = "not registered"
NO_ENTRY: Final = "no such entry"
UNKNOWN: Final = "unknown"
CORRUPT: Final = "corrupt"

PASSING: Final = frozenset({UNAVAILABLE, NOT_REGISTERED})
"""Answers that may be another one soon."""


def answer_of(identity: BookieIdentity, error: BookieError) -> Answer:
    """What a failed request says of the entry."""
    match error:
        case NoSuchEntry() | NoSuchLedger():
            return Answer(identity, NO_ENTRY)
        case EntryUnknown():
            return Answer(identity, UNKNOWN)
        case EntryCorrupt():
            return Answer(identity, CORRUPT)
        case _:
            return Answer(identity, UNAVAILABLE)


async def add(
    bookie: Bookie,
    ledger_id: int,
    entry_ids: Sequence[int],
    entries: Sequence[bytes],
    last_add_confirmed: int,
    timeout_s: float,
) -> None:
    """Stores the group on the bookie durably; raises BookieError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def on_added(error: BookieError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    bookie.add_entries(
        ledger_id,
        entry_ids,
        entries,
        last_add_confirmed=last_add_confirmed,
        on_added=on_added,
        recovery=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await future
    except TimeoutError:
        name = bookie.identity.bookie_id
        raise BookieUnavailable(f"bookie {name} did not store in {timeout_s:g} s") from None

"""One question to one bookie, with a deadline, whose answer is a value: an error is one, too."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieLate,
    BookieUnavailable,
    EntryCorrupt,
    EntryProofs,
    EntryUnknown,
    LedgerEnd,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    StoredEntry,
)
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.reading import bookie_of, contiguous

T = TypeVar("T")


def blames_bookie(error: BookieError) -> bool:
    """Whether the error says something of the bookie, not of the ledger."""
    about_ledger = (LedgerFenced, NoSuchLedger, NoSuchEntry, EntryCorrupt, EntryUnknown)
    return not isinstance(error, about_ledger)


async def _answer(
    context: LedgerContext, identity: BookieIdentity, asked: Awaitable[T], timeout_s: float
) -> T | BookieError:
    try:
        async with asyncio.timeout(timeout_s):
            return await asked
    except TimeoutError:
        error: BookieError = BookieLate(
            f"bookie {identity.bookie_id} did not answer within {timeout_s:g} s"
        )
    except BookieError as failure:
        error = failure
    if blames_bookie(error):
        context.bookies.failed(identity, error)
    return error


async def ask_end(
    context: LedgerContext, ledger_id: int, identity: BookieIdentity, *, fence: bool
) -> LedgerEnd | BookieError:
    """What the bookie knows of the ledger's end."""
    try:
        bookie = bookie_of(context, ledger_id, identity)
    except BookieUnavailable as error:
        return error
    timeout_s = context.settings.recovery_request_timeout_s
    return await _answer(context, identity, bookie.ledger_end(ledger_id, fence=fence), timeout_s)


async def ask_entries(
    context: LedgerContext,
    ledger_id: int,
    identity: BookieIdentity,
    first: int,
    last: int,
    bytes_max: int,
) -> list[StoredEntry] | BookieError:
    """Entries without a gap, as recovery reads them: the bookie is fenced before it answers."""

    async def read() -> list[StoredEntry]:
        bookie = bookie_of(context, ledger_id, identity)
        found = await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max, fence=True)
        if not found or found[0].entry_id != first:
            # No certain word that there is no such entry: the bookie did not keep its contract.
            raise BookieError(f"bookie {identity.bookie_id} answered for others than {first}")
        return contiguous(found, first, identity.bookie_id)

    return await _answer(context, identity, read(), context.settings.recovery_request_timeout_s)


async def ask_to_store(
    context: LedgerContext,
    ledger_id: int,
    identity: BookieIdentity,
    first: int,
    entries: Sequence[bytes],
    last_add_confirmed: int,
) -> BookieError | None:
    """Stores recovered entries there, durably; what is there already is not harmed."""

    async def store() -> None:
        bookie = bookie_of(context, ledger_id, identity)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_added(error: BookieError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        bookie.add_entries(
            ledger_id,
            range(first, first + len(entries)),
            entries,
            last_add_confirmed=last_add_confirmed,
            on_added=on_added,
            recovery=True,
        )
        await done

    return await _answer(context, identity, store(), context.settings.recovery_request_timeout_s)


async def ask_proofs(
    context: LedgerContext, ledger_id: int, identity: BookieIdentity, first: int, last: int
) -> EntryProofs | BookieError:
    """Proofs of some of these entries, from the first one on."""

    async def prove() -> EntryProofs:
        bookie = bookie_of(context, ledger_id, identity)
        return await bookie.prove_entries(ledger_id, first, last, count_max=last - first + 1)

    return await _answer(context, identity, prove(), context.settings.recovery_request_timeout_s)


async def ask_to_delete(
    context: LedgerContext, ledger_id: int, identity: BookieIdentity
) -> BookieError | None:
    """Has the bookie forget the ledger."""
    try:
        bookie = bookie_of(context, ledger_id, identity)
    except BookieUnavailable as error:
        return error
    timeout_s = context.settings.recovery_request_timeout_s
    return await _answer(context, identity, bookie.delete_ledger(ledger_id), timeout_s)

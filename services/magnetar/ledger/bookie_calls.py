"""Requests to one bookie, each with a deadline.

A bookie that misses the deadline fails the request with BookieLate. Every failure that concerns the
bookie, not the ledger, is reported to `BookieSet.failed`, which counts towards its quarantine.

`call` raises; the `ask_*` functions of the ledger protocol return the error as a value, because
recovery weighs the answers of several bookies, errors included.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from magnetar.bookie.api import (
    Bookie,
    BookieError,
    BookieIdentity,
    BookieLate,
    BookieUnavailable,
    EntryProofs,
    LedgerEnd,
    StoredEntry,
)
from magnetar.core.futures import settle
from magnetar.ledger.bookies import BookieSet, blames_bookie
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.copies_reader import bookie_of, contiguous

T = TypeVar("T")


async def call(
    bookies: BookieSet, identity: BookieIdentity, request: Awaitable[T], timeout_s: float
) -> T:
    """Returns the answer to `request`. Raises BookieError; BookieLate after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await request
    except TimeoutError:
        late = BookieLate(f"bookie {identity.bookie_id} did not answer within {timeout_s:g} s")
        bookies.failed(identity, late)
        raise late from None
    except BookieError as error:
        if blames_bookie(error):
            bookies.failed(identity, error)
        raise


async def store_copies(
    bookie: Bookie,
    ledger_id: int,
    entry_ids: Sequence[int],
    entries: Sequence[bytes],
    last_add_confirmed: int,
) -> None:
    """Stores copies of entries durably; a fence lets them pass. Idempotent. Raises BookieError."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        ledger_id,
        entry_ids,
        entries,
        last_add_confirmed=last_add_confirmed,
        on_added=lambda error: settle(done, error),
        recovery=True,
    )
    await done


async def _answer(
    context: LedgerContext, identity: BookieIdentity, request: Awaitable[T]
) -> T | BookieError:
    timeout_s = context.settings.recovery_request_timeout_s
    try:
        return await call(context.bookies, identity, request, timeout_s)
    except BookieError as error:
        return error


async def ask_end(
    context: LedgerContext, ledger_id: int, identity: BookieIdentity, *, fence: bool
) -> LedgerEnd | BookieError:
    """Returns the bookie's view of the ledger's end; with `fence`, the bookie is fenced first."""
    try:
        bookie = bookie_of(context, ledger_id, identity)
    except BookieUnavailable as error:
        return error
    return await _answer(context, identity, bookie.ledger_end(ledger_id, fence=fence))


async def ask_entries(
    context: LedgerContext,
    ledger_id: int,
    identity: BookieIdentity,
    first: int,
    last: int,
    bytes_max: int,
) -> list[StoredEntry] | BookieError:
    """Reads entries from `first` on, without a gap; the bookie is fenced before it answers."""

    async def read() -> list[StoredEntry]:
        bookie = bookie_of(context, ledger_id, identity)
        entries = await bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max, fence=True)
        if not entries or entries[0].entry_id != first:
            # Not NoSuchEntry: a bookie that breaks its contract does not prove an entry absent.
            raise BookieError(f"bookie {identity.bookie_id} answered for others than {first}")
        return contiguous(entries, first, identity.bookie_id)

    return await _answer(context, identity, read())


async def ask_to_store(
    context: LedgerContext,
    ledger_id: int,
    identity: BookieIdentity,
    first: int,
    entries: Sequence[bytes],
    last_add_confirmed: int,
) -> BookieError | None:
    """Stores recovered entries on the bookie durably. Idempotent."""

    async def store() -> None:
        bookie = bookie_of(context, ledger_id, identity)
        entry_ids = range(first, first + len(entries))
        await store_copies(bookie, ledger_id, entry_ids, entries, last_add_confirmed)

    return await _answer(context, identity, store())


async def ask_proofs(
    context: LedgerContext, ledger_id: int, identity: BookieIdentity, first: int, last: int
) -> EntryProofs | BookieError:
    """Returns proofs of these entries, or of a head of them."""

    async def prove() -> EntryProofs:
        bookie = bookie_of(context, ledger_id, identity)
        return await bookie.prove_entries(ledger_id, first, last, count_max=last - first + 1)

    return await _answer(context, identity, prove())


async def ask_to_delete(
    context: LedgerContext, ledger_id: int, identity: BookieIdentity
) -> BookieError | None:
    """Deletes the ledger from the bookie. Idempotent."""
    try:
        bookie = bookie_of(context, ledger_id, identity)
    except BookieUnavailable as error:
        return error
    return await _answer(context, identity, bookie.delete_ledger(ledger_id))

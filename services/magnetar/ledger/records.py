"""Reads and writes ledger records, although answers of the store may be lost.

`swap` is a compare-and-swap whose outcome is known when it returns. A write without an answer may
have landed, or may land later; so the record is read until it shows either outcome, and the write
is repeated over the same revision (only one attempt can succeed). `metadata_timeout_s` bounds this;
after it, MetadataUnavailable means that the outcome is unknown, and the caller must allow for both.
"""

import asyncio
from typing import Final

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.errors import MetadataError
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerMetadata, decode, ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, MetadataUnavailable, Record

ATTEMPT_TIMEOUT_S: Final = 10.0
"""Deadline of one call of the store; some stores have no deadline of their own."""


class RecordChanged(MetadataError):
    """The record is not at the expected revision; carries the current one. Nothing was written."""

    def __init__(self, metadata: LedgerMetadata, revision: int) -> None:
        super().__init__(f"ledger {metadata.ledger_id} was changed by another", http_status=409)
        self.metadata = metadata
        self.revision = revision


async def get_key(context: LedgerContext, key: str) -> Record | None:
    """Returns the key's record; retries while the store does not answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.metadata_timeout_s
    attempt = 0
    while True:
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                return await context.store.get(key)
        except (MetadataUnavailable, TimeoutError) as error:
            if loop.time() >= deadline:
                raise MetadataUnavailable(f"{key} could not be read: {error}") from error
        await context.back_off(attempt)
        attempt += 1


async def read_record(context: LedgerContext, ledger_id: int) -> tuple[LedgerMetadata, int]:
    """Returns the ledger's record and revision; raises NoSuchLedger, MetadataUnavailable."""
    key = ledger_key(ledger_id)
    record = await get_key(context, key)
    if record is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist")
    return decode(key, record.value), record.revision


async def swap(context: LedgerContext, metadata: LedgerMetadata, expected: int) -> int:
    """Writes the record over this revision; returns the new revision.

    Raises RecordChanged, NoSuchLedger if it was deleted, or MetadataUnavailable (see above).
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + context.settings.metadata_timeout_s
    key, value = ledger_key(metadata.ledger_id), encode(metadata)
    attempt = 0
    while True:
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                return await context.store.put(key, value, expected=expected)
        except BadRevision:
            current, revision = await read_record(context, metadata.ledger_id)
            if current == metadata:
                return revision  # an earlier attempt landed, or another process wrote the same
            raise RecordChanged(current, revision) from None
        except (MetadataUnavailable, TimeoutError) as error:
            if loop.time() >= deadline:
                raise MetadataUnavailable(
                    f"whether {key} was written is not known: {error}"
                ) from error
        await context.back_off(attempt)
        attempt += 1

"""A bookie that is to be emptied, as it stands in the metadata store for everyone to see.

`/bookies-drains/{id}` holds what was asked for and how far it is. Whoever asks puts a record there
(`request`), or takes it away again together with the mark (`cancel`); an autorecovery node that
holds the drain's lock does the work and writes the rest (`drain_worker`). Any step may be broken
off and is taken up by another node.

No proof outlives the mark: the worker writes its state in transactions that check the mark's
revision, and deletes the record of a drain whose mark is gone (`end_unmarked`).

A drain ends REMOVABLE (every ledger that the bookie held has its full number of copies elsewhere,
each read and compared) or REFUSED, with the ledgers that stand in the way. Asking again begins
again: what was moved stays moved.

Disks that were proven empty are retired when the drain ends, if the name has new disks by then:
`/bookies-known/` keeps only those that may still hold something.
"""

import contextlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from magnetar.autorecovery.decommission import NAMED_MAX, InTheWay
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.registration import (
    KNOWN_PREFIX,
    draining_key,
    known_key,
    registration_key,
)
from magnetar.bookie.registration import decode as decode_registration
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    Operation,
    Put,
)

DRAINS_PREFIX: Final = "/bookies-drains/"
LOCKS_PREFIX: Final = "/bookies-drains-locks/"
REQUEST_TRIES: Final = 5
RETIRED_MAX: Final = 64
"""Disks of one name that are retired at once."""

log = get_logger("magnetar.autorecovery")


class DrainState(StrEnum):
    """See the module's text."""

    REQUESTED = "requested"
    COPYING = "copying"
    PROVING = "proving"
    REMOVABLE = "removable"
    REFUSED = "refused"

    @property
    def ended(self) -> bool:
        return self in (DrainState.REMOVABLE, DrainState.REFUSED)


class Drain(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One bookie's."""

    bookie_id: str
    state: DrainState
    requested_ms: int
    updated_ms: int = 0
    reason: str = ""
    """Who asked, and why; for people."""
    ledgers_total: int = 0
    """Known to have been on it when the drain began."""
    ledgers_left: int = 0
    bytes_total: int = 0
    bytes_left: int = 0
    ledgers_open: int = 0
    """Of those left: still written to."""
    ledgers_proven: int = 0
    refused: str = ""
    """Why it cannot be removed, and what to do."""
    in_the_way: tuple[InTheWay, ...] = ()
    """Ledgers that still need it, the hopeless ones first; NAMED_MAX at most."""
    proven_ms: int = 0
    """When the last proof ended well."""
    incarnations: tuple[str, ...] = ()
    """Of the disks that were known under this name before that proof began: it is about them all.
    RETIRED_MAX at most."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Drain)


def drain_key(bookie_id: str) -> str:
    """Of one bookie's record."""
    return f"{DRAINS_PREFIX}{bookie_id}"


def drain_lock_key(bookie_id: str) -> str:
    """Of the lock that a node holds while it works at it."""
    return f"{LOCKS_PREFIX}{bookie_id}"


def encode(drain: Drain) -> bytes:
    """The record's value."""
    return _encoder.encode(drain)


def decode(key: str, value: bytes) -> Drain:
    """Raises MetadataError naming the key where the value is no drain."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no drain: {error}") from error


async def read(store: MetadataStore, bookie_id: str) -> Drain | None:
    """As it stands."""
    record = await store.get(drain_key(bookie_id))
    return None if record is None else decode(record.key, record.value)


async def read_all(store: MetadataStore) -> list[Drain]:
    """Every bookie's; a record that cannot be read is logged and left out."""
    return [drain for drain, _ in await read_with_revisions(store)]


async def read_with_revisions(store: MetadataStore) -> list[tuple[Drain, int]]:
    """Every bookie's drain with its record's revision; see `read_all`."""
    found: list[tuple[Drain, int]] = []
    for one in await store.list(DRAINS_PREFIX):
        try:
            found.append((decode(one.key, one.value), one.revision))
        except MetadataError as error:
            log.error("drain unreadable", key=one.key, error=str(error))
    return found


async def request(store: MetadataStore, bookie_id: str, now_ms: int, reason: str) -> Drain:
    """Asks for the bookie to be emptied; where that is under way, it goes on.

    One that has ended is begun again: a refusal may be over, a proof grows old.
    """
    key = drain_key(bookie_id)
    for _ in range(REQUEST_TRIES):
        stored = await store.get(key)
        before = None if stored is None else decode(key, stored.value)
        if before is not None and not before.state.ended:
            return before
        drain = Drain(bookie_id, DrainState.REQUESTED, now_ms, now_ms, reason)
        try:
            await store.put(
                key, encode(drain), expected=ABSENT if stored is None else stored.revision
            )
        except BadRevision:
            continue
        return drain
    raise MetadataError(f"{key} changes all the time")


async def cancel(store: MetadataStore, bookie_id: str) -> bool:
    """The bookie takes new ledgers again; whether it was being emptied.

    A record that cannot be read goes, too.
    """
    for _ in range(REQUEST_TRIES):
        stored = await store.get(drain_key(bookie_id))
        drain = None
        if stored is not None:
            with contextlib.suppress(MetadataError):
                drain = decode(stored.key, stored.value)
        marked = await store.get(draining_key(bookie_id)) is not None
        retired = [] if drain is None else await _retired(store, drain)
        ends = [Delete(drain_key(bookie_id)), Delete(draining_key(bookie_id))]
        try:
            await store.transact([*ends, *retired])
        except BadRevision:
            continue  # the bookie has registered anew, or has gone
        return stored is not None or marked
    raise MetadataError(f"{registration_key(bookie_id)} changes all the time")


async def end_unmarked(store: MetadataStore, drain: Drain, revision: int) -> None:
    """Deletes a drain's record where the bookie's mark is gone: the bookie takes new ledgers.

    Where only the mark was deleted, a drain would copy for ever, and a proof would still say that
    the bookie may be removed. Does nothing where the record changed, or the mark is back.
    """
    unmarked = Check(draining_key(drain.bookie_id), ABSENT)
    retired = await _retired(store, drain)
    with contextlib.suppress(BadRevision):
        await store.transact([unmarked, Delete(drain_key(drain.bookie_id), revision), *retired])


async def _retired(store: MetadataStore, drain: Drain) -> list[Operation]:
    """Forgets disks that were proven empty and that others stand for now.

    Only while these hold the name: what is forgotten cannot be coming back at the same moment.
    """
    if drain.state is not DrainState.REMOVABLE:
        return []
    key = registration_key(drain.bookie_id)
    stored = await store.get(key)
    if stored is None or not drain.incarnations:
        return []
    living = decode_registration(key, stored.value).identity
    if living.incarnation in drain.incarnations:
        return []
    gone = (BookieIdentity(drain.bookie_id, one) for one in drain.incarnations)
    return [Check(key, stored.revision), *(Delete(known_key(one)) for one in gone)]


async def known_incarnations(store: MetadataStore, bookie_id: str) -> tuple[str, ...]:
    """Of every disk that was ever in use under the name and is not retired."""
    prefix = f"{KNOWN_PREFIX}{bookie_id}/"
    found = [one.key.removeprefix(prefix) for one in await store.list(prefix)]
    return tuple(found[:RETIRED_MAX])


def refusal(drain: Drain, why: str, in_the_way: Sequence[InTheWay], now_ms: int) -> Drain:
    """The drain, refused."""
    return msgspec.structs.replace(
        drain,
        state=DrainState.REFUSED,
        refused=why,
        in_the_way=tuple(in_the_way[:NAMED_MAX]),
        updated_ms=now_ms,
    )


def put_over(drain: Drain, revision: int) -> Put:
    """Written only over the record that was read: a cancelled drain stays cancelled."""
    return Put(drain_key(drain.bookie_id), encode(drain), revision)

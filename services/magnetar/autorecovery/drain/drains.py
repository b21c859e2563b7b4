"""The records of drains in the metadata store: requested over REST, executed by autorecovery.

`/bookies-drains/{id}` has the request and the progress of one bookie's drain. `request` writes the
record; `cancel` deletes it together with the bookie's mark. The autorecovery node that holds the
drain's lock does the work and updates the record (`drain.worker`). If a node stops, another one
continues the drain.

No proof outlives the mark: the worker's transactions check the mark's revision, and the worker
deletes the record of a drain whose mark is gone (`delete_unmarked`).

A drain ends REMOVABLE (every ledger that the bookie held has its full number of copies on other
bookies, each read and compared) or REFUSED, with the ledgers that still need the bookie. A new
request restarts an ended drain; copies that were moved stay moved.

Disks that were proven empty are retired when the drain's record is deleted, if the bookie id has
new disks by then: `/bookies-known/` keeps only disks that may still hold entries.
"""

import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec

from magnetar.autorecovery.drain.decommission import NAMED_MAX
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
from magnetar.documents.bookies import Drain as Drain
from magnetar.documents.bookies import DrainState as DrainState
from magnetar.documents.bookies import InTheWay
from magnetar.metadata.records import RecordType, encode
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
"""The most disks of one bookie id that a drain retires."""

log = get_logger("magnetar.autorecovery")


decode = RecordType(Drain, "drain").decode


def drain_key(bookie_id: str) -> str:
    """Returns the key of one bookie's drain."""
    return f"{DRAINS_PREFIX}{bookie_id}"


def drain_lock_key(bookie_id: str) -> str:
    """Returns the key of the lock that a node holds while it executes the drain."""
    return f"{LOCKS_PREFIX}{bookie_id}"


async def read(store: MetadataStore, bookie_id: str) -> Drain | None:
    """Returns the bookie's drain, if there is one."""
    record = await store.get(drain_key(bookie_id))
    return None if record is None else decode(record.key, record.value)


async def read_all(store: MetadataStore) -> list[Drain]:
    """Returns all drains; logs and omits unreadable records."""
    return [drain for drain, _ in await read_with_revisions(store)]


async def read_with_revisions(store: MetadataStore) -> list[tuple[Drain, int]]:
    """Returns all drains with their records' revisions; logs and omits unreadable records."""
    drains: list[tuple[Drain, int]] = []
    for record in await store.list(DRAINS_PREFIX):
        try:
            drains.append((decode(record.key, record.value), record.revision))
        except MetadataError as error:
            log.error("drain record unreadable", key=record.key, error=str(error))
    return drains


async def request(store: MetadataStore, bookie_id: str, now_ms: int, reason: str) -> Drain:
    """Requests a drain of the bookie; a drain under way continues.

    A drain that has ended restarts: the reason for a refusal may be gone, and a proof ages.
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
    raise MetadataError(f"{key} kept changing")


async def cancel(store: MetadataStore, bookie_id: str) -> bool:
    """Deletes the drain and the mark, so that the bookie gets new ledgers again.

    Returns whether there was a drain or a mark. Deletes an unreadable record, too.
    """
    for _ in range(REQUEST_TRIES):
        stored = await store.get(drain_key(bookie_id))
        drain = None
        if stored is not None:
            with contextlib.suppress(MetadataError):
                drain = decode(stored.key, stored.value)
        marked = await store.get(draining_key(bookie_id)) is not None
        retired = [] if drain is None else await _retirement(store, drain)
        deletions = [Delete(drain_key(bookie_id)), Delete(draining_key(bookie_id))]
        try:
            await store.transact([*deletions, *retired])
        except BadRevision:
            continue  # the bookie's registration changed
        return stored is not None or marked
    raise MetadataError(f"{registration_key(bookie_id)} kept changing")


async def delete_unmarked(store: MetadataStore, drain: Drain, revision: int) -> None:
    """Deletes the drain of a bookie whose mark is gone: the bookie gets new ledgers again.

    Otherwise a drain would copy forever, and a proof would still allow the bookie's removal. Does
    nothing if the drain's record has changed, or the bookie is marked again.
    """
    unmarked = Check(draining_key(drain.bookie_id), ABSENT)
    retired = await _retirement(store, drain)
    with contextlib.suppress(BadRevision):
        await store.transact([unmarked, Delete(drain_key(drain.bookie_id), revision), *retired])


async def _retirement(store: MetadataStore, drain: Drain) -> list[Operation]:
    """Returns the operations that retire the drain's empty disks, if the bookie has new disks.

    They check the registration of the new disks, so no retired disk can register concurrently.
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
    retired = (BookieIdentity(drain.bookie_id, incarnation) for incarnation in drain.incarnations)
    deletions = (Delete(known_key(identity)) for identity in retired)
    return [Check(key, stored.revision), *deletions]


async def known_incarnations(store: MetadataStore, bookie_id: str) -> tuple[str, ...]:
    """Returns the incarnations of the disks that were used under the id and are not retired."""
    prefix = f"{KNOWN_PREFIX}{bookie_id}/"
    incarnations = [record.key.removeprefix(prefix) for record in await store.list(prefix)]
    return tuple(incarnations[:RETIRED_MAX])


def refusal(drain: Drain, why: str, in_the_way: Sequence[InTheWay], now_ms: int) -> Drain:
    """Returns the drain in the state REFUSED, with the reason and the first ledgers."""
    return msgspec.structs.replace(
        drain,
        state=DrainState.REFUSED,
        refused=why,
        in_the_way=tuple(in_the_way[:NAMED_MAX]),
        updated_ms=now_ms,
    )


def update_operation(drain: Drain, revision: int) -> Put:
    """Returns the write of the drain at `revision`, so that a cancelled drain stays cancelled."""
    return Put(drain_key(drain.bookie_id), encode(drain), revision)

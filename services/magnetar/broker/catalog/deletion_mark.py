"""Deletes a record that other records depend on: first marks it, then empties it, then deletes it.

A namespace contains topics, and a partitioned topic contains partitions. Everything below such a
record is created in a transaction that checks the record's revision. The mark changes the revision,
so once it is written:

1. Nothing new is created below the record, not even by a broker whose watch is behind.
2. A listing that starts after the mark shows everything that must be deleted.

Everything below the record is deleted in transactions that check the revision of the mark, and the
record itself is deleted at that revision. If the record was changed meanwhile (a bundle was split),
the deletion starts over. If the record then has no mark, the deletion ends: another deletion
removed the mark, or deleted the record before it was created again, and the new record is not the
one that this deletion was requested for.

A deletion that fails removes the mark. A broker that is killed leaves the mark, and the next
deletion of the same record finishes the work or removes the mark.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from magnetar.core.errors import Conflict, MagnetarError, NotFound
from magnetar.core.log import get_logger
from magnetar.metadata.records import decode_document, encode
from magnetar.metadata.store import BadRevision, Check, MetadataStore, Put, Record

DELETED: Final = "deleted"
"""The field of the mark; the name is Pulsar's. A record without it is not marked."""
ATTEMPTS_MAX: Final = 16

Step = Callable[[], Awaitable[None]]
Empty = Callable[[Check], Awaitable[None]]
"""Deletes everything below the record, in transactions that include this check."""
Restored = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Returns a record as it is kept after its deletion has failed with a part of it deleted."""


async def unchanged(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the record as it is, for one that does not list what is below it."""
    return document


log = get_logger("magnetar.deletion")


class BeingDeleted(Conflict):
    """The record is marked: nothing can be created below it, and its policies cannot change."""


def is_marked(document: dict[str, Any]) -> bool:
    """Whether a deletion of this record has begun."""
    return bool(document.get(DELETED))


def refuse_marked(document: dict[str, Any], what: str) -> None:
    """Raises BeingDeleted if the record is marked; `what` names the record in the text."""
    if is_marked(document):
        raise BeingDeleted(f"{what} is being deleted: repeat its deletion to finish it")


class MarkedDeletion:
    """A deletion of one record: marks it, empties it, and deletes it at the mark's revision."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        *,
        what: str,
        absent: str,
        written: Callable[[Record], None],
        under: Check | None = None,
        restored: Restored = unchanged,
    ) -> None:
        """`what` names the record in texts, `absent` is the text of NotFound.

        `written` is called with each version of the record that is written here. `under` is the
        mark of the parent record, if this deletion is a part of the parent's. `restored` is called
        before the mark is removed, if this deletion or an earlier one may have deleted a part.
        """
        self._store = store
        self._key = key
        self._what = what
        self._absent = absent
        self._written = written
        self._under: Sequence[Check] = () if under is None else (under,)
        self._restored = restored
        self._only_marked = False
        """Whether this deletion has written the mark, and nothing was deleted under it yet."""
        self._in_doubt = False
        """Whether a mark's write had no answer: it may succeed until the revision changes."""

    async def run(self, check: Step, empty: Empty) -> None:
        """Deletes the record after `empty`, which runs under the mark and may run again.

        `check` raises if the deletion is not allowed. It runs before the mark is written, so that a
        refused deletion has no effect, and again under the mark. Raises NotFound and Conflict, and
        BadRevision if `under` is no longer valid.
        """
        marked = False
        for _ in range(ATTEMPTS_MAX):
            try:
                await check()
                revision = await self._mark(again=marked)
                marked = True
                await check()
                self._only_marked = False
                await empty(Check(self._key, revision))
                await self._store.delete(self._key, expected=revision)
            except BadRevision as error:
                if error.key == self._key:
                    continue
                await self._unmark()
                raise
            except Exception:
                await self._unmark()
                raise
            return
        await self._unmark()
        raise Conflict(f"{self._what} is being changed by others: repeat its deletion")

    async def _mark(self, *, again: bool) -> int:
        """Marks the record unless it is marked; returns its revision with the mark."""
        record = await self._store.get(self._key)
        if record is None:
            raise NotFound(self._absent)
        if is_marked(decode_document(record.key, record.value)):
            return record.revision
        if again:
            raise Conflict(
                f"Another deletion of {self._what} has ended meanwhile: repeat this one if it is "
                "to be deleted still"
            )
        self._in_doubt = True
        revision = await self._write(record, marked=True, checks=self._under)
        self._in_doubt, self._only_marked = False, True
        return revision

    async def _unmark(self) -> None:
        try:
            for _ in range(ATTEMPTS_MAX):
                record = await self._store.get(self._key)
                if record is None:
                    return
                if not is_marked(decode_document(record.key, record.value)) and not self._in_doubt:
                    return
                with contextlib.suppress(BadRevision):
                    await self._write(record, marked=False)
                    return
        except MagnetarError as error:
            log.warning(
                "mark of a failed deletion not removed: repeat the deletion",
                key=self._key,
                error=str(error),
            )

    async def _write(self, record: Record, *, marked: bool, checks: Sequence[Check] = ()) -> int:
        document = decode_document(record.key, record.value)
        if not marked and is_marked(document) and not self._only_marked:
            document = await self._restored(document)
        value = encode({**document, DELETED: marked})
        revision = await self._store.transact([Put(self._key, value, record.revision), *checks])
        self._written(Record(self._key, value, revision))
        return revision

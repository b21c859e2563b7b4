"""Deletes a record that other records depend on: marked first, emptied, then deleted.

A namespace holds topics, and a partitioned topic holds partitions. Whatever is created below such a
record is created in a transaction that checks the record's revision. The mark changes the revision,
so once it is written:

1. Nothing is created below the record any more, also by a broker whose watch is late.
2. A listing that begins after the mark shows everything there is to delete.

What is below the record is deleted in transactions that check the revision of the mark, and the
record itself is deleted at that revision. If somebody wrote the record meanwhile (a bundle was
split), the deletion starts over. If it then finds the record without a mark, it ends: another
deletion took the mark back, or deleted the record before somebody created it again, and a record
that was created again is not the one that this deletion was asked for.

A deletion that fails takes the mark back. A broker that is killed on the way leaves the mark, and
the next deletion of the same record finishes the work or takes the mark back.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from magnetar.core.errors import Conflict, MagnetarError, NotFound
from magnetar.core.log import get_logger
from magnetar.metadata.store import BadRevision, Check, MetadataStore, Put, Record

DELETED: Final = "deleted"
"""The field of the mark, under Pulsar's name. A record without it is not marked."""
ATTEMPTS_MAX: Final = 16

Step = Callable[[], Awaitable[None]]
Empty = Callable[[Check], Awaitable[None]]
"""Deletes what is below the record, in transactions that make this check."""

log = get_logger("magnetar.deletion")


class BeingDeleted(Conflict):
    """The record is marked: nothing is created below it and no policy of it changes."""


def is_marked(document: dict[str, Any]) -> bool:
    """Whether a deletion of this record has begun."""
    return bool(document.get(DELETED))


def refuse_marked(document: dict[str, Any], what: str) -> None:
    """Raises BeingDeleted; `what` names the record for people."""
    if is_marked(document):
        raise BeingDeleted(f"{what} is being deleted: repeat its deletion to finish it")


class MarkedDeletion:
    """The deletion of one record: marked, emptied, then deleted at the mark's revision."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        *,
        what: str,
        absent: str,
        written: Callable[[Record], None],
        under: Check | None = None,
    ) -> None:
        """`what` names the record for people, `absent` is the text of NotFound.

        `written` is called with each version of the record that is written here. `under` is the
        mark of a record above this one, whose deletion asks for this one.
        """
        self._store = store
        self._key = key
        self._what = what
        self._absent = absent
        self._written = written
        self._under: Sequence[Check] = () if under is None else (under,)
        self._in_doubt = False
        """Whether a mark was not answered: it may land until the record has another revision."""

    async def run(self, check: Step, empty: Empty) -> None:
        """Deletes the record after `empty`, which runs under the mark and may run again.

        `check` raises if the deletion is refused. It runs before the mark is written, so that a
        refused deletion disturbs nobody, and again under the mark. Raises NotFound and Conflict,
        and BadRevision if `under` does not hold any more.
        """
        marked = False
        for _ in range(ATTEMPTS_MAX):
            try:
                await check()
                revision = await self._mark(again=marked)
                marked = True
                await check()
                await empty(Check(self._key, revision))
                await self._store.delete(self._key, expected=revision)
            except BadRevision as error:
                if error.key == self._key:
                    continue
                await self._take_back()
                raise
            except Exception:
                await self._take_back()
                raise
            return
        await self._take_back()
        raise Conflict(f"{self._what} is being changed by others: repeat its deletion")

    async def _mark(self, *, again: bool) -> int:
        """The revision of the record with the mark."""
        record = await self._store.get(self._key)
        if record is None:
            raise NotFound(self._absent)
        if is_marked(msgspec.json.decode(record.value)):
            return record.revision
        if again:
            raise Conflict(
                f"Another deletion of {self._what} has ended meanwhile: repeat this one if it is "
                "to be deleted still"
            )
        self._in_doubt = True
        revision = await self._write(record, marked=True, checks=self._under)
        self._in_doubt = False
        return revision

    async def _take_back(self) -> None:
        try:
            for _ in range(ATTEMPTS_MAX):
                record = await self._store.get(self._key)
                if record is None:
                    return
                if not is_marked(msgspec.json.decode(record.value)) and not self._in_doubt:
                    return
                with contextlib.suppress(BadRevision):
                    await self._write(record, marked=False)
                    return
        except MagnetarError as error:
            log.warning(
                "mark of a failed deletion not taken back: repeat the deletion",
                key=self._key,
                error=str(error),
            )

    async def _write(self, record: Record, *, marked: bool, checks: Sequence[Check] = ()) -> int:
        document: dict[str, Any] = msgspec.json.decode(record.value)
        value = msgspec.json.encode({**document, DELETED: marked})
        revision = await self._store.transact([Put(self._key, value, record.revision), *checks])
        self._written(Record(self._key, value, revision))
        return revision

"""Writes the records of all coordinators of a broker to the metadata store, in groups.

One group is under way at a time. Whatever changes meanwhile, in any coordinator, shares the next
group, so a busy broker costs few writes. A group is one transaction of the store. It has a part of
each coordinator that has changes: the coordinator's head, expected at the revision that its former
part gave it, and records.

- A group of unknown outcome is repeated unchanged. It takes effect at most once, even if an earlier
  attempt arrives late, because every attempt expects the same revisions. If an attempt finds a
  part's own value in its head, an earlier attempt succeeded, for all parts: values of heads are
  distinct.
- If a head is at another revision without that, another broker has taken its coordinator over. That
  part has failed. No attempt with it can succeed any more, so the other parts form a new group.
- A group that the store refuses for another reason is split, so that one coordinator's part cannot
  fail the others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.core.backoff import Backoff, Random
from magnetar.core.cork import cork
from magnetar.core.errors import MagnetarError, TransactionCoordinatorNotFound
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import (
    TRANSACTION_OPS_MAX,
    BadRevision,
    MetadataStore,
    MetadataUnavailable,
    Operation,
    Put,
)

GROUP_BYTES_MAX: Final = 512 << 10
"""Maximum size of a group's values, except that of its first record. etcd accepts 1.5 MiB."""
ATTEMPT_TIMEOUT_S: Final = 10.0
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 2.0

log = get_logger("magnetar.transactions")


class Fenced(TransactionCoordinatorNotFound):
    """Another broker took the coordinator over; nothing more can be written."""


class PartWriter(Protocol):
    """The coordinator of a part."""

    def take(self, operations_max: int, bytes_max: int) -> "Part | None":
        """Returns its next part within the bounds; None if it has none, or none that fits.

        The part ends with a call of `written` or `refused`; until then `take` is not called.
        """

    def written(self, revision: int) -> None:
        """The part is durable, and its head is at this revision."""

    def refused(self, error: MagnetarError) -> None:
        """The part was not written, or not as far as is known."""

    @property
    def waits(self) -> bool:
        """Whether it has more to write."""


@dataclass(frozen=True, slots=True)
class Part:
    """A coordinator's part of a group."""

    writer: PartWriter
    head: Put
    """The head's new value, expected at the revision of the former one."""
    records: Sequence[Operation]
    size_bytes: int


class GroupWriter:
    """Writes one group after the other, while a coordinator has changes."""

    def __init__(self, store: MetadataStore, random: Random) -> None:
        self.store = store
        self._random = random
        self._due: dict[PartWriter, None] = {}
        """The coordinators with changes, in the order in which they are served."""
        self._tasks = TaskSet("records of transactions")
        self._writing = False

    def add(self, writer: PartWriter) -> None:
        """Serves a coordinator with the next group."""
        self._due[writer] = None
        if not self._writing:
            self._writing = True
            if self._tasks.start(self._run(), "write") is None:
                self._refuse_all(Fenced("The broker is shutting down"))

    async def stop(self) -> None:
        """Stops writing; the outcome of a group under way is unknown."""
        await self._tasks.stop()
        self._refuse_all(Fenced("The broker is shutting down"))

    async def _run(self) -> None:
        try:
            while self._due:
                # Yields once, so that all requests of one turn of the loop share a group.
                await asyncio.sleep(0)
                if parts := self._next_group():
                    await self._write(parts)
        except Exception:
            # A bug. Nothing else would write what waits.
            self._refuse_all(Fenced("The records of transactions cannot be written"))
            raise
        finally:
            self._writing = False

    def _next_group(self) -> list[Part]:
        parts: list[Part] = []
        operations_left, bytes_left = TRANSACTION_OPS_MAX, GROUP_BYTES_MAX
        for writer in list(self._due):
            # One of the operations is the head.
            part = writer.take(operations_left - 1, bytes_left) if operations_left > 1 else None
            if part is not None:
                parts.append(part)
                operations_left -= 1 + len(part.records)
                bytes_left -= part.size_bytes
            if part is not None or not writer.waits:
                del self._due[writer]
                if writer.waits:
                    self._due[writer] = None  # behind those that this group has not served
        return parts

    async def _write(self, parts: list[Part]) -> None:
        left = parts
        try:
            while left:
                left = await self._attempts(left)
        except BaseException as error:
            failure = error if isinstance(error, MagnetarError) else Fenced("not written")
            if isinstance(error, MagnetarError) and len(left) > 1:
                for part in left:
                    await self._write([part])
                return
            for part in left:
                part.writer.refused(failure)
            if not isinstance(error, MagnetarError):
                raise

    async def _attempts(self, parts: list[Part]) -> list[Part]:
        """Writes the parts; returns those that must be written again, without the fenced ones.

        Repeats the write while its outcome is unknown. Raises MagnetarError if it was refused.
        """
        operations: list[Operation] = []
        for part in parts:
            operations.append(part.head)
            operations.extend(part.records)
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, self._random)
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    try:
                        revision = await self.store.transact(operations)
                    except BadRevision:
                        return await self._after_conflict(parts)
                with cork:
                    for part in parts:
                        part.writer.written(revision)
                return []
            except (MetadataUnavailable, TimeoutError) as error:
                pause_s = backoff.failed_s()
                if backoff.failures == 1:
                    keys = ", ".join(part.head.key for part in parts)
                    log.warning("records not written yet", keys=keys, error=str(error) or "timeout")
                await asyncio.sleep(pause_s)

    async def _after_conflict(self, parts: list[Part]) -> list[Part]:
        """Sorts the parts of a group whose heads are not all at the expected revision."""
        stored = [await self.store.get(part.head.key) for part in parts]
        landed = any(
            head is not None and head.value == part.head.value
            for part, head in zip(parts, stored, strict=True)
        )
        left: list[Part] = []
        for part, head in zip(parts, stored, strict=True):
            if head is not None and head.value == part.head.value:
                part.writer.written(head.revision)
            elif not landed and head is not None and head.revision == part.head.expected:
                left.append(part)
            else:
                part.writer.refused(Fenced(f"{part.head.key} was taken over by another broker"))
        return left

    def _refuse_all(self, error: MagnetarError) -> None:
        due, self._due = self._due, {}
        for writer in due:
            writer.refused(error)

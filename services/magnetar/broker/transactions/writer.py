"""Collects the changed records of one coordinator, and hands them to the broker's groups.

`groups` writes a part of each coordinator at a time: the coordinator's head, at the revision that
the former part gave it, and records. The head protects from every other writer: a broker that takes
the coordinator over replaces the head, so a later part of the former broker fails. So records need
no revisions of their own, and no late write can undo a later one.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from magnetar.broker.transactions.groups import (
    ATTEMPT_TIMEOUT_S,
    GROUP_BYTES_MAX,
    RETRY_S_MAX,
    RETRY_S_MIN,
    GroupWriter,
    Part,
)
from magnetar.core.backoff import Backoff, Random
from magnetar.core.errors import MagnetarError, TransactionCoordinatorNotFound
from magnetar.core.log import get_logger
from magnetar.metadata.records import encode
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Delete,
    MetadataStore,
    MetadataUnavailable,
    Operation,
    Put,
    Record,
)
from magnetar.transactions.model import TxnId
from magnetar.transactions.records import (
    Head,
    decode_head,
    head_key,
    record_key,
    records_prefix,
)

IDLE_DELAY_S: Final = 1.0
"""How long a record that no caller waits for may wait for a group to share."""
TAKE_OVER_ATTEMPTS_MAX: Final = 16

log = get_logger("magnetar.transactions")

ValueOf = Callable[[int], bytes | None]
"""Returns the newest value of a transaction's record, None to delete it."""

OnWritten = Callable[[MagnetarError | None], object]
"""Called once a record is durable, or with the reason why it will not be."""


async def take_over(
    store: MetadataStore, coordinator: int, broker: str, random: Random
) -> tuple[Record, Head]:
    """Makes `broker` the only writer of a coordinator; returns the new head.

    Raises MetadataError, and MetadataUnavailable if the head keeps changing or cannot be written.
    """
    key = head_key(coordinator)
    backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, random)
    for _ in range(TAKE_OVER_ATTEMPTS_MAX):
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                former = await store.get(key)
                head = _next_epoch(former, broker)
                value = encode(head)
                expected = ABSENT if former is None else former.revision
                revision = await store.put(key, value, expected=expected)
                return Record(key, value, revision), head
        except BadRevision:
            pass  # another broker takes it over as well, or an attempt without an answer succeeded
        except (MetadataUnavailable, TimeoutError):
            await asyncio.sleep(backoff.failed_s())
    raise MetadataUnavailable(f"{key} could not be written: the coordinator is not served yet")


def _next_epoch(former: Record | None, broker: str) -> Head:
    if former is None:
        return Head(epoch=1, broker=broker)
    head = decode_head(former.key, former.value)
    return Head(epoch=head.epoch + 1, broker=broker, next_number=head.next_number)


class RecordWriter:
    """Writes the records of one coordinator until another broker takes it over (`PartWriter`)."""

    def __init__(
        self,
        groups: GroupWriter,
        coordinator: int,
        taken: tuple[Record, Head],
        value_of: ValueOf,
    ) -> None:
        """`taken` is what `take_over` returned."""
        self._groups = groups
        self._coordinator = coordinator
        self._key = head_key(coordinator)
        self._revision, self._head = taken[0].revision, taken[1]
        self._value_of = value_of
        self._waiting: dict[int, list[OnWritten]] = {}
        """The transactions of the next part, with what waits for them."""
        self._unhurried: set[int] = set()
        """Transactions that nothing waits for, for the next part or after IDLE_DELAY_S."""
        self._under_way: list[OnWritten] | None = None
        """What waits for the part under way; None without one."""
        self._newest = self._head
        """The head of the part under way."""
        self._timer: asyncio.TimerHandle | None = None
        self.next_number = self._head.next_number
        """The number of the next transaction; the next part makes it durable."""
        self.groups = 0
        """The number of parts written."""
        self.failure: MagnetarError | None = None
        """The error that stopped the writer; None while it writes."""

    def write(self, number: int, on_written: OnWritten) -> None:
        """Writes the newest record of a transaction, and calls back. Never at once.

        Raises TransactionCoordinatorNotFound if the writer has stopped.
        """
        if self.failure is not None:
            raise TransactionCoordinatorNotFound(self.failure.message)
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.append(on_written)
            return
        self._waiting[number] = [on_written]
        self._unhurried.discard(number)
        self._begin()

    def write_later(self, numbers: Iterable[int]) -> None:
        """Writes records that nothing waits for, with the next part or after IDLE_DELAY_S."""
        if self.failure is not None:
            return
        self._unhurried.update(number for number in numbers if number not in self._waiting)
        if self._under_way is None and not self._waiting:
            self._begin_later()

    def close(self) -> None:
        """Stops writing; the outcome of a part under way is unknown."""
        self._fail(
            TransactionCoordinatorNotFound(
                f"Transaction coordinator {self._coordinator} is not served here any more"
            )
        )

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._under_way is None and self.failure is None:
            self._groups.add(self)

    def _begin_later(self) -> None:
        if self._unhurried and self._timer is None and self.failure is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_DELAY_S, self._begin)

    @property
    def waits(self) -> bool:
        """See `PartWriter`."""
        return bool(self._waiting or self._unhurried) and self.failure is None

    def take(self, operations_max: int, bytes_max: int) -> Part | None:
        """See `PartWriter`."""
        if not self.waits:
            return None
        records: list[Operation] = []
        under_way: list[OnWritten] = []
        size_bytes = 0
        for number in [*self._waiting, *self._unhurried]:
            value = self._value_of(number)
            value_bytes = 0 if value is None else len(value)
            # The first record of an empty group always fits.
            fits = size_bytes + value_bytes <= bytes_max or (
                not records and bytes_max == GROUP_BYTES_MAX
            )
            if len(records) >= operations_max or not fits:
                break
            size_bytes += value_bytes
            key = record_key(TxnId(self._coordinator, number))
            records.append(Delete(key) if value is None else Put(key, value))
            under_way += self._waiting.pop(number, ())
            self._unhurried.discard(number)
        if not records:
            return None
        self._under_way = under_way
        self._newest = msgspec.structs.replace(
            self._head, group=self._head.group + 1, next_number=self.next_number
        )
        head = Put(self._key, encode(self._newest), self._revision)
        return Part(self, head, records, size_bytes)

    def written(self, revision: int) -> None:
        """See `PartWriter`."""
        self._revision, self._head = revision, self._newest
        self.groups += 1
        under_way, self._under_way = self._under_way or (), None
        for on_written in under_way:
            _call(on_written, None)
        if self._waiting:
            self._begin()
        else:
            self._begin_later()

    def refused(self, error: MagnetarError) -> None:
        """See `PartWriter`."""
        if self.failure is None:
            log.warning(
                "transaction coordinator stopped", coordinator=self._coordinator, error=str(error)
            )
        self._fail(error)

    def _fail(self, failure: MagnetarError) -> None:
        if self.failure is None:
            self.failure = failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = self._under_way or []
        for of_one in self._waiting.values():
            waiting += of_one
        self._under_way = None
        self._waiting.clear()
        self._unhurried.clear()
        for on_written in waiting:
            # Each caller has its own error: a shared one would collect all their tracebacks.
            _call(on_written, TransactionCoordinatorNotFound(self.failure.message))


def _call(on_written: OnWritten, error: MagnetarError | None) -> None:
    try:
        on_written(error)
    except Exception:
        # A bug. It must not keep the others waiting.
        log.exception("callback of a written record failed")


async def read_records(store: MetadataStore, coordinator: int) -> list[Record]:
    """Returns all records of a coordinator. Call it after `take_over`: then none changes."""
    async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
        return await store.list(records_prefix(coordinator))

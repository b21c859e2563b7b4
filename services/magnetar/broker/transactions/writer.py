"""Writes a coordinator's records to the metadata store, in groups, under its head.

One group is under way at a time. The transactions that change meanwhile share the next group, so a
busy coordinator costs few writes. A group is one transaction of the store: it replaces the head, at
the revision that the former group gave it, and puts or deletes records.

The head protects from every other writer:

- A broker that takes the coordinator over replaces the head. A later group of the former broker
  fails, because the head is not at its revision.
- A group of unknown outcome is repeated unchanged. It takes effect at most once, even if an earlier
  attempt arrives late, because every attempt expects the same revision. If an attempt finds exactly
  the group's own value in the head, an earlier attempt succeeded: values of the head are distinct.

So records need no revisions of their own, and no late write can undo a later one.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from magnetar.core.backoff import Backoff, Random
from magnetar.core.errors import MagnetarError, TransactionCoordinatorNotFound
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.records import encode
from magnetar.metadata.store import (
    ABSENT,
    TRANSACTION_OPS_MAX,
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

GROUP_RECORDS_MAX: Final = TRANSACTION_OPS_MAX - 1
"""The head is the other operation."""
GROUP_BYTES_MAX: Final = 512 << 10
"""Maximum size of a group's values, except that of its first record. etcd accepts 1.5 MiB."""
IDLE_DELAY_S: Final = 1.0
"""How long a record that no caller waits for may wait for a group to share."""
ATTEMPT_TIMEOUT_S: Final = 10.0
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 2.0
TAKE_OVER_ATTEMPTS_MAX: Final = 16

log = get_logger("magnetar.transactions")

ValueOf = Callable[[int], bytes | None]
"""Returns the newest value of a transaction's record, None to delete it."""


class Fenced(TransactionCoordinatorNotFound):
    """Another broker took the coordinator over; nothing more can be written."""


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
    """Writes the records of one coordinator until another broker takes it over."""

    def __init__(
        self,
        store: MetadataStore,
        coordinator: int,
        taken: tuple[Record, Head],
        value_of: ValueOf,
        random: Random,
    ) -> None:
        """`taken` is what `take_over` returned."""
        self._store = store
        self._coordinator = coordinator
        self._revision, self._head = taken[0].revision, taken[1]
        self._value_of = value_of
        self._random = random
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """The transactions of the next group, with the futures of their callers."""
        self._unhurried: set[int] = set()
        """Transactions without waiting callers, for the next group or after IDLE_DELAY_S."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet(f"transaction coordinator {coordinator}")
        self._writing = False
        self.next_number = self._head.next_number
        """The number of the next transaction; the next group makes it durable."""
        self.groups = 0
        """The number of groups written."""
        self.failure: MagnetarError | None = None
        """The error that stopped the writer; None while it writes."""

    async def write(self, number: int) -> None:
        """Writes the newest record of a transaction; it is durable on return.

        Raises TransactionCoordinatorNotFound if the writer has stopped. The write goes on if the
        caller is cancelled.
        """
        if self.failure is not None:
            raise TransactionCoordinatorNotFound(self.failure.message)
        future = self._waiting.get(number)
        if future is None:
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
            # A caller that timed out does not read it.
            future.add_done_callback(_retrieved)
            self._unhurried.discard(number)
            self._begin()
        # Shielded: several callers may wait for the same group.
        await asyncio.shield(future)

    def write_later(self, numbers: Iterable[int]) -> None:
        """Writes records that no caller waits for, with the next group or after IDLE_DELAY_S."""
        if self.failure is not None:
            return
        self._unhurried.update(number for number in numbers if number not in self._waiting)
        if self._unhurried and self._timer is None and not self._writing:
            self._timer = asyncio.get_running_loop().call_later(IDLE_DELAY_S, self._begin)

    async def close(self) -> None:
        """Stops writing; the outcome of a group under way is unknown."""
        self._fail(
            TransactionCoordinatorNotFound(
                f"Transaction coordinator {self._coordinator} is not served here any more"
            )
        )
        await self._tasks.stop()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writing and self.failure is None:
            self._writing = True
            self._tasks.start(self._run(), "write records")

    async def _run(self) -> None:
        try:
            while self._waiting or self._unhurried:
                await self._write_group()
        except MagnetarError as error:
            log.warning(
                "transaction coordinator stopped", coordinator=self._coordinator, error=str(error)
            )
            self._fail(error)
        except BaseException:
            self._fail(Fenced(f"Transaction coordinator {self._coordinator} failed"))
            raise
        finally:
            self._writing = False

    async def _write_group(self) -> None:
        # Yields once, so that all requests of one read of a socket share a group.
        await asyncio.sleep(0)
        group, futures = self._next_group()
        head = msgspec.structs.replace(
            self._head, group=self._head.group + 1, next_number=self.next_number
        )
        try:
            self._revision = await self._transacted(encode(head), group)
        except BaseException as error:
            failure = error if isinstance(error, MagnetarError) else Fenced("not written")
            for future in futures:
                _set_exception(future, failure)
            raise
        self._head = head
        self.groups += 1
        for future in futures:
            if not future.done():
                future.set_result(None)

    def _next_group(self) -> tuple[list[Operation], "list[asyncio.Future[None]]"]:
        operations: list[Operation] = []
        futures: list[asyncio.Future[None]] = []
        size_bytes = 0
        for number in [*self._waiting, *self._unhurried]:
            value = self._value_of(number)
            if operations and (
                len(operations) >= GROUP_RECORDS_MAX
                or size_bytes + len(value or b"") > GROUP_BYTES_MAX
            ):
                break
            size_bytes += len(value or b"")
            key = record_key(TxnId(self._coordinator, number))
            operations.append(Delete(key) if value is None else Put(key, value))
            if (future := self._waiting.pop(number, None)) is not None:
                futures.append(future)
            self._unhurried.discard(number)
        return operations, futures

    async def _transacted(self, value: bytes, group: list[Operation]) -> int:
        """Writes a group, with the head's new value; returns the head's revision.

        Repeats it while the outcome is unknown. Raises Fenced.
        """
        key = head_key(self._coordinator)
        operations = [Put(key, value, self._revision), *group]
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, self._random)
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    try:
                        return await self._store.transact(operations)
                    except BadRevision as error:
                        stored = await self._store.get(key)
                        if stored is not None and stored.value == value:
                            return stored.revision
                        raise Fenced(
                            f"Transaction coordinator {self._coordinator} was taken over"
                        ) from error
            except (MetadataUnavailable, TimeoutError) as error:
                pause_s = backoff.failed_s()
                if backoff.failures == 1:
                    log.warning("records not written yet", key=key, error=str(error) or "timeout")
                await asyncio.sleep(pause_s)

    def _fail(self, failure: MagnetarError) -> None:
        if self.failure is None:
            self.failure = failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in self._waiting.values():
            _set_exception(future, self.failure)
        self._waiting.clear()
        self._unhurried.clear()


async def read_records(store: MetadataStore, coordinator: int) -> list[Record]:
    """Returns all records of a coordinator. Call it after `take_over`: then none changes."""
    async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
        return await store.list(records_prefix(coordinator))


def _retrieved(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()


def _set_exception(future: "asyncio.Future[None]", error: MagnetarError) -> None:
    if not future.done():
        # Each future has its own error: a shared one would collect all their tracebacks.
        future.set_exception(TransactionCoordinatorNotFound(error.message))

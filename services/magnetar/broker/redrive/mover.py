"""Moves a group of dead letters in one transaction: acks here, messages at their targets.

The transaction commits both or neither, so a crash at any point moves a message once or not at all.
A producer that connects again repeats messages whose receipts were lost; then the transaction may
have them twice, and is aborted.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.broker.redrive.dead_letters import DeadLetters
from magnetar.broker.redrive.letters import Letter, Skip, properties_at_origin
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.client.client import Client
from magnetar.client.errors import (
    ClientError,
    EncryptionRequired,
    IncompatibleSchema,
    InvalidTopicName,
    MessageTooBig,
    NotAllowed,
    ProducerBusy,
    ProducerFenced,
    QuotaExceeded,
    TopicNotFound,
    TopicTerminated,
    TransactionHasFailures,
    UnsupportedVersion,
)
from magnetar.client.producer.producer import Producer
from magnetar.client.schema import SchemaInfo, SchemaType
from magnetar.client.schema.api import RawSchema
from magnetar.client.transaction.transaction import Transaction, TransactionState
from magnetar.core.log import get_logger
from magnetar.core.names import TopicName, parse_topic
from magnetar.transactions.model import TxnId

TRANSACTION_TIMEOUT_S: Final = 20.0
"""After a crash, the letters of its last group wait so long for the next redrive."""
COMMITS_MAX: Final = 3
"""How often a commit without an answer is requested."""
PRODUCERS_MAX: Final = 64
"""Producers of one redrive that stay open."""
REPEATS_MAX: Final = 5
"""How often a group is moved again because a producer has connected again meanwhile."""
CLOSE_TIMEOUT_S: Final = 2.0

REFUSALS: Final = (
    EncryptionRequired,
    IncompatibleSchema,
    InvalidTopicName,
    MessageTooBig,
    NotAllowed,
    ProducerFenced,
    QuotaExceeded,
    TopicNotFound,
    TopicTerminated,
    UnsupportedVersion,
)
"""Errors of a target that a repetition does not change soon; letters to others go on."""
BUSY: Final = (*REFUSALS, ProducerBusy)
"""Those of a new producer, whose name no other one has: another producer has exclusive access."""

log = get_logger("magnetar.redrive")


class GroupTimeout(ClientError):
    """A group was not moved within its time; a smaller one may be."""


class Addressed(NamedTuple):
    """A letter and the topic that it is moved to."""

    letter: Letter
    target: TopicName

    @property
    def lane(self) -> "Lane":
        """What its producer is for."""
        return self.target, self.letter.schema_version


Lane = tuple[TopicName, bytes]


@dataclass(slots=True)
class _Group:
    """A group on its way: the letters that are left, and why others are not."""

    left: list[Addressed]
    skipped: Counter[Skip]
    repeats: int = 0


class Mover:
    """Moves groups from one subscription. `close` it."""

    def __init__(self, letters: DeadLetters, client: Client, schemas: SchemaRegistry) -> None:
        self._letters = letters
        self._client = client
        self._schemas = schemas
        self._source = parse_topic(letters.subscription.topic)
        self._producers: dict[Lane, Producer[bytes] | Skip] = {}

    async def move(self, group: Sequence[Addressed]) -> tuple[int, Counter[Skip]]:
        """Moves a group; returns the number of moved letters, and why others stay.

        If it raises an error, the group may have been moved as a whole, or not at all.
        """
        moving = _Group(list(group), Counter())
        while moving.left:
            producers = await self._open(moving)
            if not moving.left:
                break
            moved = await self._once(moving, producers)
            if moved is not None:
                await self._close_spare()
                return moved, moving.skipped
        return 0, moving.skipped

    async def _open(self, group: _Group) -> dict[Lane, Producer[bytes]]:
        """Returns the producers of a group, without the letters whose targets refuse one."""
        ready: dict[Lane, Producer[bytes]] = {}
        left = []
        for item in group.left:
            producer = await self._producer(item.lane)
            if isinstance(producer, Skip):
                group.skipped[producer] += 1
            else:
                ready[item.lane] = producer
                left.append(item)
        group.left = left
        return ready

    async def _producer(self, lane: Lane) -> Producer[bytes] | Skip:
        known = self._producers.pop(lane, None)
        if known is None or (isinstance(known, Producer) and known.refusal is not None):
            known = await self._new_producer(lane)
        self._producers[lane] = known  # the one that was used last is the last to be closed
        return known

    async def _new_producer(self, lane: Lane) -> Producer[bytes] | Skip:
        target, version = lane
        info = None
        if version:
            stored = await self._schemas.get(self._source, version)
            if stored is None:
                return Skip.NO_SCHEMA
            schema = stored.schema
            info = SchemaInfo(
                type=SchemaType(int(schema.type)),
                data=schema.data,
                name=schema.name,
                properties=schema.properties,
            )
        try:
            return await self._client.producer(str(target), schema=RawSchema(info), batching=None)
        except BUSY as error:
            log.info("redrive refused by target", target=str(target), error=str(error))
            return Skip.REFUSED

    async def _once(self, group: _Group, producers: dict[Lane, Producer[bytes]]) -> int | None:
        """Moves a group; None if some letters are left, which another transaction may move."""
        transaction = await self._client.transaction(TRANSACTION_TIMEOUT_S)
        connected_before = _reconnects(producers)
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
                taken, skipped = await self._take(transaction, group)
                refused = await self._send(transaction, taken, producers)
            repeated = _reconnects(producers) != connected_before
            if taken and not refused and not repeated:
                await _commit(transaction)
                group.skipped += skipped
                return len(taken)
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            await self._drop(producers)
            raise GroupTimeout(
                f"{len(group.left)} messages were not moved in {TRANSACTION_TIMEOUT_S:g} s. Start "
                "the redrive again: it continues"
            ) from error
        finally:
            if transaction.state is TransactionState.OPEN:
                await _abort(transaction)
        if not taken:
            group.skipped += skipped
            return 0
        group.skipped[Skip.REFUSED] += len(refused)
        group.left = [item for item in group.left if item not in refused]
        group.repeats += repeated
        if group.repeats > REPEATS_MAX:
            raise ClientError(
                f"The connection to a target was lost {group.repeats} times. Start the redrive "
                "again: it continues"
            )
        return None

    async def _take(
        self, transaction: Transaction, group: _Group
    ) -> tuple[list[Addressed], Counter[Skip]]:
        subscription = self._letters.subscription
        await transaction.enlist_subscription(subscription.topic, subscription.name)
        txn = TxnId(*transaction.wire_id)
        await self._letters.join(txn)
        by_letter = {id(item.letter): item for item in group.left}
        letters, skipped = self._letters.take(txn, (item.letter for item in group.left))
        await self._letters.durable()
        return [by_letter[id(letter)] for letter in letters], skipped

    async def _send(
        self,
        transaction: Transaction,
        items: Sequence[Addressed],
        producers: dict[Lane, Producer[bytes]],
    ) -> list[Addressed]:
        """Publishes the letters; returns those that their targets have refused."""
        sending = []
        for item in items:
            letter = item.letter
            sending.append(
                producers[item.lane].send(
                    None if letter.null_value else letter.payload,
                    key=letter.key,
                    key_bytes=letter.key_bytes,
                    ordering_key=letter.ordering_key,
                    properties=properties_at_origin(letter.properties),
                    event_time_ms=letter.event_time_ms,
                    transaction=transaction,
                )
            )
        refused = []
        for item, result in zip(
            items, await asyncio.gather(*sending, return_exceptions=True), strict=True
        ):
            if isinstance(result, REFUSALS):
                refused.append(item)
            elif isinstance(result, BaseException):
                raise result
        return refused

    async def _drop(self, producers: dict[Lane, Producer[bytes]]) -> None:
        """Closes producers, with what they still send: a new one shows why the target is slow."""
        for lane in producers:
            self._producers.pop(lane, None)
        closing = [producer.close(flush_timeout_s=0.0) for producer in producers.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.gather(*closing, return_exceptions=True)

    async def _close_spare(self) -> None:
        while len(self._producers) > PRODUCERS_MAX:
            producer = self._producers.pop(next(iter(self._producers)))
            if isinstance(producer, Producer):
                await producer.close(flush_timeout_s=0.0)

    async def close(self) -> None:
        """Closes the producers and connections."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.close()


def _reconnects(producers: dict[Lane, Producer[bytes]]) -> int:
    """How often the producers have connected again."""
    return sum(producer.stats.reconnects for producer in producers.values())


async def _commit(transaction: Transaction) -> None:
    for attempt in range(1, COMMITS_MAX + 1):
        try:
            await transaction.commit()
        except TransactionHasFailures:
            raise
        except ClientError:
            if transaction.state is not TransactionState.UNKNOWN or attempt == COMMITS_MAX:
                raise
        else:
            return


async def _abort(transaction: Transaction) -> None:
    """Aborts; if that fails, the coordinator does it at the timeout."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await transaction.abort()
    except (ClientError, TimeoutError) as error:
        log.info("transaction of a redrive not aborted", error=str(error) or "no answer in time")

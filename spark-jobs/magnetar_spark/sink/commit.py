"""What the driver does with the transactions of a batch's tasks: commits all at once, or aborts.

The rules, and why a batch is committed once, are in `docs/understand/transactions.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import MagnetarError, PersistenceError, ServerError
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.errors import Refused, Unavailable
from magnetar_spark.sink.client.producer import Txn
from magnetar_spark.sink.client.transactions import Coordinator, Ended
from magnetar_spark.sink.identity import Identity, TaskDone
from magnetar_spark.sink.journal import NO_TXN, Base, Kind
from magnetar_spark.sink.options import WriteOptions
from magnetar_spark.sink.settings import ExactlyOnce
from magnetar_spark.sink.state import Findings, Journal, abort_all, check_start

_OVER: Final = (ServerError.INVALID_TXN_STATUS, ServerError.TRANSACTION_NOT_FOUND)

log = get_logger("magnetar.spark.sink")


@dataclass(slots=True)
class _Driver:
    """The driver's side of one batch."""

    coordinator: Coordinator
    journal: Journal
    identity: Identity
    listed: list[Txn]
    """The transactions of the tasks that count."""

    async def commit(self) -> None:
        """Commits the batch unless it is committed. Raises MagnetarError if it is not."""
        if self.identity.sink_id is None:
            await self._commit_unnamed()
            return
        base = check_start(
            await self.journal.base(), self.identity.batch, named=self.identity.named
        )
        if base.committed >= self.identity.batch:
            await self._was_committed()
            return
        lead = await self.coordinator.begin()
        try:
            findings = await self._led(lead, base)
            if findings.committed >= self.identity.batch:
                await self._was_committed(lead)
                return
            since = _lead_position(findings, self.identity)
            await self.coordinator.add(lead, self.journal.topic)
            done = self.identity.record(Kind.DONE, lead, Base(self.identity.batch, since))
            await self.journal.append(done, txn=lead)
            await self._commit(lead)
        except BaseException:
            await abort_all(self.coordinator, [lead, *self.listed])
            raise
        if (before := _last_before(findings, since)) is not None:
            await self.journal.forget(before)

    async def abort(self) -> None:
        """Aborts what the tasks have written, and stops those that have not begun."""
        base = Base() if self.identity.sink_id is None else await self.journal.base()
        txns = set(self.listed)
        if base is not None:
            await self.journal.append(self.identity.record(Kind.ABORTED, NO_TXN, base))
            txns.update(await self.journal.transactions(self.identity.execution, base))
        await abort_all(self.coordinator, txns)

    async def _commit_unnamed(self) -> None:
        """Commits a batch write without a name: a repetition is another write."""
        lead = await self.coordinator.begin()
        try:
            recorded = await self.journal.transactions(self.identity.execution, Base())
            await abort_all(self.coordinator, set(recorded) - set(self.listed))
            await self._commit(lead)
        except BaseException:
            await abort_all(self.coordinator, [lead, *self.listed])
            raise

    async def _led(self, lead: Txn, base: Base) -> Findings:
        """Records the leading transaction, and ends all others that are not to be committed."""
        position = await self.journal.append(self.identity.record(Kind.LEAD, lead, base))
        findings = await self.journal.settle(
            self.coordinator, self.identity.execution, base, position
        )
        executions = {record.execution for _, record in findings.records}
        stale = set(findings.transactions(executions)) - set(self.listed)
        if findings.committed < self.identity.batch:
            await abort_all(self.coordinator, stale)
        return findings

    async def _commit(self, lead: Txn) -> None:
        try:
            await self.coordinator.commit(lead, self.listed)
        except Unavailable:
            # The request may have succeeded; an abort finds out.
            if await self.coordinator.abort(lead) is not Ended.COMMITTED:
                raise
        except Refused as error:
            if error.number in _OVER:
                raise PersistenceError(
                    f"batch {self.identity.batch} is not committed, since one of its transactions "
                    f"has ended: {error}. Set transactionTimeoutMs to more than a batch takes; or "
                    "another run of the query writes"
                ) from error
            raise

    async def _was_committed(self, *own: Txn) -> None:
        log.info("batch was committed before", batch=self.identity.batch)
        await abort_all(self.coordinator, [*own, *self.listed])


def _lead_position(findings: Findings, identity: Identity) -> Position:
    """The position of this execution's leading record."""
    return max(
        position
        for position, record in findings.records
        if record.kind is Kind.LEAD and record.execution == identity.execution
    )


def _last_before(findings: Findings, position: Position) -> Position | None:
    earlier = [recorded for recorded, _ in findings.records if recorded < position]
    return max(earlier, default=None)


def _identity_of(messages: Sequence[TaskDone | None]) -> Identity | None:
    for message in messages:
        if message is not None and message.identity is not None:
            return message.identity
    return None


async def _driver(
    brokers: Brokers, once: ExactlyOnce, identity: Identity, messages: Sequence[TaskDone | None]
) -> _Driver:
    coordinator = await Coordinator.choose(brokers, identity.seed, once.transaction_timeout_ms)
    journal = Journal(brokers, identity.journal)
    listed = [txn for message in messages if message is not None for txn in message.txns]
    return _Driver(coordinator, journal, identity, listed)


async def commit_batch(
    options: WriteOptions, messages: Sequence[TaskDone | None], identity: Identity | None = None
) -> None:
    """Commits a batch whose tasks have all succeeded. Raises MagnetarError if it is not visible."""
    identity = identity or _identity_of(messages)
    if options.exactly_once is None:
        return
    if identity is None:
        raise PersistenceError("the tasks of the batch have not said what they wrote")
    if messages and all(message is not None and message.skipped for message in messages):
        return
    async with Brokers(options.client) as brokers:
        driver = await _driver(brokers, options.exactly_once, identity, messages)
        try:
            await driver.commit()
        finally:
            await driver.journal.close()


async def abort_batch(
    options: WriteOptions, messages: Sequence[TaskDone | None], identity: Identity | None = None
) -> None:
    """Aborts a batch of which a task has failed.

    If no task of a streaming query has succeeded, the driver does not know which batch it was: then
    the tasks have aborted their transactions, or the next run of the batch does.
    """
    identity = identity or _identity_of(messages)
    if options.exactly_once is None or identity is None:
        return
    try:
        async with Brokers(options.client) as brokers:
            driver = await _driver(brokers, options.exactly_once, identity, messages)
            try:
                await driver.abort()
            finally:
                await driver.journal.close()
    except MagnetarError as error:
        # Spark reports the failure of the task, which is the cause; this one would hide it.
        log.warning("transactions left to their timeouts", error=str(error))

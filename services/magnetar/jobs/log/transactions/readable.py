"""Finds what transactions leave readable of a log that was just read.

The log, the records of transactions and the aborted set change meanwhile. The reads are in this
order, so that every interleaving gives a right answer:

1. The end of the log (the caller). Later entries do not matter.
2. The log's record, for its watermark. A broker stores the first watermark before the first entry
   of a transaction, so without one, no entry up to the end belongs to a transaction. Every aborted
   entry up to the watermark was in the stored aborted set before the watermark was written.
3. The entries after the watermark, and the record of each transaction that they belong to. OPEN
   ends the search, even if the transaction ends meanwhile. ABORTING and ABORTED leave out all of
   its entries, in the aborted set or not. COMMITTING and COMMITTED are final. A record is deleted
   only after the abort is durable in the aborted set, so a missing record means: committed, unless
   step 4 finds the entries there. Reading that set before the record would miss an abort that
   became durable, and whose record was deleted, between the two reads.
4. The aborted set. It only grows, so it has what steps 2 and 3 rely on, whichever broker serves
   the topic by now; but trimming lets it count all entries of trimmed ledgers as aborted. So:
5. The log's record once more. Ledgers that it no longer lists were trimmed, and are left out.

If the topic was deleted and created again meanwhile, the log is read again.
"""

from magnetar.core.errors import ServiceNotReady
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.topic_log import TopicLog, log_record
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.log.transactions.aborted_set import aborted_set
from magnetar.jobs.log.transactions.search import search
from magnetar.jobs.log.transactions.visible import NONE_ABORTED, Settled, without_aborted
from magnetar.managed_ledger.record import ManagedLedgerRecord, watermark_of


class LogReplaced(ServiceNotReady):
    """The log was deleted, and possibly created again, while it was read."""


async def readable(
    log: Log, current: TopicLog, created_ms: int, confirmed: Position | None
) -> TopicLog:
    """Returns the log up to its horizon, with the aborted entries of its ledgers.

    The horizon is looked for up to `confirmed`, or the log's end. `created_ms` is that of the log.
    Raises LogReplaced, NoSuchLedger if a ledger was trimmed meanwhile, and as `search` and
    `aborted_set` do.
    """
    topic = current.topic
    end = current.end if confirmed is None else min(confirmed, current.end)
    settled = await settled_to(log, topic, created_ms)
    if settled is None:
        return current
    settled = await search(log, log_name(topic), current.ledgers, settled, end)
    if not current.gone:
        log.settled[topic] = settled
    state = await aborted_set(log.context, log_name(topic))
    record = await _same_log(log, topic, created_ms)
    trimmed_to = Position(*record.last_position)
    return without_aborted(current, state or NONE_ABORTED, settled, trimmed_to)


async def settled_to(log: Log, topic: TopicName, created_ms: int) -> Settled | None:
    """Returns how far the log is known to be settled; None for a log without transactions.

    Call it after the log's end was read. Raises LogReplaced.
    """
    record = await _same_log(log, topic, created_ms)
    watermark = watermark_of(record.properties)
    if watermark is None:
        return None
    after = max(watermark, Position(*record.last_position))
    known = log.settled.get(topic)
    if known is None or known.created_ms != created_ms:
        return Settled(created_ms, after)
    return known.after(after)


async def _same_log(log: Log, topic: TopicName, created_ms: int) -> ManagedLedgerRecord:
    record = await log_record(log.store, topic)
    if record is None or record.created_ms != created_ms:
        raise LogReplaced(f"{topic} was deleted while it was read")
    return record

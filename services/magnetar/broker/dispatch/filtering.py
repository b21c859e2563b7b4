"""Entry filters on the way to consumers: judges the messages of entries, and acks rejected ones.

A subscription without filters has no `EntryFilters` and pays nothing. A rejected message counts as
acknowledged by the subscription. In a batch, each message is judged; the consumer gets the batch
with the bits of the accepted ones. The messages of an encrypted batch cannot be read, so they are
accepted if the entry's own metadata is; so is an entry that cannot be read at all, because its
consumer reports it.

An entry that is redelivered was accepted before and is not judged again.

Bounds: a dispatcher with filters takes at most FILTERED_AT_ONCE_MAX entries at a time, and every
message of a batch counts towards its turn, so that filtering cannot starve the event loop.
"""

from typing import Final

from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.policies.filters import Predicate
from magnetar.policies.selector import Message
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import messages_of
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

FILTERED_AT_ONCE_MAX: Final = 8
"""Entries, each of which may be a batch of thousands of messages."""

Judgement = tuple[int, int]
"""The number of messages, and the bits of the accepted ones."""


class FilterCounts:
    """How many messages a subscription's filters have judged since its topic was opened."""

    __slots__ = ("accepted", "rejected")

    def __init__(self) -> None:
        self.accepted = self.rejected = 0

    def add(self, judgement: Judgement) -> None:
        """Counts the messages of an entry."""
        count, bits = judgement
        accepted = bits.bit_count()
        self.accepted += accepted
        self.rejected += count - accepted

    def fill_stats(self, stats: SubscriptionStats) -> None:
        """Adds the counts to the subscription's stats; no filter reschedules messages."""
        stats.filter_processed_msg_count = self.accepted + self.rejected
        stats.filter_accepted_msg_count = self.accepted
        stats.filter_rejected_msg_count = self.rejected


class EntryFilters:
    """The filters of one subscription."""

    __slots__ = ("_cursor", "_judged", "counts", "predicate")

    def __init__(self, predicate: Predicate, cursor: Cursor, counts: FilterCounts) -> None:
        self.predicate = predicate
        self.counts = counts
        self._cursor = cursor
        self._judged = 0

    def accepted(self, entries: list[Entry]) -> list[Entry]:
        """Returns the entries with an accepted message, in order; acks all rejected messages."""
        kept: list[Entry] = []
        for entry in entries:
            count, bits = judge(entry.data, self.predicate)
            self._judged += count
            self.counts.add((count, bits))
            ledger_id, entry_id = entry.ledger_id, entry.entry_id
            if not bits:
                self._cursor.ack(ledger_id, entry_id)
                continue
            if bits != (1 << count) - 1 and self._cursor.ack_batch(
                ledger_id, entry_id, bits, count
            ):
                continue  # the accepted messages were acknowledged before
            kept.append(entry)
        return kept

    def judged(self) -> int:
        """Returns the number of messages judged since the last call."""
        judged, self._judged = self._judged, 0
        return judged


def judge(data: bytes, predicate: Predicate) -> Judgement:
    """Judges the messages of an entry."""
    try:
        metadata = parse_metadata(data)
    except MalformedEntry:
        return 1, 1
    count = metadata.num_messages_in_batch
    if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
        try:
            _, messages = messages_of(data)
        except MalformedEntry:
            return max(count, 1), (1 << max(count, 1)) - 1
        bits = 0
        for index, message in enumerate(messages):
            single = message.metadata
            if single is not None and predicate(as_filters_see(single)):
                bits |= 1 << index
        return len(messages), bits
    count = max(count, 1)
    return count, (1 << count) - 1 if predicate(as_filters_see(metadata)) else 0


def as_filters_see(metadata: MessageMetadata | SingleMessageMetadata) -> Message:
    """Returns the key and the properties of a message."""
    return Message(
        {item.key: item.value for item in metadata.properties},
        metadata.partition_key if metadata.HasField("partition_key") else None,
    )

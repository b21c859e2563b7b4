"""Builds the rows for one topic's state: the topic, its subscriptions, its ledgers. Pure."""

from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from magnetar.core.ids import Position
from magnetar.ledger.metadata import LedgerMetadata
from magnetar_spark.jobs.backlog.analyse import growth, holes
from magnetar_spark.jobs.backlog.analyse.causes import Cause, Held, Mark, held_by_cause, slowest
from magnetar_spark.jobs.backlog.analyse.growth import Before
from magnetar_spark.jobs.backlog.gather.gather import TopicFacts
from magnetar_spark.jobs.backlog.gather.topic_state import Subscription
from magnetar_spark.jobs.backlog.scan.plan import unread_from
from magnetar_spark.jobs.backlog.scan.sums import Scanned
from magnetar_spark.jobs.backlog.tables.tables import (
    AckHoleRow,
    ConsumerRow,
    Rows,
    StorageRow,
    SubscriptionRow,
    TopicRow,
    WhatIfRow,
)

RATE_MINUTES: Final = 5
"""The newest whole minutes over which `messages_per_s` is averaged."""
MINUTE_MS: Final = 60_000

Earlier = Mapping[tuple[str, str], Before]


class _Messages(NamedTuple):
    """The unacknowledged messages of a subscription, as far as they are known."""

    messages: int | None
    exact: bool
    bytes_scanned: int
    acked_in_batches: int | None


class TopicTables:
    """The rows of one topic's state."""

    def __init__(
        self, facts: TopicFacts, scanned: Scanned, before: Earlier, before_topics: Earlier
    ) -> None:
        self._facts = facts
        self._state = state = facts.state
        self._scanned = scanned
        self._before = before
        self._before_topic = before_topics.get((state.name, ""))
        marks = [
            Mark(
                subscription.name,
                None if subscription.acks is None else subscription.acks.mark_delete,
            )
            for subscription in state.subscriptions
        ]
        self._held = held_by_cause(
            state.index,
            marks,
            state.keeping.retention,
            facts.at_ms,
            # A ledger is released if it has no record any more, whatever became of its deletion.
            {ledger_id: ledger_id not in state.ledgers for ledger_id in state.files},
            state.compacted.limit,
        )
        name, rank = slowest(state.index, marks)
        self._slowest = name if rank < state.index.rank_end else ""

    def add_to(self, rows: Rows) -> None:
        """Adds all rows of the topic."""
        storage = self._storage()
        rows.storage += storage
        rows.topics.append(self._topic(storage))
        for subscription in self._state.subscriptions:
            holds_bytes = sum(
                held.bytes_on_bookies
                for held in storage
                if held.cause == Cause.SUBSCRIPTION and held.subscription == subscription.name
            )
            rows.subscriptions.append(self._subscription(subscription, holds_bytes))
            rows.ack_holes += self._holes(subscription)
        rows.consumers += self._consumers()
        rows.what_if += self._what_if()

    def _copies(self, ledger_id: int) -> int:
        return _copies(self._state.ledgers.get(ledger_id))

    def _storage(self) -> list[StorageRow]:
        return [self._held_row(held) for held in self._held] + self._outside_the_list()

    def _held_row(self, held: Held) -> StorageRow:
        info = self._state.index.get(held.ledger_id)
        file = self._state.files.get(held.ledger_id)
        copies = self._copies(held.ledger_id)
        return StorageRow(
            topic=self._state.name,
            ledger_id=held.ledger_id,
            cause=held.cause.value,
            subscription=held.subscription,
            entries=held.entries,
            bytes=held.size_bytes,
            copies=copies,
            bytes_on_bookies=held.size_bytes * copies,
            bytes_cold=0 if file is None else file.file_bytes,
            created=None if info is None else info.created_ms,
            closed=info.closed_ms or None if info is not None else None,
        )

    def _outside_the_list(self) -> list[StorageRow]:
        """The storage outside the topic's list of ledgers: ledgers to delete, artifact, cursors."""
        state = self._state
        rows = [self._deleting(ledger_id) for ledger_id in state.record.deleting]
        rows = [row for row in rows if row.copies or row.bytes_cold]
        if state.compacted.size_bytes:
            rows.append(self._other(-1, Cause.COMPACTED, 0, 0, state.compacted.size_bytes))
        if state.cursor_bytes:
            copies = max(
                (
                    _copies(subscription.cursor.ledger)
                    for subscription in state.subscriptions
                    if subscription.cursor.ledger is not None
                ),
                default=0,
            )
            rows.append(self._other(-1, Cause.CURSORS, state.cursor_bytes, copies, 0))
        return rows

    def _deleting(self, ledger_id: int) -> StorageRow:
        """A ledger to delete, with its file, which is deleted after it."""
        metadata, file = self._state.deleting.get(ledger_id), self._state.files.get(ledger_id)
        size_bytes = 0 if metadata is None else max(0, metadata.length_bytes)
        file_bytes = 0 if file is None else file.file_bytes
        return self._other(ledger_id, Cause.DELETING, size_bytes, _copies(metadata), file_bytes)

    def _other(
        self, ledger_id: int, cause: Cause, size_bytes: int, copies: int, bytes_cold: int
    ) -> StorageRow:
        return StorageRow(
            topic=self._state.name,
            ledger_id=ledger_id,
            cause=cause.value,
            subscription="",
            entries=0,
            bytes=size_bytes,
            copies=copies,
            bytes_on_bookies=size_bytes * copies,
            bytes_cold=bytes_cold,
            created=None,
            closed=None,
        )

    def _topic(self, storage: list[StorageRow]) -> TopicRow:
        state, seen, topic = self._state, self._facts.seen, self._state.topic
        scanned = self._scanned.topics.get(state.name)
        scanned_entries = 0 if scanned is None else scanned.entries
        appended, since_s = self._appended(self._before_topic)
        return TopicRow(
            topic=state.name,
            parent=str(topic.base),
            partition=topic.partition_index,
            namespace=str(topic.namespace),
            entries=state.index.entries,
            bytes=state.index.size_bytes,
            bytes_exact=state.sizes_exact,
            bytes_on_bookies=sum(row.bytes_on_bookies for row in storage),
            bytes_cold=sum(row.bytes_cold for row in storage),
            ledgers=len(state.index.infos),
            subscriptions=len(state.subscriptions),
            slowest=self._slowest,
            end_ledger=state.index.last_ledger,
            end_entry=state.index.last_entry,
            retention_ms=state.keeping.retention.time_ms,
            retention_bytes=state.keeping.retention.size_bytes,
            ttl_s=state.keeping.ttl_s,
            asked=seen is not None,
            publishers=None if seen is None else seen.publishers,
            scanned_entries=scanned_entries,
            scanned_messages=0 if scanned is None else scanned.messages,
            scanned_bytes=0 if scanned is None else scanned.bytes,
            scan_whole=scanned_entries == state.index.entries,
            sampled=self._sampled(),
            messages_per_s=self._rate(),
            appended_per_s=appended / since_s if appended is not None and since_s else None,
        )

    def _appended(self, before: Before | None) -> tuple[int | None, float]:
        if before is None:
            return None, 0.0
        trimmed_to = Position(*self._state.record.last_position)
        appended = growth.appended_since(self._state.index, trimmed_to, before.end)
        return appended, (self._facts.at_ms - before.at_ms) / 1000

    def _sampled(self) -> bool:
        """Whether only a part of the unacknowledged entries was scanned."""
        first, index = unread_from(self._state), self._state.index
        scanned = self._scanned.topics.get(self._state.name)
        if first is None or scanned is None or scanned.entries >= index.entries:
            return False
        unread = index.rank_end - index.rank(*first) + 1
        return bool(scanned.entries < unread)

    def _rate(self) -> float | None:
        """Messages per second; None if the newest minutes were not scanned completely."""
        minutes = self._scanned.minutes.get(self._state.name, ())
        scanned = self._scanned.topics.get(self._state.name)
        if scanned is None or self._sampled():
            return None
        end_ms = self._facts.at_ms // MINUTE_MS * MINUTE_MS
        start_ms = end_ms - RATE_MINUTES * MINUTE_MS
        whole = scanned.entries == self._state.index.entries
        if not whole and all(row.number >= start_ms for row in minutes):
            return None  # the scanned part starts later
        messages = sum(row.messages for row in minutes if start_ms <= row.number < end_ms)
        return messages / (RATE_MINUTES * 60)

    def _subscription(self, subscription: Subscription, holds_bytes: int) -> SubscriptionRow:
        state, acks, seen = self._state, subscription.acks, self._facts.seen
        index, topic = state.index, self._state.topic
        entries = None if acks is None else acks.backlog
        before = self._before.get((state.name, subscription.name))
        moved = growth.Progress(growth.Trend.UNKNOWN)
        if entries is not None:
            appended, _ = self._appended(before)
            moved = growth.progress(before, entries, appended, self._facts.at_ms)
        by_broker = None if seen is None else seen.subscriptions.get(subscription.name)
        oldest, oldest_ms = subscription.oldest, subscription.oldest_ms
        messages = self._messages(subscription.name, entries)
        delayed = self._scanned.delayed.get((state.name, subscription.name))
        return SubscriptionRow(
            topic=state.name,
            parent=str(topic.base),
            partition=topic.partition_index,
            namespace=str(topic.namespace),
            subscription=subscription.name,
            error=subscription.cursor.error,
            entries=entries,
            messages=messages.messages,
            messages_exact=messages.exact,
            delayed_messages=self._delayed(subscription.name, entries),
            next_delivery=None if delayed is None else delayed.oldest_ms,
            bytes=None if acks is None else acks.backlog_bytes_estimate,
            bytes_exact=state.sizes_exact,
            bytes_scanned=messages.bytes_scanned,
            oldest=oldest_ms,
            age_s=None if oldest_ms is None else max(0, self._facts.at_ms - oldest_ms) / 1000,
            expires_in_s=self._expires_in_s(oldest_ms),
            mark_ledger=None if acks is None else acks.mark_delete.ledger_id,
            mark_entry=None if acks is None else acks.mark_delete.entry_id,
            oldest_ledger=None if oldest is None else oldest.ledger_id,
            oldest_entry=None if oldest is None else oldest.entry_id,
            end_ledger=index.last_ledger,
            end_entry=index.last_entry,
            acked_beyond=None if acks is None else acks.holes_count,
            acked_ranges=None if acks is None else acks.ranges_count,
            partial_entries=None if acks is None else len(acks.batches),
            acked_in_batches=messages.acked_in_batches,
            holds_bytes=holds_bytes,
            trend=moved.trend.value,
            since_s=moved.seconds,
            published_per_s=moved.published_per_s,
            consumed_per_s=moved.consumed_per_s,
            growth_per_s=moved.growth_per_s,
            drains_in_s=moved.drains_in_s,
            asked=seen is not None,
            type="" if by_broker is None else by_broker.kind,
            consumers=None if by_broker is None else len(by_broker.consumers),
            unacked_messages=None if by_broker is None else by_broker.unacked_messages,
            held_by="" if by_broker is None else holes.holders(by_broker.consumers, None),
        )

    def _expires_in_s(self, oldest_ms: int | None) -> float | None:
        ttl_s = self._state.keeping.ttl_s
        if oldest_ms is None or not ttl_s:
            return None
        return ttl_s - max(0, self._facts.at_ms - oldest_ms) / 1000

    def _messages(self, subscription: str, entries: int | None) -> _Messages:
        """The unread messages: exact if all unread entries were scanned, else extrapolated."""
        unread = self._scanned.unread.get((self._state.name, subscription))
        bytes_scanned = 0 if unread is None else unread.bytes
        if entries == 0:
            return _Messages(0, True, bytes_scanned, 0)
        if unread is None or entries is None:
            return _Messages(None, False, bytes_scanned, None)
        if unread.entries == entries:
            return _Messages(unread.messages, True, bytes_scanned, unread.number)
        messages = round(unread.messages * entries / unread.entries)
        return _Messages(messages, False, bytes_scanned, None)

    def _delayed(self, subscription: str, entries: int | None) -> int | None:
        """The unread messages that are not due: exact or extrapolated as `_messages`."""
        unread = self._scanned.unread.get((self._state.name, subscription))
        delayed = self._scanned.delayed.get((self._state.name, subscription))
        if entries == 0:
            return 0
        if unread is None or entries is None:
            return None
        count = 0 if delayed is None else delayed.messages
        return round(count * entries / unread.entries)

    def _holes(self, subscription: Subscription) -> list[AckHoleRow]:
        if subscription.acks is None:
            return []
        seen = self._facts.seen
        by_broker = None if seen is None else seen.subscriptions.get(subscription.name)
        held_by = "" if by_broker is None else holes.holders(by_broker.consumers, None)
        listed = islice(holes.holes(self._state.index, subscription.acks), holes.HOLES_MAX)
        return [
            AckHoleRow(
                topic=self._state.name,
                subscription=subscription.name,
                first_ledger=hole.first.ledger_id,
                first_entry=hole.first.entry_id,
                last_ledger=hole.last.ledger_id,
                last_entry=hole.last.entry_id,
                entries=hole.entries,
                held_by=held_by,
            )
            for hole in listed
        ]

    def _consumers(self) -> list[ConsumerRow]:
        if self._facts.seen is None:
            return []
        return [
            ConsumerRow(
                topic=self._state.name,
                subscription=name,
                consumer=consumer.name,
                address=consumer.address,
                unacked_messages=consumer.unacked_messages,
                available_permits=consumer.available_permits,
                last_acked=consumer.last_acked_ms or None,
            )
            for name, subscription in self._facts.seen.subscriptions.items()
            for consumer in subscription.consumers
        ]

    def _what_if(self) -> list[WhatIfRow]:
        rows: list[WhatIfRow] = []
        for freed in self._facts.freed:
            gone = self._state.index.infos[: freed.ledgers]
            rows.append(
                WhatIfRow(
                    topic=self._state.name,
                    scenario=freed.scenario,
                    expired=sorted(freed.expired.items()),
                    ledgers=freed.ledgers,
                    entries=freed.entries,
                    bytes=freed.size_bytes,
                    bytes_on_bookies=sum(
                        info.size_bytes * self._copies(info.ledger_id) for info in gone
                    ),
                    bytes_cold=sum(
                        file.file_bytes
                        for info in gone
                        if (file := self._state.files.get(info.ledger_id)) is not None
                    ),
                )
            )
        return rows


def _copies(metadata: LedgerMetadata | None) -> int:
    """The copies on bookies; 0 if the ledger has no record, so that bookies delete it."""
    if metadata is None:
        return 0
    return min(metadata.write_quorum, len(metadata.ensembles[-1].bookies))

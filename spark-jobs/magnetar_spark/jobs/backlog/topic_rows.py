"""Rows of the tables about one topic's state: itself, its subscriptions, its ledgers. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from magnetar.core.ids import Position
from magnetar.ledger.metadata import LedgerMetadata
from magnetar_spark.jobs.backlog import growth, holes
from magnetar_spark.jobs.backlog.causes import Cause, Held, Mark, held_by_cause, slowest
from magnetar_spark.jobs.backlog.gather import TopicFacts
from magnetar_spark.jobs.backlog.growth import Before
from magnetar_spark.jobs.backlog.scan_plan import unread_from
from magnetar_spark.jobs.backlog.sums import Row, Scanned
from magnetar_spark.jobs.backlog.tables import Rows
from magnetar_spark.jobs.backlog.topic_state import Subscription

RATE_MINUTES: Final = 5
"""The newest whole minutes that `messages_per_s` is of."""
MINUTE_MS: Final = 60_000

Earlier = Mapping[tuple[str, str], Before]


class TopicRows:
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
            Mark(each.name, None if each.acks is None else each.acks.mark_delete)
            for each in state.subscriptions
        ]
        self._held = held_by_cause(
            state.index,
            marks,
            state.keeping.retention,
            facts.at_ms,
            # Released is what has no record any more: whoever was to delete it may have died first.
            {ledger_id: ledger_id not in state.ledgers for ledger_id in state.files},
            state.compacted.limit,
        )
        name, rank = slowest(state.index, marks)
        self._slowest = name if rank < state.index.rank_end else ""

    def add_to(self, rows: Rows) -> None:
        storage = self._storage()
        rows["storage"] += storage
        rows["topics"].append(self._topic(storage))
        for each in self._state.subscriptions:
            row = self._subscription(each)
            row["holds_bytes"] = sum(
                held["bytes_on_bookies"]
                for held in storage
                if held["cause"] == Cause.SUBSCRIPTION and held["subscription"] == each.name
            )
            rows["subscriptions"].append(row)
            rows["ack_holes"] += self._holes(each)
        rows["consumers"] += self._consumers()
        rows["what_if"] += self._what_if()

    def _about(self) -> dict[str, Any]:
        topic = self._state.topic
        return {
            "topic": self._state.name,
            "parent": str(topic.base),
            "partition": topic.partition_index,
            "namespace": str(topic.namespace),
        }

    def _copies(self, ledger_id: int) -> int:
        return _copies(self._state.ledgers.get(ledger_id))

    def _storage(self) -> list[Row]:
        return [self._held_row(each) for each in self._held] + self._beside()

    def _held_row(self, held: Held) -> Row:
        info = self._state.index.get(held.ledger_id)
        file = self._state.files.get(held.ledger_id)
        copies = self._copies(held.ledger_id)
        return {
            "topic": self._state.name,
            "ledger_id": held.ledger_id,
            "cause": held.cause.value,
            "subscription": held.subscription,
            "entries": held.entries,
            "bytes": held.size_bytes,
            "copies": copies,
            "bytes_on_bookies": held.size_bytes * copies,
            "bytes_cold": 0 if file is None else file.file_bytes,
            "created": None if info is None else info.created_ms,
            "closed": info.closed_ms or None if info is not None else None,
        }

    def _beside(self) -> list[Row]:
        """What is no part of the list: ledgers to be deleted, and cursors'."""
        state = self._state
        rows = [self._deleting(ledger_id) for ledger_id in state.record.deleting]
        rows = [row for row in rows if row["copies"] or row["bytes_cold"]]
        if state.compacted.size_bytes:
            row = self._other(-1, Cause.COMPACTED, 0, 0)
            rows.append({**row, "bytes_cold": state.compacted.size_bytes})
        if state.cursor_bytes:
            copies = max(
                (
                    _copies(each.cursor.ledger)
                    for each in state.subscriptions
                    if each.cursor.ledger is not None
                ),
                default=0,
            )
            rows.append(self._other(-1, Cause.CURSORS, state.cursor_bytes, copies))
        return rows

    def _deleting(self, ledger_id: int) -> Row:
        """With its file, which goes behind it."""
        metadata, file = self._state.deleting.get(ledger_id), self._state.files.get(ledger_id)
        size_bytes = 0 if metadata is None else max(0, metadata.length_bytes)
        row = self._other(ledger_id, Cause.DELETING, size_bytes, _copies(metadata))
        return {**row, "bytes_cold": 0 if file is None else file.file_bytes}

    def _other(self, ledger_id: int, cause: Cause, size_bytes: int, copies: int) -> Row:
        return {
            "topic": self._state.name,
            "ledger_id": ledger_id,
            "cause": cause.value,
            "subscription": "",
            "entries": 0,
            "bytes": size_bytes,
            "copies": copies,
            "bytes_on_bookies": size_bytes * copies,
            "bytes_cold": 0,
            "created": None,
            "closed": None,
        }

    def _topic(self, storage: list[Row]) -> Row:
        state, seen = self._state, self._facts.seen
        scanned = self._scanned.topics.get(state.name)
        appended, since_s = self._appended(self._before_topic)
        return {
            **self._about(),
            "entries": state.index.entries,
            "bytes": state.index.size_bytes,
            "bytes_exact": state.sizes_exact,
            "bytes_on_bookies": sum(row["bytes_on_bookies"] for row in storage),
            "bytes_cold": sum(row["bytes_cold"] for row in storage),
            "ledgers": len(state.index.infos),
            "subscriptions": len(state.subscriptions),
            "slowest": self._slowest,
            "end_ledger": state.index.last_ledger,
            "end_entry": state.index.last_entry,
            "retention_ms": state.keeping.retention.time_ms,
            "retention_bytes": state.keeping.retention.size_bytes,
            "ttl_s": state.keeping.ttl_s,
            "asked": seen is not None,
            "publishers": None if seen is None else seen.publishers,
            "scanned_entries": 0 if scanned is None else scanned["entries"],
            "scanned_messages": 0 if scanned is None else scanned["messages"],
            "scanned_bytes": 0 if scanned is None else scanned["bytes"],
            "scan_whole": (0 if scanned is None else scanned["entries"]) == state.index.entries,
            "sampled": self._sampled(),
            "messages_per_s": self._rate(),
            "appended_per_s": appended / since_s if appended is not None and since_s else None,
        }

    def _appended(self, before: Before | None) -> tuple[int | None, float]:
        if before is None:
            return None, 0.0
        trimmed_to = Position(*self._state.record.last_position)
        appended = growth.appended_since(self._state.index, trimmed_to, before.end)
        return appended, (self._facts.at_ms - before.at_ms) / 1000

    def _sampled(self) -> bool:
        """Whether only a part was read of what somebody has not acknowledged."""
        first, index = unread_from(self._state), self._state.index
        scanned = self._scanned.topics.get(self._state.name)
        if first is None or scanned is None or scanned["entries"] >= index.entries:
            return False
        unread = index.rank_end - index.rank(*first) + 1
        return bool(scanned["entries"] < unread)

    def _rate(self) -> float | None:
        """None where the newest minutes were not read whole."""
        minutes = self._scanned.minutes.get(self._state.name, ())
        scanned = self._scanned.topics.get(self._state.name)
        if scanned is None or self._sampled():
            return None
        end_ms = self._facts.at_ms // MINUTE_MS * MINUTE_MS
        start_ms = end_ms - RATE_MINUTES * MINUTE_MS
        whole = scanned["entries"] == self._state.index.entries
        if not whole and all(row["number"] >= start_ms for row in minutes):
            return None  # what was read begins later
        messages: int = sum(
            row["messages"] for row in minutes if start_ms <= row["number"] < end_ms
        )
        return messages / (RATE_MINUTES * 60)

    def _subscription(self, each: Subscription) -> Row:
        state, acks, seen = self._state, each.acks, self._facts.seen
        index = state.index
        entries = None if acks is None else acks.backlog
        before = self._before.get((state.name, each.name))
        moved = growth.Progress(growth.Trend.UNKNOWN)
        if entries is not None:
            appended, _ = self._appended(before)
            moved = growth.progress(before, entries, appended, self._facts.at_ms)
        there = None if seen is None else seen.subscriptions.get(each.name)
        oldest, oldest_ms = each.oldest, each.oldest_ms
        return {
            **self._about(),
            "subscription": each.name,
            "error": each.cursor.error,
            "entries": entries,
            **self._messages(each.name, entries),
            "bytes": None if acks is None else acks.backlog_bytes_estimate,
            "bytes_exact": state.sizes_exact,
            "oldest": oldest_ms,
            "age_s": None if oldest_ms is None else max(0, self._facts.at_ms - oldest_ms) / 1000,
            "expires_in_s": self._expires_in_s(oldest_ms),
            "mark_ledger": None if acks is None else acks.mark_delete.ledger_id,
            "mark_entry": None if acks is None else acks.mark_delete.entry_id,
            "oldest_ledger": None if oldest is None else oldest.ledger_id,
            "oldest_entry": None if oldest is None else oldest.entry_id,
            "end_ledger": index.last_ledger,
            "end_entry": index.last_entry,
            "acked_beyond": None if acks is None else acks.holes_count,
            "acked_ranges": None if acks is None else acks.ranges_count,
            "partial_entries": None if acks is None else len(acks.batches),
            "trend": moved.trend.value,
            "since_s": moved.seconds,
            "published_per_s": moved.published_per_s,
            "consumed_per_s": moved.consumed_per_s,
            "growth_per_s": moved.growth_per_s,
            "drains_in_s": moved.drains_in_s,
            "asked": seen is not None,
            "type": "" if there is None else there.kind,
            "consumers": None if there is None else len(there.consumers),
            "unacked_messages": None if there is None else there.unacked_messages,
            "held_by": "" if there is None else holes.holders(there.consumers, None),
        }

    def _expires_in_s(self, oldest_ms: int | None) -> float | None:
        ttl_s = self._state.keeping.ttl_s
        if oldest_ms is None or not ttl_s:
            return None
        return ttl_s - max(0, self._facts.at_ms - oldest_ms) / 1000

    def _messages(self, subscription: str, entries: int | None) -> dict[str, Any]:
        found = self._scanned.unread.get((self._state.name, subscription))
        messages: int | None = None
        exact = False
        in_batches: int | None = None
        if entries == 0:
            messages, exact, in_batches = 0, True, 0
        elif found is not None and entries is not None:
            exact = found["entries"] == entries
            messages = found["messages"]
            in_batches = found["number"]
            if not exact:
                messages = round(messages * entries / found["entries"])
                in_batches = None
        return {
            "messages": messages,
            "messages_exact": exact,
            "bytes_scanned": 0 if found is None else found["bytes"],
            "acked_in_batches": in_batches,
        }

    def _holes(self, each: Subscription) -> list[Row]:
        if each.acks is None:
            return []
        seen = self._facts.seen
        there = None if seen is None else seen.subscriptions.get(each.name)
        held_by = "" if there is None else holes.holders(there.consumers, None)
        rows: list[Row] = []
        for hole in holes.holes(self._state.index, each.acks):
            if len(rows) == holes.HOLES_MAX:
                break
            rows.append(
                {
                    "topic": self._state.name,
                    "subscription": each.name,
                    "first_ledger": hole.first.ledger_id,
                    "first_entry": hole.first.entry_id,
                    "last_ledger": hole.last.ledger_id,
                    "last_entry": hole.last.entry_id,
                    "entries": hole.entries,
                    "held_by": held_by,
                }
            )
        return rows

    def _consumers(self) -> list[Row]:
        if self._facts.seen is None:
            return []
        return [
            {
                "topic": self._state.name,
                "subscription": name,
                "consumer": each.name,
                "address": each.address,
                "unacked_messages": each.unacked_messages,
                "available_permits": each.available_permits,
                "last_acked": each.last_acked_ms or None,
            }
            for name, subscription in self._facts.seen.subscriptions.items()
            for each in subscription.consumers
        ]

    def _what_if(self) -> list[Row]:
        rows: list[Row] = []
        for each in self._facts.freed:
            gone = self._state.index.infos[: each.ledgers]
            rows.append(
                {
                    "topic": self._state.name,
                    "scenario": each.scenario,
                    "expired": sorted(each.expired.items()),
                    "ledgers": each.ledgers,
                    "entries": each.entries,
                    "bytes": each.size_bytes,
                    "bytes_on_bookies": sum(
                        info.size_bytes * self._copies(info.ledger_id) for info in gone
                    ),
                    "bytes_cold": sum(
                        file.file_bytes
                        for info in gone
                        if (file := self._state.files.get(info.ledger_id)) is not None
                    ),
                }
            )
        return rows


def _copies(metadata: LedgerMetadata | None) -> int:
    """On bookies; 0 where the ledger has no record, so that bookies let go of it."""
    if metadata is None:
        return 0
    return min(metadata.write_quorum, len(metadata.ensembles[-1].bookies))

"""Builds the rows of all tables from gathered and scanned facts. Pure.

Backlog counts come from cursors and ledger lists, and are exact. Messages, keys, sizes and rates
come from scanned entries, and say whether that was all of them.
"""

from collections.abc import Iterable, Mapping

from magnetar.core.ids import Position
from magnetar_spark.jobs.backlog.analyse import holes
from magnetar_spark.jobs.backlog.analyse.growth import Before
from magnetar_spark.jobs.backlog.gather.gather import Gathered, TopicFacts
from magnetar_spark.jobs.backlog.scan import flows
from magnetar_spark.jobs.backlog.scan.sums import KeySkew, Scanned
from magnetar_spark.jobs.backlog.tables.tables import (
    FlowRow,
    KeyRow,
    KeySkewRow,
    RateRow,
    Rows,
    SizeRow,
    SubscriptionRow,
    TopicRow,
    UnreadKeyRow,
)
from magnetar_spark.jobs.backlog.tables.topic_rows import Earlier, TopicTables


def earlier(
    rows: Iterable[SubscriptionRow | TopicRow], at_ms: int
) -> dict[tuple[str, str], Before]:
    """The earlier run's state by topic and subscription ("" for a topic's row)."""
    return {
        (row.topic, row.subscription if isinstance(row, SubscriptionRow) else ""): Before(
            at_ms, row.entries, Position(row.end_ledger, row.end_entry)
        )
        for row in rows
        if row.entries is not None
    }


def rows_of(gathered: Gathered, scanned: Scanned, before: Earlier, before_topics: Earlier) -> Rows:
    """All tables. `before_topics` has the earlier ends of topics' logs, by topic and ""."""
    rows = Rows()
    for facts in gathered.topics:
        TopicTables(facts, scanned, before, before_topics).add_to(rows)
    by_name = {facts.state.name: facts for facts in gathered.topics}
    _add_scanned(rows, scanned, by_name)
    _add_skew(rows, scanned.skew)
    return rows


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="replace")


def _add_scanned(rows: Rows, scanned: Scanned, topics: Mapping[str, TopicFacts]) -> None:
    """Adds the rows that are based on scanned entries."""
    subscriptions = {(row.topic, row.subscription): row for row in rows.subscriptions}
    for total in scanned.keys:
        rows.keys.append(
            KeyRow(
                topic=total.topic,
                key=total.key,
                key_text=_text(total.key),
                messages=total.messages,
                bytes=total.bytes,
                share=total.messages / scanned.skew[total.topic].keyed_messages,
                rank=total.rank_messages,
            )
        )
    for total in scanned.unread_keys:
        seen = topics[total.topic].seen
        by_broker = None if seen is None else seen.subscriptions.get(total.subscription)
        held_by = ""
        if by_broker is not None:
            held_by = holes.holders(by_broker.consumers, total.key, sticky=by_broker.sticky)
        rows.unread_keys.append(
            UnreadKeyRow(
                topic=total.topic,
                subscription=total.subscription,
                key=total.key,
                key_text=_text(total.key),
                messages=total.messages,
                bytes=total.bytes,
                oldest=total.oldest_ms,
                ledger_id=total.ledger_id,
                entry_id=total.entry_id,
                rank_oldest=total.rank_oldest,
                rank_messages=total.rank_messages,
                held_by=held_by,
                sampled=not subscriptions[total.topic, total.subscription].messages_exact,
            )
        )
    _add_histograms(rows, scanned)
    whole = {row.topic: row.scan_whole for row in rows.topics}
    for flow in flows.merged(scanned.flows):
        rows.flows.append(_flow(flow, topics[flow.topic], whole=whole[flow.topic]))


def _add_histograms(rows: Rows, scanned: Scanned) -> None:
    for total in sorted(scanned.sizes, key=lambda total: (total.topic, total.number)):
        rows.sizes.append(
            SizeRow(
                topic=total.topic,
                below_bytes=1 << total.number,
                messages=total.messages,
                bytes=total.bytes,
            )
        )
    for topic in sorted(scanned.minutes):
        newest = sorted(scanned.minutes[topic], key=lambda total: -total.number)
        rows.rates += [
            RateRow(topic=topic, minute=total.number, messages=total.messages, bytes=total.bytes)
            for total in newest
        ]


def _flow(flow: flows.Flow, facts: TopicFacts, *, whole: bool) -> FlowRow:
    topic = facts.state.topic
    hours = (flow.newest_ms - flow.oldest_ms) / 3_600_000
    local = flow.origin.rpartition("/")[2]
    return FlowRow(
        topic=flow.topic,
        kind=flows.kind_of(topic.base.local).value,
        origin=flow.origin,
        subscription=flows.subscription_of(topic.base.local, local),
        messages=flow.messages,
        bytes=flow.size_bytes,
        first=flow.oldest_ms,
        last=flow.newest_ms,
        per_hour=flow.messages / hours if hours else None,
        redeliveries_mean=flow.redeliveries_mean,
        redeliveries_max=flow.redeliveries_max,
        whole=whole,
    )


def _add_skew(rows: Rows, skews: Mapping[str, KeySkew]) -> None:
    """Adds the table of key skew, which compares the partitions of a topic."""
    by_parent: dict[str, list[TopicRow]] = {}
    for row in rows.topics:
        by_parent.setdefault(row.parent, []).append(row)
    for parent, members in by_parent.items():
        mean = sum(row.entries for row in members) / len(members)
        for row in members:
            skew = skews.get(row.topic, KeySkew(0, 0, {}))
            keyed = skew.keyed_messages
            shares = {top: messages / keyed for top, messages in skew.top.items()} if keyed else {}
            rows.key_skew.append(
                KeySkewRow(
                    topic=row.topic,
                    parent=parent,
                    partition=row.partition,
                    messages=row.scanned_messages,
                    keyed_messages=keyed,
                    keys=skew.keys,
                    top1_share=shares.get(1),
                    top10_share=shares.get(10),
                    top100_share=shares.get(100),
                    partition_ratio=row.entries / mean if mean and row.partition >= 0 else None,
                )
            )

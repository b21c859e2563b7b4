"""Rows of the tables, made of what was gathered and scanned. Pure.

Counts of backlogs come from cursors and ledger lists, and are exact; messages, keys, sizes and
rates from what was read, and say whether that was all.
"""

from collections.abc import Mapping

from magnetar.core.ids import Position
from magnetar_spark.jobs.backlog import flows, holes
from magnetar_spark.jobs.backlog.gather import Gathered, TopicFacts
from magnetar_spark.jobs.backlog.growth import Before
from magnetar_spark.jobs.backlog.sums import TOPS, Row, Scanned
from magnetar_spark.jobs.backlog.tables import TABLES, Rows
from magnetar_spark.jobs.backlog.topic_rows import Earlier, TopicRows


def earlier(rows: list[Row], at_ms: int) -> dict[tuple[str, str], Before]:
    """What the run before saw, from its table of subscriptions, or of topics (then under "")."""
    return {
        (row["topic"], row.get("subscription", "")): Before(
            at_ms, row["entries"], Position(row["end_ledger"], row["end_entry"])
        )
        for row in rows
        if row["entries"] is not None
    }


def rows_of(gathered: Gathered, scanned: Scanned, before: Earlier, before_topics: Earlier) -> Rows:
    """Every table. `before_topics` has the ends of topics' logs, under the subscription ""."""
    rows: Rows = {name: [] for name in TABLES}
    for facts in gathered.topics:
        TopicRows(facts, scanned, before, before_topics).add_to(rows)
    by_name = {facts.state.name: facts for facts in gathered.topics}
    _add_scanned(rows, scanned, by_name)
    _add_skew(rows, scanned.skew)
    return rows


def _text(key: bytes | None) -> str | None:
    return None if key is None else bytes(key).decode(errors="replace")


def _add_scanned(rows: Rows, scanned: Scanned, topics: Mapping[str, TopicFacts]) -> None:
    """The rows of what was read."""
    subscriptions = {(row["topic"], row["subscription"]): row for row in rows["subscriptions"]}
    keyed = {name: each["keyed_messages"] for name, each in scanned.skew.items()}
    for row in scanned.keys:
        rows["keys"].append(
            {
                "topic": row["topic"],
                "key": row["key"],
                "key_text": _text(row["key"]),
                "messages": row["messages"],
                "bytes": row["bytes"],
                "share": row["messages"] / keyed[row["topic"]],
                "rank": row["rank_messages"],
            }
        )
    for row in scanned.unread_keys:
        facts = topics[row["topic"]]
        there = None
        if facts.seen is not None:
            there = facts.seen.subscriptions.get(row["subscription"])
        key = None if row["key"] is None else bytes(row["key"])
        found = subscriptions[row["topic"], row["subscription"]]
        rows["unread_keys"].append(
            {
                "topic": row["topic"],
                "subscription": row["subscription"],
                "key": key,
                "key_text": _text(key),
                "messages": row["messages"],
                "bytes": row["bytes"],
                "oldest": row["oldest_ms"],
                "ledger_id": row["ledger_id"],
                "entry_id": row["entry_id"],
                "rank_oldest": row["rank_oldest"],
                "rank_messages": row["rank_messages"],
                "held_by": ""
                if there is None
                else holes.holders(there.consumers, key, sticky=there.sticky),
                "sampled": not found["messages_exact"],
            }
        )
    _add_histograms(rows, scanned)
    whole = {row["topic"]: row["scan_whole"] for row in rows["topics"]}
    for row in flows.merged(scanned.flows):
        rows["flows"].append(_flow(row, topics[row["topic"]], whole=whole[row["topic"]]))


def _add_histograms(rows: Rows, scanned: Scanned) -> None:
    for row in sorted(scanned.sizes, key=lambda row: (row["topic"], row["number"])):
        rows["sizes"].append(
            {
                "topic": row["topic"],
                "below_bytes": 1 << row["number"],
                "messages": row["messages"],
                "bytes": row["bytes"],
            }
        )
    for topic in sorted(scanned.minutes):
        newest = sorted(scanned.minutes[topic], key=lambda row: -row["number"])
        rows["rates"] += [
            {
                "topic": topic,
                "minute": row["number"],
                "messages": row["messages"],
                "bytes": row["bytes"],
            }
            for row in newest
        ]


def _flow(row: Row, facts: TopicFacts, *, whole: bool) -> Row:
    topic = facts.state.topic
    hours = (row["newest_ms"] - row["oldest_ms"]) / 3_600_000
    local = row["origin"].rpartition("/")[2]
    return {
        "topic": row["topic"],
        "kind": flows.kind_of(topic.base.local).value,
        "origin": row["origin"],
        "subscription": flows.subscription_of(topic.base.local, local),
        "messages": row["messages"],
        "bytes": row["bytes"],
        "first": row["oldest_ms"],
        "last": row["newest_ms"],
        "per_hour": row["messages"] / hours if hours else None,
        "redeliveries_mean": row["redeliveries_mean"],
        "redeliveries_max": row["redeliveries_max"],
        "whole": whole,
    }


def _add_skew(rows: Rows, skew: Mapping[str, Row]) -> None:
    """The table of skew, which looks across the partitions of a topic."""
    by_parent: dict[str, list[Row]] = {}
    for row in rows["topics"]:
        by_parent.setdefault(row["parent"], []).append(row)
    for parent, members in by_parent.items():
        mean = sum(row["entries"] for row in members) / len(members)
        for row in members:
            found = skew.get(row["topic"], {})
            keyed = found.get("keyed_messages", 0)
            rows["key_skew"].append(
                {
                    "topic": row["topic"],
                    "parent": parent,
                    "partition": row["partition"],
                    "messages": row["scanned_messages"],
                    "keyed_messages": keyed,
                    "keys": found.get("keys", 0),
                    **{
                        f"top{top}_share": found[f"top{top}"] / keyed if keyed else None
                        for top in TOPS
                    },
                    "partition_ratio": row["entries"] / mean
                    if mean and row["partition"] >= 0
                    else None,
                }
            )

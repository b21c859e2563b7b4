"""Writes `report.html`: findings first, then the sections. Lists show the largest rows. Pure."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from magnetar_spark.jobs.backlog.analyse.attention import Finding
from magnetar_spark.jobs.backlog.analyse.published import total
from magnetar_spark.jobs.backlog.report import parts, scanned
from magnetar_spark.jobs.backlog.report.numbers import (
    bytes_text,
    count_text,
    duration_text,
    short_topic,
    time_text,
)
from magnetar_spark.jobs.backlog.report.page import document, section, tile
from magnetar_spark.jobs.backlog.tables.tables import Rows

TITLE: Final = "Backlog report"
OPEN_FINDINGS: Final = 8
"""Findings shown at once; the others open with a click."""

_PARTS: Final[Sequence[Callable[[Rows, int], str]]] = (
    parts.backlogs,
    parts.movement,
    parts.storage,
    parts.what_if,
    scanned.unread_keys,
    parts.ack_holes,
    scanned.hot_keys,
    scanned.flows,
    scanned.rates,
    scanned.rate_histogram,
    scanned.sizes,
)


def html(
    rows: Rows,
    findings: Sequence[Finding],
    notes: Sequence[str],
    now_ms: int,
    before_ms: int | None,
    top: int,
) -> str:
    """The whole document. Lists and charts have `top` rows."""
    compared = (
        "The first run in this output: growth and time to drain are not known yet."
        if before_ms is None
        else f"Compared with the run of {time_text(before_ms)}."
    )
    head = (
        f'<h1>{TITLE}</h1><p class="soft">As of {time_text(now_ms)}. {escape(compared)}</p>'
        f'<div class="tiles">{_tiles(rows)}</div>'
    )
    body = "".join(part(rows, top) for part in _PARTS)
    return document(TITLE, head + _attention(findings, top) + body + _notes(rows, notes))


def _tiles(rows: Rows) -> str:
    subscriptions, topics = rows.subscriptions, rows.topics
    exact = all(row.messages_exact for row in subscriptions)
    messages = total([row.messages for row in subscriptions if not row.error])
    bytes_exact = all(row.bytes_exact for row in subscriptions)
    size = sum(row.bytes or 0 for row in subscriptions)
    oldest = max((row.age_s for row in subscriptions if row.age_s is not None), default=None)
    return "".join(
        (
            tile(count_text(sum(row.entries or 0 for row in subscriptions)), "entries unread"),
            tile(parts.approximately(count_text(messages), exact), "messages unread"),
            tile(parts.approximately(bytes_text(size), bytes_exact), "bytes unread"),
            tile(duration_text(oldest), "oldest unread message"),
            tile(bytes_text(sum(row.bytes_on_bookies for row in topics)), "on bookies"),
            tile(count_text(len(topics)), "topics and partitions"),
            tile(count_text(len(subscriptions)), "subscriptions"),
        )
    )


def _attention(findings: Sequence[Finding], top: int) -> str:
    if not findings:
        return section("What needs attention", "Nothing.")
    items = [
        f'<li class="{finding.severity.name.lower()}">'
        f'<span class="tag">{escape(finding.kind)}</span> '
        f'<span class="name">{escape(_name(finding))}</span><br/>{escape(finding.text)}'
        f'<br/><span class="soft">{escape(finding.advice)}</span></li>'
        for finding in findings
    ]
    first = min(top, OPEN_FINDINGS)
    text = f"{len(findings)} findings, the worst first." if len(findings) > 1 else "One finding."
    parts = [f'<ul class="findings">{"".join(items[:first])}</ul>']
    if len(findings) > first:
        parts.append(
            f"<details><summary>{len(findings) - first} more</summary>"
            f'<ul class="findings">{"".join(items[first:])}</ul></details>'
        )
    return section("What needs attention", text, *parts)


def _name(finding: Finding) -> str:
    name = short_topic(finding.topic)
    return f"{name} · {finding.subscription}" if finding.subscription else name


def _notes(rows: Rows, notes: Sequence[str]) -> str:
    topics = rows.topics
    entries = sum(row.entries for row in topics)
    read_entries = sum(row.scanned_entries for row in topics)
    estimated = " (≈ marks what is estimated from them)" if read_entries < entries else ""
    read = f"The rest is made of the {count_text(read_entries)} of {count_text(entries)} entries "
    read += f"that were read{estimated}."
    sentences = [
        *notes,
        "Entries, bytes and ages of backlogs come from cursors and ledger lists.",
        read,
        "An entry is one message or a batch. Brokers count backlogs in entries (msgBacklog).",
    ]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return section("How to read this", "", f"<ul>{items}</ul>")

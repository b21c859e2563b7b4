"""The sections of the backlog report: every cell, bar and tooltip."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from tests.spark.test_backlog_report import blank, nothing, subscription, topic

from magnetar_spark.jobs.backlog.report import parts as report_parts
from magnetar_spark.jobs.backlog.report import scanned as report_scanned
from magnetar_spark.jobs.backlog.tables.tables import Rows

A, B, C = (f"persistent://acme/shop/{name}" for name in "abc")
KIB = 1024
AT_MS = 1_700_000_000_000
AT = "2023-11-14 22:13:20 UTC"


def parsed(markup: str) -> ET.Element:
    return ET.fromstring(f"<r>{markup}</r>")  # noqa: S314  # our own


def text_of(element: ET.Element) -> str:
    return "".join(element.itertext())


def cells(markup: str) -> list[list[str]]:
    """Returns the rows of the section's table, the headers first."""
    return [
        [text_of(cell) for cell in line if cell.tag in ("td", "th")]
        for line in parsed(markup).iter("tr")
    ]


def labels(markup: str) -> list[tuple[str, str]]:
    """Returns each bar's label and value of a bar chart."""
    texts = [each for each in parsed(markup).iter("text") if each.get("class") != "tick"]
    left = [each.text or "" for each in texts if each.get("class") == "label"]
    right = [each.text or "" for each in texts if each.get("class") == "value"]
    return list(zip(left, right, strict=True))


def tips(markup: str) -> list[tuple[str, str]]:
    """Returns each segment's series and tooltip."""
    return [
        (each.get("class") or "", text_of(each))
        for each in parsed(markup).iter("rect")
        if each.find("title") is not None
    ]


def below(markup: str) -> list[str]:
    """Returns the labels below columns."""
    texts = parsed(markup).iter("text")
    return [text_of(each) for each in texts if each.get("text-anchor") == "middle"]


def legend_of(markup: str) -> list[str]:
    return [text_of(each) for each in parsed(markup).iter("span") if each.get("class") == "key"]


def of(**tables: list[Any]) -> Rows:
    return Rows(**tables)


def test_backlogs_are_shown_by_bytes_and_what_is_not_known_as_such() -> None:
    rows = of(
        subscriptions=[
            subscription("small", A, entries=1, messages=1, bytes=KIB),
            subscription(
                "large",
                B,
                entries=1234,
                messages=5000,
                messages_exact=False,
                bytes=3 * KIB,
                bytes_exact=False,
                age_s=65.0,
                unacked_messages=7,
                asked=True,
                type="Shared",
                held_by="c1",
            ),
            subscription("middle", C, entries=2, messages=None, bytes=2 * KIB),
            subscription("none", C, entries=0, bytes=0),
        ]
    )
    shown = report_parts.backlogs(rows, 2)
    assert cells(shown) == [
        ["Topic", "Subscription", "Entries", "Messages", "Bytes", "Oldest", "Unacked", "Type",
         "Held by"],
        ["acme/shop/b", "large", "1,234", "≈ 5,000", "≈ 3.0 KiB", "1 min 5 s", "7", "Shared", "c1"],
        ["acme/shop/c", "middle", "2", "?", "2.0 KiB", "?", "not asked", "?", ""],
    ]  # fmt: skip
    assert labels(shown) == [
        ("acme/shop/b · large", "3.0 KiB · 1,234 entries"),
        ("acme/shop/c · middle", "2.0 KiB · 2 entries"),
        ("1 others", "1.0 KiB"),
    ]
    assert tips(shown) == [
        ("s0", "acme/shop/b · large: 3.0 KiB, 1,234 entries"),
        ("s0", "acme/shop/c · middle: 2.0 KiB, 2 entries"),
        ("other", "1.0 KiB"),
    ]
    assert len(labels(report_parts.backlogs(rows, 3))) == 3, "there are no others"
    empty = report_parts.backlogs(of(subscriptions=[subscription("none", C)]), 2)
    assert "Every subscription has acknowledged everything." in text_of(parsed(empty))


def moving(name: str, trend: str, growth: float, **fields: Any) -> Any:
    more = {"entries": 5, "published_per_s": 3.0, "consumed_per_s": 3.0 - growth, **fields}
    return subscription(name, A, trend=trend, growth_per_s=growth, **more)


def test_growth_is_shown_the_fastest_first() -> None:
    rows = of(
        subscriptions=[
            moving("drains", "draining", -2.0, drains_in_s=90.0),
            moving("steady", "steady", 0.0),
            moving("grows", "growing", 1.5),
            moving("empty", "empty", 0.0, entries=0, drains_in_s=0.0),
            moving("rewound", "reset", 0.5, consumed_per_s=None),
            moving("stalled", "stalled", 3.0),
            subscription("new", A, entries=9),
        ]
    )
    shown = report_parts.movement(rows, 10)
    assert cells(shown) == [
        ["Topic", "Subscription", "Trend", "Published", "Consumed", "Empty in"],
        ["acme/shop/a", "stalled", "stalled", "3.0/s", "0.0/s", "never"],
        ["acme/shop/a", "grows", "growing", "3.0/s", "1.5/s", "never"],
        ["acme/shop/a", "rewound", "reset", "3.0/s", "?", "?"],
        ["acme/shop/a", "steady", "steady", "3.0/s", "3.0/s", "never"],
        ["acme/shop/a", "drains", "draining", "3.0/s", "5.0/s", "1 min 30 s"],
    ]
    assert labels(shown) == [
        ("acme/shop/a · stalled", "+3.0/s"),
        ("acme/shop/a · grows", "+1.5/s"),
        ("acme/shop/a · rewound", "+0.5/s"),
        ("acme/shop/a · drains", "-2.0/s"),
    ]
    assert [css for css, _ in tips(shown)] == ["s4", "s4", "s4", "s2"]
    assert tips(shown)[3][1] == "acme/shop/a · drains: -2.00 entries/s"
    assert legend_of(shown) == ["grows", "shrinks"]
    # If only a few are shown, they are those that change most.
    few = report_parts.movement(rows, 2)
    assert [name for name, _ in labels(few)] == ["acme/shop/a · stalled", "acme/shop/a · drains"]
    assert [line[1] for line in cells(few)[1:]] == ["stalled", "grows"]
    still = report_parts.movement(of(subscriptions=[moving("steady", "steady", 0.0)]), 2)
    assert (labels(still), legend_of(still), len(cells(still))) == ([], [], 2)
    unknown = report_parts.movement(of(subscriptions=[subscription("new", A, entries=9)]), 2)
    assert "there is no earlier run to compare" in text_of(parsed(unknown))


def held(name: str, cause: str, size: int, who: str = "") -> Any:
    return blank("storage", topic=name, cause=cause, bytes_on_bookies=size, subscription=who)


def test_bytes_are_shown_by_topic_and_cause() -> None:
    rows = of(
        topics=[topic(A, bytes_cold=5 * KIB), topic(B, bytes_cold=0), topic(C, bytes_cold=0)],
        storage=[
            held(A, "open", KIB),
            held(B, "subscription", 2 * KIB, "s2"),
            held(B, "subscription", 2 * KIB, "s1"),
            held(B, "open", KIB),
            held(C, "subscription", 512, "s3"),
            held(C, "cold", 0),
        ],
    )
    shown = report_parts.storage(rows, 1)
    assert cells(shown) == [
        ["Topic", "slowest subscription", "open ledger", "object store"],
        ["acme/shop/b", "4.0 KiB", "1.0 KiB", "-"],
    ]
    assert labels(shown) == [("acme/shop/b", "5.0 KiB"), ("2 others", "1.5 KiB")]
    assert tips(shown) == [
        ("s4", "acme/shop/b: 4.0 KiB, slowest subscription (s1, s2)"),
        ("s2", "acme/shop/b: 1.0 KiB, open ledger"),
        ("s4", "2 others: 512 B, slowest subscription"),
        ("s2", "2 others: 1.0 KiB, open ledger"),
    ]
    assert legend_of(shown) == ["slowest subscription", "open ledger"]
    assert "All copies, by what keeps them. 5.0 KiB more are in the object store." in text_of(
        parsed(shown)
    )
    whole = report_parts.storage(rows, 3)
    assert [line[0] for line in cells(whole)[1:]] == ["acme/shop/b", "acme/shop/a", "acme/shop/c"]
    assert [line[-1] for line in cells(whole)[1:]] == ["-", "5.0 KiB", "-"]
    assert len(labels(whole)) == 3
    rows.topics = [topic(A), topic(B), topic(C)]
    warm = report_parts.storage(rows, 3)
    assert cells(warm)[0] == ["Topic", "slowest subscription", "open ledger"]
    assert "more are in the object store" not in text_of(parsed(warm))
    nowhere = report_parts.storage(of(storage=[held(A, "cold", 0)]), 3)
    assert "None." in text_of(parsed(nowhere))


def freed(name: str, scenario: str, **fields: Any) -> Any:
    numbers = {"ledgers": 1, "bytes_on_bookies": KIB, "bytes_cold": 0, "expired": []}
    return blank("what_if", topic=name, scenario=scenario, **{**numbers, **fields})


def test_what_limits_would_free_is_summed_over_topics() -> None:
    rows = of(
        what_if=[
            freed(A, "now"),
            freed(A, "ttl=1h", ledgers=2, bytes_cold=KIB, expired=[("s", 3), ("t", 4)]),
            freed(B, "now", bytes_on_bookies=2 * KIB),
            freed(B, "ttl=1h", expired=[("s", 1)]),
        ]
    )
    shown = report_parts.what_if(rows, 9)
    assert cells(shown) == [
        ["Limits", "Bytes on bookies", "Object store", "Ledgers", "Entries lost unread"],
        ["limits in force", "3.0 KiB", "-", "2", "0"],
        ["ttl=1h", "2.0 KiB", "1.0 KiB", "3", "8"],
    ]
    assert labels(shown) == [("limits in force", "3.0 KiB"), ("ttl=1h", "2.0 KiB")]
    assert tips(shown) == [
        ("s0", "now: 3.0 KiB in 2 ledgers"),
        ("s0", "ttl=1h: 2.0 KiB in 3 ledgers"),
    ]
    few = report_parts.what_if(rows, 1)
    assert (len(cells(few)), len(labels(few))) == (2, 1)


def test_holes_are_shown_with_the_oldest_of_them() -> None:
    some = {"acked_ranges": 2, "acked_beyond": 5, "partial_entries": 1}
    rows = of(
        subscriptions=[
            subscription("few", A, **some),
            subscription("many", A, **{**some, "acked_beyond": 9}, asked=True, held_by="c1"),
            subscription("none", A),
        ],
        ack_holes=[
            blank("ack_holes", topic=A, subscription="many", first_ledger=3, first_entry=n,
                  entries=1000 + n)
            for n in (4, 5)
        ],
    )  # fmt: skip
    assert cells(report_parts.ack_holes(rows, 9)) == [
        ["Subscription", "Acked runs", "Entries in them", "Partly acked batches", "Oldest hole",
         "Held by"],
        ["acme/shop/a · many", "2", "9", "1", "3:4, 1,004 entries", "c1"],
        ["acme/shop/a · few", "2", "5", "1", "", "no broker was asked"],
    ]  # fmt: skip
    assert len(cells(report_parts.ack_holes(rows, 1))) == 2
    nobody = report_parts.ack_holes(of(subscriptions=[subscription("none", A)]), 9)
    assert "nothing is acknowledged out of order" in text_of(parsed(nobody))


def unread(key: str | None, oldest: int | None, rank: int, **fields: Any) -> Any:
    more = {"subscription": "s", "messages": 5, "ledger_id": 3, "entry_id": 4, "held_by": "c"}
    return blank(
        "unread_keys", topic=A, key_text=key, oldest=oldest, rank_oldest=rank,
        **{**more, "sampled": False, **fields},
    )  # fmt: skip


def test_the_oldest_unread_keys_come_first() -> None:
    rows = of(
        unread_keys=[
            unread("late", AT_MS + 1000, 1),
            unread(None, AT_MS, 2, sampled=True),
            unread("never", None, 1),
            unread("third", AT_MS - 1, 3),
        ]
    )
    assert cells(report_scanned.unread_keys(rows, 2)) == [
        ["Key", "Subscription", "Messages", "Oldest published", "At", "Held by"],
        ["(no key)", "acme/shop/a · s", "≈ 5", AT, "3:4", "c"],
        ["late", "acme/shop/a · s", "5", AT.replace("20 UTC", "21 UTC"), "3:4", "c"],
    ]
    assert report_scanned.unread_keys(of(unread_keys=[unread("x", 1, 3)]), 2) == ""


def test_hot_keys_are_shown_with_their_share() -> None:
    def key(name: str, count: int) -> Any:
        share = count / 10
        return blank("keys", topic=A, key_text=name, messages=count, bytes=KIB, share=share)

    def skew(name: str, share: float, ratio: float | None, keys: int = 3) -> Any:
        shares = {"top1_share": share, "top10_share": 0.5, "top100_share": 1.0}
        more = {"keyed_messages": 10, "keys": keys, "partition_ratio": ratio}
        return blank("key_skew", topic=name, **shares, **more)

    rows = of(
        topics=[topic(A, sampled=True), topic(B)],
        keys=[key("cold", 1), key("hot", 4), key("warm", 2)],
        key_skew=[skew(A, 0.25, None), skew(B, 0.5, 1.25), skew(C, 0.9, None, keys=0)],
    )
    shown = report_scanned.hot_keys(rows, 2)
    assert labels(shown) == [
        ("hot · acme/shop/a", "4 · 40.0%"),
        ("warm · acme/shop/a", "2 · 20.0%"),
    ]
    assert tips(shown)[0] == ("s3", "hot in acme/shop/a: 4 messages, 1.0 KiB")
    assert cells(shown) == [
        ["Topic or partition", "Keyed messages", "Keys", "Top key", "Top 10", "Top 100",
         "By mean partition"],
        ["acme/shop/b", "10", "3", "50.0%", "50.0%", "100.0%", "1.25"],
        ["acme/shop/a", "10", "3", "25.0%", "50.0%", "100.0%", "-"],
    ]  # fmt: skip
    assert "Of acme/shop/a a sample was read: counts are the sample's." in text_of(parsed(shown))
    rows.topics = [topic(A, sampled=True), topic(B, sampled=True)]
    assert "Of 2 topics a sample was read" in text_of(parsed(report_scanned.hot_keys(rows, 2)))
    rows.topics = [topic(A)]
    assert "sample" not in text_of(parsed(report_scanned.hot_keys(rows, 2)))
    assert report_scanned.hot_keys(of(key_skew=rows.key_skew), 2) == ""


def test_dead_letters_are_shown_with_where_they_were_sent_first() -> None:
    def flow(name: str, count: int, **fields: Any) -> Any:
        more = {"kind": "dead-letter", "origin": B, "subscription": "", "last": AT_MS}
        means = {"redeliveries_mean": 2.25, "redeliveries_max": 5, "whole": True}
        return blank("flows", topic=name, messages=count, **{**more, **means, **fields})

    rows = of(
        flows=[flow(A, 3, whole=False, per_hour=12.0), flow(C, 7, subscription="s"), flow(B, 1)]
    )
    assert cells(report_scanned.flows(rows, 2)) == [
        ["Kind", "In", "First sent to", "Given up by", "Messages", "Rate",
         "Redeliveries mean / most", "Last"],
        ["dead-letter", "acme/shop/c", "acme/shop/b", "s", "7", "?", "2.2 / 5", AT],
        ["dead-letter", "acme/shop/a", "acme/shop/b", "?", "≈ 3", "12/h", "2.2 / 5", AT],
    ]  # fmt: skip
    assert "None in what was read." in text_of(parsed(report_scanned.flows(nothing(), 2)))


def minute(name: str, at: int, count: int) -> Any:
    return blank("rates", topic=name, minute=AT_MS + at * 60_000, messages=count, bytes=count)


def test_messages_over_time_are_in_columns_of_whole_minutes() -> None:
    rows = of(rates=[minute(A, 0, 1), minute(B, 0, 5), minute(A, 2, 3)])
    shown = report_scanned.rates(rows, 0)
    assert tips(shown) == [
        ("s0", f"{AT}, acme/shop/b: 5 messages"),
        ("s1", f"{AT}, acme/shop/a: 1 messages"),
        ("s1", f"{AT.replace(':13:', ':15:')}, acme/shop/a: 3 messages"),
    ]
    assert "Published in each minute (UTC)" in text_of(parsed(shown))
    assert legend_of(shown) == ["acme/shop/b", "acme/shop/a"]
    assert below(shown) == ["14. 22:13", "14. 22:14", "14. 22:15"]
    assert report_scanned.rates(nothing(), 0) == ""


@pytest.mark.parametrize(
    ("last", "each"), [(119, "minute"), (120, "2 minutes"), (240, "3 minutes")]
)
def test_of_a_long_time_several_minutes_share_a_column(last: int, each: str) -> None:
    rows = of(rates=[minute(A, 0, 1), minute(A, 1, 2), minute(A, last, 4)])
    shown = report_scanned.rates(rows, 0)
    assert f"Published in each {each} (UTC)" in text_of(parsed(shown))
    counts = [int(tip.rsplit(" ", 2)[1]) for _, tip in tips(shown)]
    assert counts == ([1, 2, 4] if each == "minute" else [3, 4])


def test_of_many_topics_the_busiest_have_a_colour_of_their_own() -> None:
    names = [f"persistent://acme/shop/t{n}" for n in range(report_scanned.RATE_SERIES + 2)]
    rows = of(rates=[minute(name, 0, 10 + n) for n, name in enumerate(names)])
    shown = report_scanned.rates(rows, 0)
    assert [css for css, _ in tips(shown)] == [*(f"s{n}" for n in range(6)), "other"]
    assert tips(shown)[-1][1] == f"{AT}, others: 21 messages"
    assert legend_of(shown)[-1] == "others"
    assert len(legend_of(shown)) == 7


def test_sizes_are_shown_without_a_gap() -> None:
    def sized(name: str, below: int, count: int) -> Any:
        return blank("sizes", topic=name, below_bytes=below, messages=count, bytes=count * KIB)

    rows = of(sizes=[sized(A, 256, 2), sized(B, 256, 1), sized(A, 1024, 4)])
    shown = report_scanned.sizes(rows, 0)
    assert tips(shown) == [
        ("s5", "below 256 B: 3 messages, 3.0 KiB"),
        ("s5", "below 1.0 KiB: 4 messages, 4.0 KiB"),
    ]
    assert below(shown) == ["< 256 B", "< 512 B", "< 1.0 KiB"]
    assert report_scanned.sizes(nothing(), 0) == report_scanned.rate_histogram(nothing(), 0) == ""

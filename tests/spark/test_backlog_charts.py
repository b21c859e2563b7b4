"""The page, the charts and the number formats of a backlog report."""

import pytest
from tests.spark.test_backlog_page import AT, AT_MS, KIB, A, B, below, of, parsed, text_of
from tests.spark.test_backlog_report import subscription, topic

from magnetar_spark.jobs.backlog.analyse.attention import Finding, Severity
from magnetar_spark.jobs.backlog.report import charts, report
from magnetar_spark.jobs.backlog.report.charts import Bar, Segment
from magnetar_spark.jobs.backlog.report.numbers import (
    bytes_text,
    count_text,
    duration_text,
    rate_text,
    short_topic,
    time_text,
)


def test_tiles_are_sums_of_what_is_known() -> None:
    rows = of(
        topics=[topic(A, bytes_on_bookies=KIB), topic(B, bytes_on_bookies=2 * KIB)],
        subscriptions=[
            subscription("a", A, entries=3, messages=4, bytes=KIB, age_s=5.0),
            subscription("b", A, entries=None, messages=None, bytes=None, error="gone", age_s=None),
            subscription("c", A, entries=2, messages=2, bytes=KIB, age_s=65.0),
        ],
    )

    def tiles() -> list[str]:
        whole = parsed(report._tiles(rows))
        return [text_of(each) for each in whole if each.get("class") == "tile"]

    assert tiles() == [
        "5entries unread",
        "6messages unread",
        "2.0 KiBbytes unread",
        "1 min 5 soldest unread message",
        "3.0 KiBon bookies",
        "2topics and partitions",
        "3subscriptions",
    ]
    rows.subscriptions[0].messages_exact = rows.subscriptions[0].bytes_exact = False
    assert tiles()[1:3] == ["≈ 6messages unread", "≈ 2.0 KiBbytes unread"]


def found_of(count: int) -> list[Finding]:
    return [
        Finding(Severity.WARNING, f"kind{n}", A, "s" if n else "", f"text{n}", f"advice{n}", 1.0)
        for n in range(count)
    ]


def items(markup: str) -> list[str]:
    return [text_of(each) for each in parsed(markup).iter("li")]


def test_findings_beyond_the_first_open_with_a_click() -> None:
    one = report._attention(found_of(1), 20)
    assert items(one) == ["kind0 acme/shop/atext0advice0"]
    assert "One finding." in text_of(parsed(one))
    assert [each.get("class") for each in parsed(one).iter("li")] == ["warning"]
    nine = report._attention(found_of(9), 20)
    (more,) = parsed(nine).iter("details")
    assert [text_of(each) for each in more.iter("li")] == ["kind8 acme/shop/a · stext8advice8"]
    assert text_of(next(more.iter("summary"))) == "1 more"
    assert "9 findings, the worst first." in text_of(parsed(nine))
    assert list(parsed(report._attention(found_of(8), 20)).iter("details")) == []
    two = report._attention(found_of(3), 2)
    assert len(list(next(parsed(two).iter("details")).iter("li"))) == 1
    assert "Nothing." in text_of(parsed(report._attention([], 2)))


def test_the_page_says_when_it_is_of_and_what_was_read() -> None:
    rows = of(topics=[topic(A, entries=10, scanned_entries=10), topic(B, entries=5)])
    page = report.html(rows, [], ["A note."], AT_MS, AT_MS - 1000, 5)
    assert f"As of {AT}. Compared with the run of {AT.replace('20 UTC', '19 UTC')}." in page
    assert "The first run in this output" in report.html(rows, [], [], AT_MS, None, 5)
    assert items(report._notes(rows, ["A note."]))[0] == "A note."
    assert "20 of 15 entries that were read." in report._notes(rows, [])
    rows.topics[1].scanned_entries = 4
    assert "14 of 15 entries that were read (≈ marks what is estimated" in report._notes(rows, [])


def rects(markup: str) -> list[dict[str, float]]:
    return [
        {name: float(each.get(name) or 0) for name in ("x", "y", "width", "height")}
        for each in parsed(markup).iter("rect")
    ]


def test_bars_are_as_long_as_their_values_and_lie_side_by_side() -> None:
    bars = [
        Bar("one", "1", (Segment("s0", 60, "a"), Segment("s1", 40, "b"))),
        Bar("two", "2", (Segment("s0", 50, "c"), Segment("s1", 0, "none"))),
        Bar("empty", "0"),
    ]
    found = rects(charts.rows_chart(bars, "title"))
    room = charts.WIDTH - charts.LABEL_WIDTH - charts.VALUE_WIDTH
    assert [each["width"] for each in found] == [0.6 * room - 1, 0.4 * room - 1, 0.5 * room - 1]
    start = charts.LABEL_WIDTH + 1
    assert [each["x"] for each in found] == [start, start + 0.6 * room, start]
    assert {each["height"] for each in found} == {charts.BAR_HEIGHT}
    assert [each["y"] for each in found] == [9.5, 9.5, 9.5 + charts.ROW_HEIGHT]
    whole = parsed(charts.rows_chart(bars, "title"))
    values = [each for each in whole.iter("text") if each.get("class") == "value"]
    ends = [start + room, start + 0.5 * room, start]
    assert [float(each.get("x") or 0) for each in values] == [end + 7 for end in ends]
    assert next(whole.iter("svg")).get("viewBox") == f"0 0 {charts.WIDTH} {3 * 26 + 8}"
    assert rects(charts.rows_chart([], "title")) == []
    (tiny,) = rects(charts.rows_chart([Bar("a", "", (Segment("s0", 1, ""),))] * 1, "t"))
    assert tiny["width"] == room - 1
    small = rects(
        charts.rows_chart([Bar("a", "", (Segment("s0", 1, ""), Segment("s1", 1e6, "")))], "t")
    )
    assert small[0]["width"] == 1.0, "to be seen"


def test_columns_stand_on_one_line_and_are_as_high_as_their_values() -> None:
    bars = [
        Bar("a", "", (Segment("s0", 25, "x"), Segment("s1", 50, "y"))),
        Bar("b", "", (Segment("s0", 100, "z"), Segment("s1", 0, "none"))),
        Bar("c", "", (Segment("s0", 50, "w"),)),
    ]
    markup = charts.columns_chart(bars, "title")
    found = rects(markup)
    base = charts.PLOT_HEIGHT + 12
    plot = charts.PLOT_HEIGHT
    assert [each["height"] for each in found] == [
        0.25 * plot - 1, 0.5 * plot - 1, plot - 1, 0.5 * plot
    ]  # fmt: skip
    assert [each["y"] for each in found] == [
        base - 0.25 * plot, base - 0.75 * plot, base - plot, base - 0.5 * plot
    ]  # fmt: skip
    assert {each["width"] for each in found} == {64.0}
    assert found[0]["x"] == found[1]["x"] < found[2]["x"] < found[3]["x"]
    step = (charts.WIDTH - charts.AXIS_WIDTH - 10) / 3
    assert found[0]["x"] == pytest.approx(charts.AXIS_WIDTH + (step - 64) / 2, abs=0.1)
    assert found[2]["x"] - found[0]["x"] == pytest.approx(step, abs=0.1)
    texts = [each for each in parsed(markup).iter("text") if each.get("text-anchor") == "end"]
    assert [text_of(each) for each in texts] == ["0", "25", "50", "75", "100"]
    drawn = parsed(markup).iter("line")
    lines = [(each.get("class"), float(each.get("y1") or 0)) for each in drawn]
    assert lines == [("axis", base), *(("grid", base - plot * n / 4) for n in range(1, 5))]


def test_what_is_small_beside_the_rest_can_still_be_seen() -> None:
    bars = [Bar(f"{n}", "", (Segment("s0", n, ""),)) for n in (1, 10_000)]
    assert [each["height"] for each in rects(charts.columns_chart(bars, "t"))] == [0.5, 180.0]


@pytest.mark.parametrize(("count", "shown"), [(8, 8), (9, 5), (17, 6)])
def test_columns_have_a_few_labels(count: int, shown: int) -> None:
    bars = [Bar(f"{n}", "", (Segment("s0", 1, ""),)) for n in range(count)]
    middle = below(charts.columns_chart(bars, "t"))
    assert (len(middle), middle[0]) == (shown, "0")
    widths = {each["width"] for each in rects(charts.columns_chart(bars * 30, "t"))}
    assert max(widths) <= 876 / (count * 30) or widths == {1.0}


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [(0, 1.0), (-5, 1.0), (1, 1), (1.1, 2), (2.1, 2.5), (2.6, 5), (5.1, 10), (10, 10), (99, 100)],
)
def test_an_axis_ends_at_a_round_number(value: float, ceiling: float) -> None:
    assert charts.nice_ceiling(value) == ceiling


def test_of_a_long_name_its_end_is_kept() -> None:
    assert charts.shortened("abcdef", 6) == "abcdef"
    assert charts.shortened("abcdefg", 6) == "ab…efg"
    assert charts.shortened("x" * 44) == "x" * 44
    assert len(charts.shortened("x" * 45)) == 44


def test_numbers_are_shown_as_people_read_them() -> None:
    assert bytes_text(2**60) == "1,024.0 PiB"
    assert (count_text(10**15 + 1), count_text(99_999.4)) == ("1,000.0 T", "99,999")
    assert [duration_text(each) for each in (9.96, 10.4, 3.0, 59.0, 60.0, 86_400.0, 90_000.0)] == [
        "10.0 s", "10 s", "3 s", "59 s", "1 min", "1 d", "1 d 1 h"
    ]  # fmt: skip
    assert [rate_text(each) for each in (None, 1.25, 99_999.0, 100_000.0, -2e6)] == [
        "?", "1.2/s", "99,999.0/s", "100.0 k/s", "-2.0 M/s"
    ]  # fmt: skip
    assert (time_text(None), time_text(AT_MS)) == ("?", AT)
    assert short_topic(A) == "acme/shop/a"

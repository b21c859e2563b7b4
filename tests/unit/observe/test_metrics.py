"""The text form of metrics."""

import re

from hypothesis import given
from hypothesis import strategies as st

from magnetar.observe.metrics import escape, family, label_text, process_metrics, single

LINE = re.compile(r'[a-z_:][\w:]*(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? -?[\d.e+-]+')


def test_a_family_stands_together() -> None:
    labels = [label_text([("topic", name)]) for name in "ab"]
    assert family("m", labels, [1, 2.5], "counter") == (
        '# TYPE m counter\nm{topic="a"} 1\nm{topic="b"} 2.5\n'
    )
    assert family("m", labels, [0, 0.0]) == '# TYPE m gauge\nm{topic="a"} 0\nm{topic="b"} 0\n'
    assert family("m", [], []) == ""
    assert single("m", "", 3) == "# TYPE m gauge\nm 3\n"


@given(st.lists(st.tuples(st.text(), st.one_of(st.just(0), st.integers(), st.floats(-1e9, 1e9)))))
def test_every_line_can_be_read(series: list[tuple[str, float]]) -> None:
    labels = [label_text([("a", text), ("b", "x")]) for text, _ in series]
    lines = family("m", labels, [value for _, value in series]).split("\n")
    assert lines.pop() == ""
    for line in lines[1:]:
        assert LINE.fullmatch(line), line
    assert len(lines) == (len(series) + 1 if series else 0)


def test_escapes() -> None:
    assert escape('a"b\\c\nd') == r"a\"b\\c\nd"
    assert escape("plain") == "plain"


def test_process_metrics_tell_of_this_process() -> None:
    page = process_metrics()
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        value = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
        assert value is not None
        assert float(value[1]) > 0

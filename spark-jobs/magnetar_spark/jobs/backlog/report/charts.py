"""Draws charts as inline SVG without scripts: bars, stacked bars, columns. Pure.

Colours are classes (`s0` … `s7`, `other`) with a light and a dark form in the page's style. Every
mark has a tooltip (`<title>`), and every value its text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from magnetar_spark.jobs.backlog.report.numbers import count_text

WIDTH: Final = 960
LABEL_WIDTH: Final = 340
VALUE_WIDTH: Final = 170
ROW_HEIGHT: Final = 26
BAR_HEIGHT: Final = 15
LABEL_CHARS: Final = 44
PLOT_HEIGHT: Final = 180
AXIS_WIDTH: Final = 74
TICKS: Final = 4
GAP: Final = 1.0
"""Between segments, so that they are distinguishable without colours."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar. `series` is a CSS class: `s0` …, `other`."""

    series: str
    value: float
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A row or a column. `text` follows a row; `label` precedes a row, or is below a column."""

    label: str
    text: str
    segments: Sequence[Segment] = field(default_factory=tuple)
    tip: str = ""

    @property
    def value(self) -> float:
        """The length of the bar."""
        return sum(segment.value for segment in self.segments)


def shortened(text: str, chars: int = LABEL_CHARS) -> str:
    """Shortens a name in the middle, since its end distinguishes it best."""
    if len(text) <= chars:
        return text
    head = chars // 3
    return f"{text[:head]}…{text[-(chars - head - 1) :]}"


def rows_chart(bars: Sequence[Bar], title: str) -> str:
    """A chart of horizontal bars, in the given order."""
    height = ROW_HEIGHT * len(bars) + 8
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    most = max((bar.value for bar in bars), default=0.0) or 1.0
    parts = [_open(height, title)]
    parts.append(f'<line class="axis" x1="{LABEL_WIDTH}" y1="0" x2="{LABEL_WIDTH}" y2="{height}"/>')
    for number, bar in enumerate(bars):
        top = number * ROW_HEIGHT + 4
        middle = top + ROW_HEIGHT / 2
        parts.append(
            f'<text class="label" x="{LABEL_WIDTH - 10}" y="{middle + 4:.1f}" text-anchor="end">'
            f"{escape(shortened(bar.label))}<title>{escape(bar.tip or bar.label)}</title></text>"
        )
        x = float(LABEL_WIDTH) + 1
        for segment in bar.segments:
            width = segment.value / most * room
            if width > 0:
                shown = max(width - GAP, 1.0)
                parts.append(
                    f'<rect class="{segment.series}" x="{x:.1f}" y="{middle - BAR_HEIGHT / 2:.1f}" '
                    f'width="{shown:.1f}" height="{BAR_HEIGHT}" rx="2">'
                    f"<title>{escape(segment.tip)}</title></rect>"
                )
            x += width
        parts.append(
            f'<text class="value" x="{x + 7:.1f}" y="{middle + 4:.1f}">{escape(bar.text)}</text>'
        )
    parts.append("</svg></div>")
    return "".join(parts)


def columns_chart(bars: Sequence[Bar], title: str, labels_max: int = 8) -> str:
    """A chart of columns over an axis with a few labels, for histograms and time."""
    most = nice_ceiling(max((bar.value for bar in bars), default=0.0))
    room = WIDTH - AXIS_WIDTH - 10
    height = PLOT_HEIGHT + 44
    base = PLOT_HEIGHT + 12
    step = room / max(1, len(bars))
    width = max(1.0, min(step - (2 if step > 6 else 0.5), 64.0))
    parts = [_open(height, title)]
    for tick in range(TICKS + 1):
        y = base - PLOT_HEIGHT * tick / TICKS
        css = "grid" if tick else "axis"
        parts.append(f'<line class="{css}" x1="{AXIS_WIDTH}" y1="{y}" x2="{WIDTH - 10}" y2="{y}"/>')
        text = count_text(most * tick / TICKS)
        parts.append(
            f'<text class="tick" x="{AXIS_WIDTH - 8}" y="{y + 4}" text-anchor="end">{text}</text>'
        )
    every = max(1, math.ceil(len(bars) / labels_max))
    for number, bar in enumerate(bars):
        x = AXIS_WIDTH + step * number + (step - width) / 2
        y = float(base)
        for segment in bar.segments:
            tall = segment.value / most * PLOT_HEIGHT
            if tall <= 0:
                continue
            y -= tall
            parts.append(
                f'<rect class="{segment.series}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{max(tall - (GAP if len(bar.segments) > 1 else 0), 0.5):.1f}">'
                f"<title>{escape(segment.tip)}</title></rect>"
            )
        if number % every == 0:
            parts.append(
                f'<text class="tick" x="{x + width / 2:.1f}" y="{base + 18}" '
                f'text-anchor="middle">{escape(bar.label)}</text>'
            )
    parts.append("</svg></div>")
    return "".join(parts)


def legend(series: Sequence[tuple[str, str]]) -> str:
    """A legend, from class and name of each series."""
    items = "".join(
        f'<span class="key"><svg width="12" height="12" aria-hidden="true">'
        f'<rect class="{css}" width="12" height="12" rx="3"/></svg>{escape(name)}</span>'
        for css, name in series
    )
    return f'<p class="legend">{items}</p>'


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 2.5 and 5 times a power of ten; 1 for values up to 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 2, 2.5, 5):
        if value <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power


def _open(height: float, title: str) -> str:
    return (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title>"
    )

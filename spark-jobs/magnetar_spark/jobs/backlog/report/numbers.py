"""Formats numbers for people. Pure."""

from datetime import UTC, datetime
from typing import Final

_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS: Final = ("", " k", " M", " G", " T")
_TIMES: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
UNKNOWN: Final = "?"


def bytes_text(size: float | None) -> str:
    """A size, as `1.5 GiB`."""
    if size is None:
        return UNKNOWN
    step = 0
    while abs(size) >= 1024 and step < len(_BYTES) - 1:
        size /= 1024
        step += 1
    return f"{size:,.0f} B" if not step else f"{size:,.1f} {_BYTES[step]}"


def count_text(count: float | None) -> str:
    """A count: whole up to 99,999, then as `1.2 M`."""
    if count is None:
        return UNKNOWN
    if abs(count) < 100_000:
        return f"{count:,.0f}"
    step = 0
    while abs(count) >= 1000 and step < len(_COUNTS) - 1:
        count /= 1000
        step += 1
    return f"{count:,.1f}{_COUNTS[step]}"


def duration_text(seconds: float | None) -> str:
    """A duration, as `2 d 3 h`, `5 min 10 s`, `1.5 s`."""
    if seconds is None:
        return UNKNOWN
    for unit, name, part, part_name in _TIMES:
        if seconds >= unit:
            whole = int(seconds // unit)
            rest = int(seconds % unit // part)
            return f"{whole} {name} {rest} {part_name}" if rest else f"{whole} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"


def rate_text(per_s: float | None) -> str:
    """A rate, as `1,234.5/s`."""
    if per_s is None:
        return UNKNOWN
    return f"{per_s:,.1f}/s" if abs(per_s) < 100_000 else f"{count_text(per_s)}/s"


def time_text(time_ms: float | None) -> str:
    """A time to the second, in UTC."""
    if time_ms is None:
        return UNKNOWN
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_topic(name: str) -> str:
    """A topic's name without `persistent://`."""
    return name.removeprefix("persistent://")

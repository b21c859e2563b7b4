"""Durations as people write them: `30`, `90s`, `5m`, `1h`, `3d`, `2w`, `10y`.

The units are those of Pulsar's tools, in either case; a number alone is in seconds, and a year has
365 days. Source: RelativeTimeUtil of Pulsar 4.2.
"""

from typing import Final

DAY_S: Final = 86_400
_UNITS_S: Final = {
    "s": 1,
    "m": 60,
    "h": 3_600,
    "d": DAY_S,
    "w": 7 * DAY_S,
    "y": 365 * DAY_S,
}
DURATION_S_MAX: Final = 1_000 * 365 * DAY_S


def duration_s(text: str) -> int:
    """Returns the duration in seconds; raises ValueError that describes valid texts."""
    unit_s = _UNITS_S.get(text[-1:].lower())
    number = text if unit_s is None else text[:-1]
    try:
        seconds = int(number) * (unit_s or 1)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a whole number with one of the units s, m, h, d, w, y"
        ) from None
    if abs(seconds) > DURATION_S_MAX:
        raise ValueError(f"{text!r} is more than 1,000 years")
    return seconds

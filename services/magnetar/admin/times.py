"""Times as Pulsar prints them."""

from datetime import UTC, datetime


def iso(time_ms: int) -> str:
    """Formats as `2026-11-21T12:31:19.94Z`: without trailing zeros in the milliseconds."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    millis = f".{time_ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{text}{millis}Z"

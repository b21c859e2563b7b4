"""Times as Pulsar prints them."""

from datetime import UTC, datetime


def iso(time_ms: int) -> str:
    """`2026-11-21T12:31:19.94Z`: as many decimals as there are, none for whole seconds."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    millis = f".{time_ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{text}{millis}Z"

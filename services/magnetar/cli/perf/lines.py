"""The lines of pulsar-perf's log (4.0.8), so that programs that read them also read ours."""

from collections.abc import Sequence
from typing import Final

from magnetar.cli.perf.histogram import Histogram

PERCENTS: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
PERCENTS_TOTAL: Final = (*PERCENTS, 99.999)
_NAMES: Final = ("med", "95pct", "99pct", "99.9pct", "99.99pct", "99.999pct")
_COUNT_WIDTH: Final = 7
_RATE_WIDTH: Final = 8
_MS_WIDTH: Final = 7
BITS_PER_MEGABIT: Final = 1024 * 1024
"""As pulsar-perf counts."""


def count_text(count: int) -> str:
    """Returns a number of messages."""
    return f"{count:{_COUNT_WIDTH}}"


def rate_text(rate: float) -> str:
    """Returns a number per second."""
    return f"{rate:{_RATE_WIDTH}.1f}"


def megabits(size: float) -> float:
    """Returns bytes as megabits."""
    return size * 8 / BITS_PER_MEGABIT


def exact_text(rate: float) -> str:
    """Returns a number per second as totals, and all lines of consumers and readers, have it."""
    return f"{rate:.3f}"


def latency(histogram: Histogram, *, total: bool = False, whole: bool = False) -> str:
    """Returns the latencies of a histogram of microseconds, in milliseconds.

    `whole` is the form of consumers and readers: whole numbers, except for the mean.
    """
    percents = PERCENTS_TOTAL if total else PERCENTS
    values = histogram.percentiles(*percents)
    text = _whole_ms if whole else _ms
    mean = exact_text(histogram.mean / 1000) if whole else _ms(histogram.mean)
    shown = [f"Latency: mean: {mean} ms"]
    shown += [f"{name}: {text(value)}" for name, value in zip(_NAMES, values, strict=False)]
    return " - ".join([*shown, f"Max: {text(histogram.maximum)}"])


def _whole_ms(microseconds: float) -> str:
    return str(round(microseconds / 1000))


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:{_MS_WIDTH}.3f}"


def produced_line(
    total: int, rate: float, mbit: float, failures: float, latencies: Histogram
) -> str:
    """The line of an interval of `perf produce`."""
    return (
        f"Throughput produced: {count_text(total)} msg --- {rate_text(rate)} msg/s --- "
        f"{rate_text(mbit)} Mbit/s  --- failure {rate_text(failures)} msg/s --- "
        f"{latency(latencies)}"
    )


def received_line(
    total: int, rate: float, mbit: float, failures: float, latencies: Histogram
) -> str:
    """The line of an interval of `perf consume`; it has no failures."""
    del failures
    return (
        f"Throughput received: {count_text(total)} msg --- {exact_text(rate)}  msg/s --- "
        f"{exact_text(mbit)} Mbit/s  --- {latency(latencies, whole=True)}"
    )


def read_line(total: int, rate: float, mbit: float, failures: float, latencies: Histogram) -> str:
    """The line of an interval of `perf read`; it has no failures."""
    del failures
    return (
        f"Read throughput: {count_text(total)} msg --- {exact_text(rate)}  msg/s -- "
        f"{exact_text(mbit)} Mbit/s --- {latency(latencies, whole=True)}"
    )


def total_sent(total: int, rate: float, mbit: float) -> str:
    """The total of `perf produce`."""
    return (
        f"Aggregated throughput stats --- {total} records sent --- {exact_text(rate)} msg/s"
        f" --- {exact_text(mbit)} Mbit/s "
    )


def total_received(total: int, rate: float, mbit: float, acked: int, elapsed_s: float) -> str:
    """The total of `perf consume`. Grouped acks do not fail one by one: theirs is 0."""
    return (
        f"Aggregated throughput stats --- {total} records received --- {exact_text(rate)} msg/s"
        f" --- {exact_text(mbit)} Mbit/s --- AckRate: {exact_text(acked / elapsed_s)}  msg/s"
        " --- ack failed 0 msg"
    )


def total_read(total: int, rate: float, mbit: float) -> str:
    """The total of `perf read`."""
    return (
        f"Aggregated throughput stats --- {total} records received --- {exact_text(rate)} msg/s"
        f" --- {exact_text(mbit)} Mbit/s"
    )


def total_latency(latencies: Histogram, prefix: str = "Aggregated", *, whole: bool = False) -> str:
    """The latencies of the whole run."""
    return f"{prefix} latency stats --- {latency(latencies, total=True, whole=whole)}"


def transactions(
    total: int, rate: float, sends: Histogram, acks: Histogram, *, enabled: bool
) -> str:
    """The line of an interval of `perf transaction`."""
    head = (
        f"Throughput transaction: {count_text(total)} transaction executes --- "
        f"{rate:{_MS_WIDTH}.3f} transaction/s"
        if enabled
        else f"Throughput task: {count_text(total)} task executes --- {rate:{_MS_WIDTH}.3f} task/s"
    )
    return f"{head}  --- send {latency(sends)} --- ack {latency(acks)}"


def total_transactions(
    total: int, rate: float, outcomes: Sequence[int], messages: Sequence[int], *, enabled: bool
) -> str:
    """The total of `perf transaction`.

    `outcomes`: opened, not opened, ended, not ended; `messages`: acks failed, sends failed, acks,
    sends.
    """
    kind = "transaction" if enabled else "task"
    parts = [
        f"Aggregated throughput stats --- {total} {kind} executed",
        f"{rate:{_MS_WIDTH}.3f} {kind}/s",
    ]
    if enabled:
        parts[-1] += " "
        names = ("open successfully", "open failed", "end successfully", "end failed")
        parts += [
            f"{count} transaction {name}" for count, name in zip(outcomes, names, strict=True)
        ]
    names = ("ack failed", "send failed", "ack success", "send success")
    parts += [f"{count} message {name}" for count, name in zip(messages, names, strict=True)]
    return " --- ".join(parts) + " "

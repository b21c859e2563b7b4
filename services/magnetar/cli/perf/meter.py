"""Counts the messages of a run, and reports them: every interval, live, and in total."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

from magnetar.cli.perf import lines
from magnetar.cli.perf.histogram import Histogram
from magnetar.cli.perf.live import LiveLine

LIVE_S: Final = 0.5
"""Between two updates of the live line."""


class Meter:
    """The figures of a run. Latencies are in microseconds."""

    def __init__(self, *, limit: int, duration_s: float, as_json: bool) -> None:
        """`limit`: messages after which the run ends, 0 for none; `duration_s`: likewise."""
        self._limit = limit
        self._duration_s = duration_s
        self._json = as_json
        self._live = LiveLine()
        self.started = time.monotonic()
        self.messages = 0
        self.bytes = 0
        self.failures = 0
        self.recent = Histogram()
        self._whole = Histogram()
        self._last = (self.started, 0, 0, 0)
        self._last_live = (self.started, 0)

    def done(self, size: int, latency_us: int | None) -> None:
        """Counts a message, and its latency unless it is None."""
        self.messages += 1
        self.bytes += size
        if latency_us is not None:
            self.recent.record(latency_us)

    @property
    def elapsed_s(self) -> float:
        """Since the start; never 0."""
        return max(time.monotonic() - self.started, 1e-9)

    @property
    def whole(self) -> Histogram:
        """The latencies of the whole run."""
        self._whole.add(self.recent)
        self.recent = Histogram()
        return self._whole

    def over(self) -> bool:
        """Whether the run has reached its number of messages or its duration."""
        if self._limit and self.messages >= self._limit:
            return True
        return bool(self._duration_s) and self.elapsed_s >= self._duration_s

    def due(self) -> bool:
        """Whether the run has reached its duration."""
        return bool(self._duration_s) and self.elapsed_s >= self._duration_s

    async def report(
        self, interval_s: float, line: Callable[[int, float, float, float, Histogram], str]
    ) -> None:
        """Prints a line every interval, and updates the live line, until cancelled."""
        due = time.monotonic() + interval_s
        try:
            while True:
                step_s = min(LIVE_S, interval_s) if self._live.shown else due - time.monotonic()
                await asyncio.sleep(max(step_s, 0.0))
                now = time.monotonic()
                self._show(now)
                if now >= due:
                    due += interval_s
                    self._interval(now, line)
        finally:
            self._live.clear()

    def _show(self, now: float) -> None:
        then, messages = self._last_live
        self._last_live = now, self.messages
        rate = (self.messages - messages) / max(now - then, 1e-9)
        share = None
        if self._limit:
            share = self.messages / self._limit
        elif self._duration_s:
            share = (now - self.started) / self._duration_s
        median, high = self.recent.percentiles(50, 99)
        text = (
            f"{self.messages} msg {rate:.0f} msg/s "
            f"med {median / 1000:.1f} ms 99pct {high / 1000:.1f} ms"
        )
        self._live.update(rate, text, share)

    def _interval(
        self, now: float, line: Callable[[int, float, float, float, Histogram], str]
    ) -> None:
        then, messages, size, failures = self._last
        self._last = now, self.messages, self.bytes, self.failures
        seconds = max(now - then, 1e-9)
        rate = (self.messages - messages) / seconds
        mbit = lines.megabits(self.bytes - size) / seconds
        failed = (self.failures - failures) / seconds
        latencies, self.recent = self.recent, Histogram()
        self._whole.add(latencies)
        if self._json:
            self._print(self.document("interval", self.messages, rate, mbit, latencies, failed))
        else:
            self.print(line(self.messages, rate, mbit, failed, latencies))

    def print(self, text: str) -> None:
        """Prints a line of the log above the live line."""
        self._live.clear()
        print(text, flush=True)

    def _print(self, document: dict[str, Any]) -> None:
        self.print(json.dumps(document))

    def document(
        self,
        kind: str,
        messages: int,
        rate: float,
        mbit: float,
        latencies: Histogram,
        failures: float,
    ) -> dict[str, Any]:
        """Returns figures as a JSON object."""
        return {
            "kind": kind,
            "elapsedSeconds": round(self.elapsed_s, 3),
            "messages": messages,
            "messagesPerSecond": round(rate, 1),
            "megabitsPerSecond": round(mbit, 3),
            "failuresPerSecond" if kind == "interval" else "failures": round(failures, 3),
            "latencyMs": latency_document(latencies),
        }

    def total(self, *texts: str, **more: object) -> None:
        """Prints the lines of the total, or one JSON object with `more`."""
        if not self._json:
            for text in texts:
                self.print(text)
            return
        elapsed_s = self.elapsed_s
        document = self.document(
            "total",
            self.messages,
            self.messages / elapsed_s,
            lines.megabits(self.bytes) / elapsed_s,
            self.whole,
            self.failures,
        )
        self._print(document | more)


def latency_document(latencies: Histogram) -> dict[str, float]:
    """Returns the latencies of a histogram in milliseconds."""
    names = ("50", "95", "99", "99.9", "99.99", "99.999")
    values = latencies.percentiles(*lines.PERCENTS_TOTAL)
    shown = {"mean": round(latencies.mean / 1000, 3)}
    shown |= {name: value / 1000 for name, value in zip(names, values, strict=True)}
    return shown | {"max": latencies.maximum / 1000}

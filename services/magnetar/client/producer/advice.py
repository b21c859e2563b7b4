"""Suggests settings of a producer from what it has sent, and predicts the size of its batches.

A batch that its delay closes has one message and those that came in the delay: m = 1 + r * d. So
the figures show the rate r at which messages come to an open batch, and what another delay brings.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.client.options import Batching, Compression, ProducerOptions
from magnetar.client.producer.stats import ProducerStats
from magnetar.core.units import KIB, MIB

ENTRIES_MIN: Final = 50
"""Entries that must have been sent before anything is suggested."""
ELAPSED_S_MIN: Final = 0.001
MESSAGES_PER_ENTRY_GOAL: Final = 100.0
"""Beyond that, larger batches save little CPU."""
DELAY_S_MAX: Final = 0.1
"""The longest delay that is suggested."""
BATCH_BYTES_MAX: Final = 1 * MIB
"""The largest batch that is suggested."""
COMPRESSIBLE_BYTES: Final = 1 * KIB
"""The mean size of entries from which on compression is suggested."""
_MOSTLY: Final = 0.5
_PENDING_SHARE_MAX: Final = 0.8


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggested setting."""

    setting: str
    """The option, such as `batching.delay_s`."""
    value: object
    reason: str
    messages_per_entry: float | None = None
    """The mean size of batches that it leads to; None if it does not change."""


def advice(options: ProducerOptions, stats: ProducerStats, elapsed_s: float) -> list[Advice]:
    """Returns suggestions; none if too little was sent, or nothing would help."""
    if stats.entries_sent < ENTRIES_MIN or elapsed_s < ELAPSED_S_MIN:
        return []
    suggestions = []
    if options.batching is None:
        suggestions += _without_batching(stats, elapsed_s)
    else:
        suggestions += _batches(options.batching, stats)
    suggestions += _pending(options, stats, elapsed_s)
    mean_bytes = stats.wire_bytes_sent / stats.entries_sent
    if options.compression == Compression.NONE and mean_bytes >= COMPRESSIBLE_BYTES:
        reason = f"entries have {mean_bytes:.0f} bytes, and are not compressed"
        suggestions.append(Advice("compression", Compression.ZSTD, reason))
    return suggestions


def _without_batching(stats: ProducerStats, elapsed_s: float) -> list[Advice]:
    batching = Batching()
    rate = stats.messages_sent / elapsed_s
    predicted = min(1 + rate * batching.delay_s, batching.messages_max, _by_bytes(batching, stats))
    if predicted < 2:
        return []
    reason = f"{rate:.0f} messages/s are sent one by one"
    return [Advice("batching", batching, reason, predicted)]


def _batches(batching: Batching, stats: ProducerStats) -> list[Advice]:
    closed = stats.batches_by_time + stats.batches_by_count + stats.batches_by_size
    mean = stats.messages_per_entry
    if not closed or not mean or (mean >= MESSAGES_PER_ENTRY_GOAL and not stats.batches_by_size):
        return []
    if stats.batches_by_time > closed * _MOSTLY:
        return _delay(batching, stats, mean)
    if stats.batches_by_count > closed * _MOSTLY:
        wanted = int(min(_by_bytes(batching, stats), MESSAGES_PER_ENTRY_GOAL))
        if wanted <= batching.messages_max:
            return []
        reason = f"batches are full with {batching.messages_max} messages"
        return [Advice("batching.messages_max", wanted, reason, float(wanted))]
    if stats.batches_by_size > closed * _MOSTLY and mean < MESSAGES_PER_ENTRY_GOAL:
        wanted_bytes = min(
            round(batching.bytes_max * MESSAGES_PER_ENTRY_GOAL / mean), BATCH_BYTES_MAX
        )
        if wanted_bytes <= batching.bytes_max:
            return []
        predicted = min(mean * wanted_bytes / batching.bytes_max, batching.messages_max)
        reason = f"batches are full with {batching.bytes_max} bytes after {mean:.0f} messages"
        return [Advice("batching.bytes_max", wanted_bytes, reason, predicted)]
    return []


def _delay(batching: Batching, stats: ProducerStats, mean: float) -> list[Advice]:
    if not batching.delay_s or mean <= 1:
        return []
    rate = (mean - 1) / batching.delay_s
    wanted_s = min((MESSAGES_PER_ENTRY_GOAL - 1) / rate, DELAY_S_MAX)
    if wanted_s <= batching.delay_s:
        return []
    predicted = min(1 + rate * wanted_s, batching.messages_max, _by_bytes(batching, stats))
    reason = f"the delay of {batching.delay_s:g} s closes batches with {mean:.1f} messages"
    return [Advice("batching.delay_s", round(wanted_s, 4), reason, predicted)]


def _pending(options: ProducerOptions, stats: ProducerStats, elapsed_s: float) -> list[Advice]:
    """Little's law: what waits for receipts is the rate times the time to a receipt."""
    limit = options.max_pending_messages
    waiting = stats.messages_sent / elapsed_s * stats.receipt_s_mean
    wanted = round(2 * waiting)
    if not limit or waiting <= limit * _PENDING_SHARE_MAX or wanted <= limit:
        return []
    reason = f"about {waiting:.0f} messages wait for receipts, and {limit} may"
    return [Advice("max_pending_messages", wanted, reason)]


def _by_bytes(batching: Batching, stats: ProducerStats) -> float:
    """The messages that fit into a batch by their size."""
    mean_bytes = stats.bytes_sent / stats.messages_sent if stats.messages_sent else 0.0
    return batching.bytes_max / max(mean_bytes, 1.0)

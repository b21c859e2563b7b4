"""Advice to producers: batches become as large as it predicts, in a model of time."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import Batching, Compression, ProducerOptions
from magnetar.client.producer.advice import advice
from magnetar.client.producer.batch import BatchContainer
from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.client.producer.stats import ProducerStats
from magnetar.core.units import KIB

MESSAGES = 5_000
BROKER_BYTES_MAX = 5 * 1024 * KIB


def sent(batching: Batching, rate: float, size_bytes: int) -> ProducerStats:
    """The statistics after messages of one size at a steady rate, by the real batch container."""
    stats = ProducerStats()
    container = BatchContainer(batching, BROKER_BYTES_MAX)
    message: Any = OutgoingMessage(bytes(size_bytes))
    due = 0.0

    def close() -> None:
        for batch in container.take():
            stats.entries_sent += 1
            stats.messages_sent += len(batch.messages)
            stats.bytes_sent += len(batch.messages) * size_bytes
            stats.wire_bytes_sent += len(batch.messages) * size_bytes

    for number in range(MESSAGES):
        now = number / rate
        if len(container) and now > due:
            stats.batches_by_time += 1
            close()
        if container.must_close_before(message, size_bytes + 32):
            stats.batches_by_size += 1
            close()
        if not len(container):
            due = now + batching.delay_s
        if container.add(message, None, size_bytes + 32):  # type: ignore[arg-type]
            stats.batches_by_count += 1
            close()
    close()
    return stats


@pytest.mark.parametrize(
    ("batching", "rate", "setting"),
    [
        (Batching(delay_s=0.01), 500.0, "batching.delay_s"),
        (Batching(delay_s=0.001), 20_000.0, "batching.delay_s"),
        (Batching(messages_max=10), 50_000.0, "batching.messages_max"),
        (Batching(bytes_max=2 * KIB), 100_000.0, "batching.bytes_max"),
    ],
)
def test_batches_become_as_large_as_predicted(
    batching: Batching, rate: float, setting: str
) -> None:
    before = sent(batching, rate, 100)
    options = ProducerOptions(batching=batching, compression=Compression.ZLIB)
    (suggestion,) = advice(options, before, MESSAGES / rate)
    assert suggestion.setting == setting
    field = setting.partition(".")[2]
    after = sent(replace(batching, **{field: suggestion.value}), rate, 100)  # type: ignore[arg-type]
    assert suggestion.messages_per_entry is not None
    assert after.messages_per_entry > before.messages_per_entry * 1.5
    assert after.messages_per_entry == pytest.approx(suggestion.messages_per_entry, rel=0.2)


def test_messages_that_are_sent_one_by_one() -> None:
    stats = ProducerStats(
        messages_sent=5_000, entries_sent=5_000, bytes_sent=500_000, wire_bytes_sent=500_000
    )
    (suggestion,) = advice(ProducerOptions(batching=None), stats, 1.0)
    assert suggestion.messages_per_entry == 51
    assert isinstance(suggestion.value, Batching)
    assert advice(ProducerOptions(batching=None), stats, 1000.0) == []


def test_too_few_messages_may_be_pending() -> None:
    stats = ProducerStats(messages_sent=10_000, entries_sent=100, receipt_s_total=10.0)
    options = ProducerOptions(max_pending_messages=1_000)
    (suggestion,) = advice(options, stats, 1.0)
    assert (suggestion.setting, suggestion.value) == ("max_pending_messages", 2_000)
    assert "1000 messages wait" in suggestion.reason


def test_large_entries_are_worth_compression() -> None:
    stats = ProducerStats(messages_sent=10_000, entries_sent=100, wire_bytes_sent=1_000_000)
    (suggestion,) = advice(ProducerOptions(), stats, 1.0)
    assert (suggestion.setting, suggestion.value) == ("compression", Compression.ZSTD)


def test_no_advice_from_few_messages() -> None:
    assert advice(ProducerOptions(), ProducerStats(messages_sent=9, entries_sent=9), 1.0) == []


@given(
    st.builds(
        ProducerStats,
        messages_sent=st.integers(0, 10**9), bytes_sent=st.integers(0, 10**12),
        entries_sent=st.integers(0, 10**6), wire_bytes_sent=st.integers(0, 10**12),
        batches_by_count=st.integers(0, 10**6), batches_by_size=st.integers(0, 10**6),
        batches_by_time=st.integers(0, 10**6), receipt_s_total=st.floats(0, 10**6),
    ),
    st.builds(
        Batching,
        messages_max=st.integers(1, 10**5), bytes_max=st.integers(1, 10**7),
        delay_s=st.floats(0, 10),
    ),
    st.floats(0, 10**6),
)  # fmt: skip
def test_every_suggestion_is_a_valid_setting(
    stats: ProducerStats, batching: Batching, elapsed_s: float
) -> None:
    for suggestion in advice(ProducerOptions(batching=batching), stats, elapsed_s):
        owner, _, field = suggestion.setting.partition(".")
        if owner == "batching" and field:
            replace(batching, **{field: suggestion.value})  # type: ignore[arg-type]
            assert suggestion.messages_per_entry is None or suggestion.messages_per_entry >= 0

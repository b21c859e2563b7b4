"""Advice from the entries of a topic: figures, the rules of the client, predictions."""

import random

import pytest

from magnetar.cli.advise import Sample, document_of, lines, suggestions


def sample(messages: int, entries: int, span_ms: int, payload: bytes, *, batched: bool) -> Sample:
    return Sample(
        "t", "p", messages, entries, len(payload) * messages, batched, 0, 1000, 1000 + span_ms,
        bytearray(payload * 10),
    )  # fmt: skip


def test_small_batches_get_a_longer_delay_with_its_prediction() -> None:
    slow = sample(4000, 1000, 1000, bytes(100), batched=True)
    (item,) = suggestions(slow)
    assert item["setting"] == "batching.delay_s"
    # 4,000 messages/s: 99 of them come in this time, after the first of a batch.
    assert item["value"] == pytest.approx(99 / 4000, rel=0.01)
    assert item["messagesPerEntry"] == pytest.approx(100, rel=0.01)
    (head, line) = lines(document_of(slow))
    assert head.endswith(
        "4000.0 msg/s, 4.0 per entry, 100.0 bytes each, compression NONE (1000 entries)"
    )
    assert line.endswith("; predicts 100.0 messages per entry")


def test_messages_sent_alone_get_batches() -> None:
    items = suggestions(sample(1000, 1000, 1000, bytes(100), batched=False))
    assert [item["setting"] for item in items] == ["batching"]
    assert items[0]["messagesPerEntry"] == pytest.approx(11)


def test_compression_is_suggested_if_it_saves_something() -> None:
    compressible = sample(100, 100, 100_000, bytes(2000), batched=False)
    (item,) = suggestions(compressible)
    assert (item["setting"], item["value"]) == ("compression", "ZSTD")
    assert "zlib would leave 1% of them" in item["reason"]
    noise = sample(100, 100, 100_000, random.Random(7).randbytes(2000), batched=False)
    noise.payload = bytearray(random.Random(7).randbytes(2000))
    assert suggestions(noise) == []


def test_few_entries_get_no_advice() -> None:
    few = document_of(sample(40, 10, 100, bytes(2000), batched=True))
    assert few["advice"] == []
    assert "no advice" in lines(few)[1]

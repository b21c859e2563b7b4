"""Topics of a real cluster, compared row by row with the official client."""

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import Any

import pulsar
from tests.spark.conftest import Log

Row = dict[str, Any]
Messages = Callable[[str, int], list[Any]]
COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def of_row(row: Row) -> tuple[Any, ...]:
    event_time = row["__eventTime"]
    return (
        None if row["value"] is None else bytes(row["value"]),
        bytes(row["__messageId"]),
        (row["__key"] or b"").decode(),
        row["__messageProperties"],
        milliseconds(row["__publishTime"]),
        0 if event_time is None else milliseconds(event_time),
        row["__producer"],
        bytes(row["__orderingKey"] or b"").decode(),
    )


def of_message(message: Any) -> tuple[Any, ...]:
    return (
        None if message.has_null_value() else message.data(),
        message.message_id().serialize(),
        message.partition_key(),
        message.properties(),
        message.publish_timestamp(),
        message.event_timestamp(),
        message.producer_name(),
        message.ordering_key(),
    )


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r["__ledgerId"], r["__entryId"], r["__batchIndex"]))


def publish_all_kinds(client: pulsar.Client, topic: str) -> int:
    """Publishes entries of every form; returns the number of messages."""
    count = 0
    results: list[Any] = []
    for number, (name, compression) in enumerate(COMPRESSIONS.items()):
        for batched in (True, False):
            with closing(
                client.create_producer(
                    topic,
                    producer_name=f"{name}-{batched}",
                    compression_type=compression,
                    batching_enabled=batched,
                    batching_max_messages=50,
                    batching_max_publish_delay_ms=1_000,
                    initial_sequence_id=100 * number,
                )
            ) as producer:
                for index in range(60):
                    plain = index < 25  # equal entries first, then all kinds
                    producer.send_async(
                        f"{name} {index:03}".encode() * (1 if plain else 1 + index % 6),
                        lambda result, _: results.append(result),
                        partition_key="" if plain else f"key-{index % 11}",
                        ordering_key="" if plain or index % 2 else f"order-{index}",
                        properties={} if plain or index % 3 else {"a": str(index), "ü": "é"},
                        event_timestamp=0 if index % 5 else 1_700_000_000_000 + index,
                    )
                    count += 1
                producer.flush()
    with closing(
        client.create_producer(
            topic, batching_enabled=False, chunking_enabled=True, send_timeout_millis=120_000
        )
    ) as producer:
        producer.send(b"0123456789abcdef" * (13 << 16))  # 13 MiB: three chunks
        count += 1
    assert set(results) == {pulsar.Result.Ok}
    return count


def test_every_form_of_message_equals_what_a_consumer_gets(
    log: Log, client: pulsar.Client, topic: str, messages: Messages
) -> None:
    count = publish_all_kinds(client, topic)
    rows = in_order(log.rows(topic, partition_bytes="20000"))
    expected = messages(topic, count)
    assert [of_row(row) for row in rows] == [of_message(message) for message in expected]
    assert {row["__topic"] for row in rows} == {topic}
    assert not any(row["__encrypted"] for row in rows)
    assert len({row["__ledgerId"] for row in rows}) > 3

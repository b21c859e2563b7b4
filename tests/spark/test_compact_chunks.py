"""Chunked messages are compacted by Spark and read by the official client.

Chunks are written one by one, as several producers would interleave them. Each test names the
entries that must remain.
"""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.spark.conftest import Log
from tests.support.compact_rig import CompactRig
from tests.support.raw_client import RawClient

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.core.ids import Position
from magnetar.jobs.compaction import topic as topics
from magnetar.jobs.compaction.plan import part_bytes
from magnetar.wire._pb.PulsarApi_pb2 import CommandSend, MessageMetadata
from magnetar.wire.encoder import encode_send

CHUNK_BYTES = 50
LONG_AGO_MS = 1_000
RECEIVE_MS = 30_000

Sent = tuple[str, MessageMetadata, bytes]
"""A name for the test, and the chunks that are sent."""


def value_of(name: str, chunks: int) -> bytes:
    return b"".join(f"{name} {number}".encode().ljust(CHUNK_BYTES) for number in range(chunks))


def chunk(name: str, key: str, number: int, of: int, *, uuid: str = "") -> Sent:
    """Returns a chunk, named `NAME/NUMBER`. Its producer's clock is wrong by decades."""
    whole = value_of(name, of)
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=LONG_AGO_MS,
        partition_key=key,
        uuid=uuid or f"p-{name}",
        chunk_id=number,
        num_chunks_from_msg=of,
        total_chunk_msg_size=len(whole),
    )
    return f"{name}/{number}", metadata, whole[number * CHUNK_BYTES :][:CHUNK_BYTES]


def single(key: str, value: bytes) -> Sent:
    metadata = MessageMetadata(
        producer_name="other", sequence_id=0, publish_time=LONG_AGO_MS, partition_key=key
    )
    if not value:
        metadata.null_value = True
    return key, metadata, value


def send(cluster: LocalCluster, topic: str, sent: list[Sent]) -> dict[Position, str]:
    """Sends the chunks; returns the position of each by its name."""
    return asyncio.run(_send(cluster, topic, sent))


async def _send(cluster: LocalCluster, topic: str, sent: list[Sent]) -> dict[Position, str]:
    host, _, port = cluster.service_url.removeprefix("pulsar://").rpartition(":")
    raw = await RawClient.connect(host, int(port))
    try:
        producer = await raw.producer(topic)
        for number, (_, metadata, payload) in enumerate(sent):
            command = CommandSend(producer_id=producer, sequence_id=number)
            raw.write(encode_send(command, metadata, payload))
        await raw.receipted(producer, len(sent))
    finally:
        assert raw.transport is not None
        raw.transport.close()
        await raw.lost.wait()
    receipts = raw.receipts[producer]
    return {Position(*receipts[number]): name for number, (name, _, _) in enumerate(sent)}


def read(client: pulsar.Client, topic: str, last: bytes) -> dict[str, bytes]:
    """Reads with `read_compacted`; returns keys and values up to the last message."""
    found: dict[str, bytes] = {}
    with closing(
        client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    ) as reader:
        while last not in found.values():
            message: Any = reader.read_next(RECEIVE_MS)
            assert message.partition_key() not in found
            found[message.partition_key()] = message.data()
    return found


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
def test_by_spark_and_over_the_horizon(
    log: Log,
    cluster: LocalCluster,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_producer(topic).close()  # this look-up makes the broker own the topic
    monkeypatch.setattr(topics, "part_bytes", lambda *_: 900)  # chunks over several parts
    rig = CompactRig(log, cluster, tmp_path / "store")
    many = [single(f"k{number}", b"%d" % number) for number in range(30)]
    places = send(
        cluster,
        topic,
        [
            chunk("old", "superseded", 0, 3, uuid="p-0"),
            chunk("gone", "removed", 0, 2),
            *many[:10],
            chunk("old", "superseded", 1, 3, uuid="p-0"),
            single("late", b"early"),
            chunk("open", "late", 0, 3),
            chunk("gone", "removed", 1, 2),
            chunk("old", "superseded", 2, 3, uuid="p-0"),
            *many[10:20],
            chunk("kept", "kept", 0, 3),
            single("superseded", b"by this"),
            chunk("kept", "kept", 1, 3),
            # A restarted producer uses a name again: the first message survives.
            chunk("first", "first", 0, 2, uuid="p-1"),
            chunk("first", "first", 1, 2, uuid="p-1"),
            chunk("second", "second", 0, 2, uuid="p-1"),
            chunk("second", "second", 1, 2, uuid="p-1"),
            single("second", b""),
            single("removed", b""),
            *many[20:],
            chunk("open", "late", 1, 3),
            chunk("kept", "kept", 2, 3),
            single("end", b"end"),
        ],
    )
    spark = ("--topic", topic, "--always-spark")
    done = rig.compact(*spark, capsys=capsys)
    assert (done["state"], done["metrics"]["files"] > 2) == ("succeeded", True), done
    whole = {f"k{number}": b"%d" % number for number in range(30)}
    whole |= {"superseded": b"by this", "kept": value_of("kept", 3), "first": value_of("first", 2)}
    names = {"superseded", "late", "end", *(f"k{number}" for number in range(30))}
    names |= {"kept/0", "kept/1", "kept/2", "first/0", "first/1", "open/0", "open/1"}
    assert {places[each.position] for each in rig.artifact(topic)} == names
    assert done["metrics"]["messagesKept"] == len(whole) + 2
    assert read(client, topic, b"end") == {**whole, "late": b"early", "end": b"end"}
    # The missing chunk arrives: the message is the value from then on, across the seam and below
    # it.
    places |= send(
        cluster,
        topic,
        [chunk("open", "late", 2, 3), single("kept", b""), single("end", b"the end")],
    )
    monkeypatch.setattr(topics, "part_bytes", part_bytes)
    rig.compact(*spark, capsys=capsys)
    names -= {"late", "kept/0", "kept/1", "kept/2"}
    assert {places[each.position] for each in rig.artifact(topic)} == names | {"open/2"}
    del whole["kept"]
    assert read(client, topic, b"the end") == {
        **whole,
        "late": value_of("open", 3),
        "end": b"the end",
    }

"""Consumers with `read_compacted` over a swap of artifacts, by the official client and REST.

The wheel's C++ library delivers messages that were compacted out of a batch as empty messages
without a key, if the broker sends them. Brokers send them to consumers, as Pulsar's do, and not to
readers; the tests skip them.
"""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pulsar
import pytest
from tests.spark.conftest import Log
from tests.support.cluster_processes import brokers
from tests.support.compact_rig import CompactRig, write
from tests.support.compaction import compacted

from magnetar.cluster.local.cluster import LocalCluster

EARLIEST = pulsar.InitialPosition.Earliest
EXCLUSIVE = pulsar.ConsumerType.Exclusive
RECEIVE_MS = 30_000


@pytest.fixture
def rig(log: Log, cluster: LocalCluster, tmp_path: Path) -> CompactRig:
    return CompactRig(log, cluster, tmp_path / "store")


class Admin:
    """The admin REST of the topic."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        rest = topic.replace("://", "/")
        self._url = f"{brokers(cluster)[0].http_url}/admin/v2/{rest}"

    def ask(self, method: str, path: str) -> tuple[int, Any]:
        request = urllib.request.Request(self._url + path, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                body = answer.read()
                return answer.status, msgspec.json.decode(body) if body else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, msgspec.json.decode(error.read())


def reader(client: pulsar.Client, topic: str, **options: Any) -> Any:
    return client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True, **options)


def read(source: Any) -> list[tuple[str, bytes]]:
    """Returns keys and values up to the broker's last message."""
    found = []
    while source.has_message_available():
        message = source.read_next(RECEIVE_MS)
        found.append((message.partition_key(), message.data()))
    return found


def rounds(number: int) -> list[list[tuple[str | None, bytes]]]:
    """Publishes four batches that write keys 0 to 9, and delete one of them."""
    made: list[list[tuple[str | None, bytes]]] = [
        [(f"k{key}", f"{number}-{key}".encode()) for key in range(start, start + 3)]
        for start in (0, 3, 6)
    ]
    return [*made, [(f"k{number}", b""), (None, b"nobody"), ("k9", b"x")]]


def test_the_artifact_and_then_the_log_without_a_seam(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(8):
        write(client, topic, rounds(number))
    rig.compact("--topic", topic, capsys=capsys)
    expected = [each[2:] for each in compacted(rig.raw(topic))]
    with closing(reader(client, topic)) as source:
        assert read(source) == expected
        # Everything that is written from now on comes from the log.
        write(client, topic, rounds(0))
        behind = [(key or "", value) for inside in rounds(0) for key, value in inside]
        assert read(source) == behind
    # Another reader is half-way through: the new artifact continues at its position.
    with closing(reader(client, topic, receiver_queue_size=1)) as source:
        first = source.read_next(RECEIVE_MS)
        rig.compact("--topic", topic, capsys=capsys)
        rest = read(source)
        assert {key for key, _ in rest} | {first.partition_key()} >= {f"k{n}" for n in range(1, 10)}
    with closing(reader(client, topic)) as source:
        assert read(source) == [each[2:] for each in compacted(rig.raw(topic))]
    # A consumer without `read_compacted` sees everything.
    with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as source:
        count = 0
        while source.has_message_available():
            source.read_next(RECEIVE_MS)
            count += 1
        assert count == 9 * 12


def test_what_was_trimmed_is_read_from_the_artifact(
    rig: CompactRig,
    cluster: LocalCluster,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(8):
        write(client, topic, rounds(number))
    rig.compact("--topic", topic, capsys=capsys)
    expected = [each[2:] for each in compacted(rig.raw(topic))]
    admin = Admin(cluster, topic)
    # The whole log is trimmed; the newest ledger is closed for that.
    status, _ = admin.ask("DELETE", "/truncate")
    assert status == 204
    assert admin.ask("GET", "/internalStats")[1]["numberOfEntries"] == 0
    for consumer in _readers(client, topic):
        assert read_all(consumer, expected) == expected
    # A durable subscription continues after the artifact; a seek moves it back.
    write(client, topic, [[("k5", b"late")]])
    with closing(_subscribed(client, topic, "durable")) as consumer:
        assert consumer.receive(RECEIVE_MS).data() == b"late"
        consumer.seek(pulsar.MessageId.earliest)
        both = [*expected, ("k5", b"late")]
        assert read_all(consumer, both) == both


def _readers(client: pulsar.Client, topic: str) -> Iterator[Any]:
    with closing(_subscribed(client, topic, "durable")) as consumer:
        yield consumer
    with closing(_subscribed(client, topic, "other", pulsar.ConsumerType.Failover)) as consumer:
        yield consumer


def _subscribed(client: pulsar.Client, topic: str, name: str, kind: Any = EXCLUSIVE) -> Any:
    return client.subscribe(topic, name, kind, is_read_compacted=True, initial_position=EARLIEST)


def read_all(consumer: Any, expected: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Receives the expected number of messages with keys, and acks up to the last."""
    found: list[tuple[str, bytes]] = []
    while len(found) < len(expected):
        message = consumer.receive(RECEIVE_MS)
        if message.partition_key():
            found.append((message.partition_key(), message.data()))
    consumer.acknowledge_cumulative(message)
    return found


def test_acknowledging_one_by_one_what_was_trimmed_is_not_kept(
    rig: CompactRig,
    cluster: LocalCluster,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are redelivered, so none is lost; after a cumulative ack they are not."""
    write(client, topic, rounds(0))
    rig.compact("--topic", topic, capsys=capsys)
    expected = [each[2:] for each in compacted(rig.raw(topic))]
    assert Admin(cluster, topic).ask("DELETE", "/truncate")[0] == 204
    with closing(_subscribed(client, topic, "durable")) as consumer:
        found: list[tuple[str, bytes]] = []
        while len(found) < len(expected):
            message = consumer.receive(RECEIVE_MS)
            consumer.acknowledge(message)
            if message.partition_key():
                found.append((message.partition_key(), message.data()))
        assert found == expected
    with closing(_subscribed(client, topic, "durable")) as consumer:
        assert read_all(consumer, expected) == expected  # acks the last one cumulatively
    write(client, topic, [[("k5", b"behind")]])
    with closing(_subscribed(client, topic, "durable")) as consumer:
        assert consumer.receive(RECEIVE_MS).data() == b"behind"


def test_a_topic_of_which_nothing_is_left(
    rig: CompactRig, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(client, topic, [[("a", b"1"), ("b", b"1")], [("a", b""), ("b", b"")]])
    rig.compact("--topic", topic, capsys=capsys)
    with closing(reader(client, topic)) as source:
        assert not source.has_message_available()
        write(client, topic, [[("a", b"2")]])
        assert read(source) == [("a", b"2")]


def test_rest(
    rig: CompactRig,
    cluster: LocalCluster,
    client: pulsar.Client,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = Admin(cluster, topic)
    assert admin.ask("PUT", "/compaction")[0] == 404
    for number in range(3):
        write(client, topic, rounds(number))
    assert admin.ask("GET", "/compaction") == (200, {"status": "NOT_RUN", "lastError": ""})
    assert admin.ask("PUT", "/compaction") == (204, None)
    assert admin.ask("PUT", "/compaction") == (
        409,
        {"reason": "Compaction already in progress"},
    )
    assert admin.ask("GET", "/compaction")[1]["status"] == "RUNNING"
    done = rig.compact("--namespace", "public/default", capsys=capsys)
    assert done["metrics"]["topicsCompacted"] == 1
    assert admin.ask("GET", "/compaction") == (200, {"status": "SUCCESS", "lastError": ""})
    record = rig.record(topic)
    assert record is not None
    stats = admin.ask("GET", "/stats")[1]["compaction"]
    assert stats["lastCompactionSucceedTimestamp"] == record.compacted_ms
    assert stats["lastCompactionRemovedEventCount"] == record.messages_removed > 0
    ledger = admin.ask("GET", "/internalStats")[1]["compactedLedger"]
    assert (ledger["entries"], ledger["size"]) == (record.entries, record.length_bytes)
    # Requested again: the status says that nothing is new.
    assert admin.ask("PUT", "/compaction") == (204, None)
    rig.compact("--namespace", "public/default", capsys=capsys)
    assert admin.ask("GET", "/compaction")[1]["status"] == "SUCCESS"
    # The topic's deletion deletes its artifact and its record, too.
    assert admin.ask("DELETE", "?force=true")[0] == 204
    assert rig.record(topic) is None
    assert rig.request(topic) is None
    rig.compact(
        "--namespace", "public/default", capsys=capsys
    )  # files that the broker had not deleted
    assert rig.files() == set()


def test_only_exclusive_and_failover(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        _subscribed(client, topic, "s", pulsar.ConsumerType.Shared)

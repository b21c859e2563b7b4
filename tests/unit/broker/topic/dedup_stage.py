"""Messages of named producers, a topic's crash, and what the topic has stored."""

from collections.abc import Sequence

from tests.unit.broker.topic.stage import ProducerSink, Stage, new_producer
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import Producer
from magnetar.core.ids import EARLIEST, Position
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, parse_metadata, payload_of
from magnetar.wire.events import SendRun


def entry(
    name: str,
    first: int,
    last: int | None = None,
    *,
    text: str = "",
    chunk: tuple[int, int] | None = None,
) -> bytes:
    """An entry of one message, of a batch of the ids `first` to `last`, or of one chunk."""
    metadata = MessageMetadata(producer_name=name, sequence_id=first, publish_time=1_000)
    if last is not None:
        metadata.num_messages_in_batch = last - first + 1
        metadata.highest_sequence_id = last
    if chunk is not None:
        metadata.uuid = f"{name}-{first}"
        metadata.chunk_id, metadata.num_chunks_from_msg = chunk
    return build_entry(metadata, text.encode())


def run_of_entries(producer: Producer, entries: Sequence[bytes]) -> SendRun:
    """The run of these entries, as the decoder makes it."""
    parsed = [parse_metadata(data) for data in entries]
    return SendRun(
        producer.producer_id,
        [metadata.sequence_id for metadata in parsed],
        [max(metadata.sequence_id, metadata.highest_sequence_id) for metadata in parsed],
        [metadata.num_messages_in_batch for metadata in parsed],
        list(entries),
        sum(map(len, entries)),
    )


def ids(name: str, *numbers: int) -> list[bytes]:
    """Entries of single messages with these sequence ids."""
    return [entry(name, number, text=f"{name}:{number}") for number in numbers]


async def attach(topic: PersistentTopic, name: str) -> tuple[Producer, ProducerSink]:
    sink = ProducerSink()
    producer = new_producer(sink, name)
    await topic.add_producer(producer)
    return producer, sink


async def send(topic: PersistentTopic, producer: Producer, *entries: bytes) -> None:
    """Publishes the entries as one run, and waits for the answers of everything in flight."""
    topic.publish(producer, run_of_entries(producer, entries))
    while producer.pending_runs:
        await turns(1)
    await turns(5)


async def stored(topic: PersistentTopic) -> list[tuple[str, int, str]]:
    """Producer name, first sequence id and text of every entry, in order."""
    ledger, found = topic.managed_ledger, []
    at = ledger.next_position(EARLIEST)
    while entries := await ledger.read(at, 100, 1 << 20):
        for read in entries:
            metadata = parse_metadata(read.data)
            text = payload_of(read.data).decode()
            found.append((metadata.producer_name, metadata.sequence_id, text))
            at = ledger.next_position(Position(read.ledger_id, read.entry_id))
    return found


async def crashed(stage: Stage, topic: PersistentTopic) -> PersistentTopic:
    """Ends the topic without a write, as kill -9 does, and loads it again."""
    stage.service.open_topics.abandon(lambda _topic: True)
    return await stage.topic(topic.name.local)

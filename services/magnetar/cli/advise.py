"""`magnetar advise`: suggests settings for the producers of a topic from its newest messages.

The entries of a topic show what its producers do: how many messages share an entry, how fast they
come, whether they are compressed. The rules are those of `producer.advise()`. A producer's delay is
not stored; the delay that leads to its batches at its rate takes its place.
"""

import argparse
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.messages import connection
from magnetar.cli.messages.texts import positive_int

if TYPE_CHECKING:
    from magnetar.client.client import Client
    from magnetar.client.message import Message
    from magnetar.client.message_id import MessageId

ENTRIES_DEFAULT: Final = 1000
SAMPLE_BYTES_MAX: Final = 1 << 20
"""Payload of a producer that is compressed to measure what compression would save."""
MESSAGE_S_MAX: Final = 10.0
"""How long a message may take that the broker has announced."""
WORTHWHILE: Final = 0.9
"""Compression is not suggested if it leaves more than this part."""

DESCRIPTION: Final = """\
Reads the newest entries of a topic, without a subscription, and suggests settings for each of its
producers, with the size of batches that they lead to. docs/use/command-line.md has the rules.
`magnetar perf produce --advise` does this for a producer of its own.

Exit status: 0 the topic was read, 1 the connection failed, 2 an argument is wrong.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `advise`."""
    parser = subparsers.add_parser(
        "advise",
        help="suggest settings for the producers of a topic",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic")
    parser.add_argument(
        "-n", "--entries", type=positive_int, default=ENTRIES_DEFAULT, metavar="N",
        help="entries of each partition to read, from its newest ledger (1000)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    connection.add_flags(parser)


@dataclass(slots=True)
class Sample:
    """What the entries of one producer in one partition show."""

    topic: str
    producer: str
    messages: int = 0
    entries: int = 0
    bytes: int = 0
    batched: bool = False
    compression: int = 0
    first_ms: int = 0
    last_ms: int = 0
    payload: bytearray = field(default_factory=bytearray)
    _last: tuple[int, int] = (-1, -1)

    def add(self, message: "Message[Any]") -> None:
        """Counts a message."""
        entry = message.entry
        if entry.place != self._last:
            self._last = entry.place
            self.entries += 1
            self.first_ms = self.first_ms or message.publish_time_ms
            self.last_ms = max(self.last_ms, message.publish_time_ms)
            self.batched = self.batched or entry.batch_size > 0
            self.compression = int(entry.metadata.compression)
        self.messages += 1
        self.bytes += len(message.data)
        if len(self.payload) < SAMPLE_BYTES_MAX:
            self.payload += message.data[: SAMPLE_BYTES_MAX - len(self.payload)]

    @property
    def elapsed_s(self) -> float:
        """From the first entry to the last; 0 for one entry."""
        return max(self.last_ms - self.first_ms, 0) / 1000

    @property
    def rate(self) -> float:
        """Messages per second between the first and the last entry."""
        return self.messages / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def compressed_part(self) -> float:
        """The part of the payload that zlib leaves, the fastest compression that is built in."""
        if not self.payload:
            return 1.0
        return len(zlib.compress(self.payload, 1)) / len(self.payload)


def suggestions(sample: Sample) -> list[dict[str, Any]]:
    """Returns suggested settings with reasons and predictions, as JSON documents."""
    from magnetar.client.options import Batching, Compression, ProducerOptions
    from magnetar.client.producer.advice import advice
    from magnetar.client.producer.stats import ProducerStats

    mean = sample.messages / sample.entries if sample.entries else 0.0
    batching = None
    if sample.batched and sample.rate:
        # m = 1 + r * d: a batch has one message and those that come in its delay.
        batching = Batching(delay_s=max((mean - 1) / sample.rate, 0.0))
    options = ProducerOptions(batching=batching, compression=Compression(sample.compression))
    stats = ProducerStats(
        messages_sent=sample.messages,
        bytes_sent=sample.bytes,
        entries_sent=sample.entries,
        wire_bytes_sent=sample.bytes,
        batches_by_time=sample.entries,
    )
    documents = []
    for item in advice(options, stats, sample.elapsed_s):
        reason = item.reason
        if item.setting == "compression":
            part = sample.compressed_part
            if part > WORTHWHILE:
                continue
            reason += f"; zlib would leave {part:.0%} of them"
        documents.append(
            {
                "setting": item.setting,
                "value": _value(item.value),
                "reason": reason,
                "messagesPerEntry": item.messages_per_entry,
            }
        )
    return documents


def _value(value: object) -> object:
    from enum import Enum

    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, int | float) else str(value)


def document_of(sample: Sample) -> dict[str, Any]:
    """Returns the figures of a producer, and what is suggested to it."""
    from magnetar.client.options import Compression

    return {
        "topic": sample.topic,
        "producer": sample.producer,
        "entries": sample.entries,
        "messages": sample.messages,
        "messagesPerEntry": round(sample.messages / sample.entries, 2),
        "messagesPerSecond": round(sample.rate, 1),
        "bytesPerMessage": round(sample.bytes / sample.messages, 1),
        "compression": Compression(sample.compression).name,
        "advice": suggestions(sample),
    }


def lines(document: dict[str, Any]) -> list[str]:
    """Returns the document of a producer as text."""
    head = (
        f"{document['topic']}, producer {document['producer']}: "
        f"{document['messagesPerSecond']} msg/s, {document['messagesPerEntry']} per entry, "
        f"{document['bytesPerMessage']} bytes each, compression {document['compression']} "
        f"({document['entries']} entries)"
    )
    text = [head]
    for item in document["advice"]:
        line = f"  {item['setting']} = {item['value']}: {item['reason']}"
        if item["messagesPerEntry"] is not None:
            line += f"; predicts {item['messagesPerEntry']:.1f} messages per entry"
        text.append(line)
    if not document["advice"]:
        text.append("  no advice: the settings fit, or fewer than 50 entries were read")
    return text


def run(args: argparse.Namespace) -> int:
    """Prints the advice; returns the exit code of DESCRIPTION."""
    from magnetar.cli.messages.session import run as run_session

    return run_session("advise", lambda: _work(args))


async def _work(args: argparse.Namespace) -> int:
    documents = []
    async with connection.client_of(args) as client:
        for topic in await client.partitions(args.topic):
            samples = await _samples(client, topic, args.entries)
            documents += [document_of(sample) for sample in samples]
    if args.json:
        print(json.dumps(documents))
        return 0
    for document in documents:
        for line in lines(document):
            print(line)
    if not documents:
        print(f"{args.topic} has no messages")
    return 0


async def _samples(client: "Client", topic: str, entries: int) -> list[Sample]:
    from magnetar.client.errors import OperationTimeout
    from magnetar.client.message_id import MessageId

    async with client.reader(topic, create_topic=False, receiver_queue_size=1) as reader:
        (last,) = await reader.last_message_ids()
    # Not before the newest ledger: how many entries older ledgers have is not known here.
    start = MessageId(last.ledger_id, max(last.entry_id - entries, -1))
    samples: dict[str, Sample] = {}
    async with client.reader(topic, start, create_topic=False) as reader:
        try:
            while last.entry_id >= 0:
                message = await reader.read(MESSAGE_S_MAX)
                if message.entry.place > (last.ledger_id, last.entry_id):
                    break
                name = message.producer_name
                samples.setdefault(name, Sample(topic, name)).add(message)
                if _is_last(message, last):
                    break
        except OperationTimeout:
            pass  # the last entry is not for users: a marker, or of an aborted transaction
    return [samples[name] for name in sorted(samples)]


def _is_last(message: "Message[Any]", last: "MessageId") -> bool:
    entry = message.entry
    return bool(
        entry.place == (last.ledger_id, last.entry_id)
        and message.batch_index >= entry.batch_size - 1
    )

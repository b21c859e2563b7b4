"""`magnetar perf consume` and `perf read`: receive messages, report throughput and latencies.

The latency of a message is the time since its producer sent it, by two clocks, in milliseconds.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.cli.messages import connection, texts
from magnetar.cli.messages.errors import UsageFailed
from magnetar.cli.messages.pacing import Pacer
from magnetar.cli.perf import flags, lines
from magnetar.cli.perf.meter import Meter
from magnetar.cli.perf.tasks import until_over

if TYPE_CHECKING:
    from magnetar.client.client import Client
    from magnetar.client.consumer.consumer import Consumer
    from magnetar.client.consumer.reader import Reader
    from magnetar.client.message import Message

TURN_MESSAGES: Final = 200
"""Messages that are handled in one turn of the event loop."""


def add_consume_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of pulsar-perf consume."""
    flags.add_common(parser)
    flags.add_subscriptions(parser, position="Latest", kind="Exclusive")
    add = parser.add_argument
    add("-n", "--num-consumers", type=int, default=1, metavar="N", help="per subscription (1)")
    add("-m", "--num-messages", type=int, default=0, metavar="N", help="end after N messages")
    add("-r", "--rate", type=float, default=0.0, metavar="N", help="at most N messages/s")
    add(
        *("-p", "--receiver-queue-size-across-partitions"),
        type=int, default=50_000, metavar="N", help="(50000)",
    )  # fmt: skip
    add("-aq", "--auto-scaled-receiver-queue-size", action="store_true")
    add("--acks-delay-millis", type=float, default=100.0, metavar="MS", help="(100)")
    add("--batch-index-ack", action="store_true", help="acknowledge messages of batches")
    add("-mc", "--max_chunked_msg", type=int, default=0, metavar="N", help="incomplete messages")
    add("-ac", "--auto_ack_chunk_q_full", action="store_true", help="acknowledge the oldest")
    add(
        *("-e", "--expire_time_incomplete_chunked_messages"),
        type=float, default=0.0, metavar="MS", help="of incomplete messages",
    )  # fmt: skip
    add("-v", "--encryption-key-value-file", metavar="FILE", help="the private key")
    transactional = ("-txn", "--txn-enable"), ("-abort",)
    flags.refuse(
        parser,
        *(flags.Refused(names, flags.TXN, takes_value=False) for names in transactional),
        flags.Refused(("-nmt", "--numMessage-perTransaction"), flags.TXN),
        flags.Refused(("-ntxn",), flags.TXN),
        flags.Refused(("-tto", "--txn-timeout"), flags.TXN),
        flags.Refused(("-pm", "--pool-messages"), "Python has no pool of buffers"),
        flags.HISTOGRAM_FILE,
    )


def add_read_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of pulsar-perf read."""
    flags.add_common(parser)
    add = parser.add_argument
    add(
        *("-m", "--start-message-id"), type=_start, default=_start("earliest"), metavar="ID",
        help="earliest, latest or LEDGER:ENTRY (earliest)",
    )  # fmt: skip
    add("-n", "--num-messages", type=int, default=0, metavar="N", help="end after N messages")
    add("-r", "--rate", type=float, default=0.0, metavar="N", help="at most N messages/s")
    add("-q", "--receiver-queue-size", type=int, default=1000, metavar="N", help="(1000)")
    flags.refuse(
        parser,
        flags.Refused(("--use-tls",), "give a pulsar+ssl:// URL", takes_value=False),
    )


def _start(text: str) -> texts.Position:
    position = texts.position(text)
    if position.kind == "time":
        raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest or LEDGER:ENTRY")
    return position


class Source(Protocol):
    """A consumer or a reader."""

    async def next(self) -> "Message[Any]":
        """Waits for a message."""

    def next_nowait(self) -> "Message[Any] | None":
        """Returns a message that has arrived already."""

    async def handled(self, message: "Message[Any]") -> None:
        """Acknowledges a message."""


class _Consumed:
    def __init__(self, consumer: "Consumer[Any]") -> None:
        self.next: Callable[[], Awaitable[Message[Any]]] = consumer.receive
        self.next_nowait = consumer.receive_nowait
        self.handled = consumer.ack


class _Read:
    def __init__(self, reader: "Reader[Any]") -> None:
        self.next: Callable[[], Awaitable[Message[Any]]] = reader.read
        self.next_nowait = reader.read_nowait

    async def handled(self, message: "Message[Any]") -> None:
        """Readers acknowledge nothing."""


async def consume(args: argparse.Namespace) -> int:
    """Receives until the end of the run; returns the exit code."""
    topics = flags.topics_of(args.topics, args.num_topics, "-")
    options = consumer_keywords(args)
    names = flags.subscriptions_of(args)
    if args.subscription_type == "Exclusive" and args.num_consumers > 1:
        raise UsageFailed("--num-consumers above 1 needs another --subscription-type")
    meter = Meter(limit=args.num_messages, duration_s=args.test_time, as_json=args.json)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connection.client_of(args, **flags.client_keywords(args))
        )
        sources: list[Any] = [
            _Consumed(await stack.enter_async_context(client.consumer(topic, name, **options)))
            for topic in topics
            for name in names
            for _ in range(args.num_consumers)
        ]
        await _measure(args, sources, meter, lines.received_line)
    elapsed_s = meter.elapsed_s
    rate, mbit = meter.messages / elapsed_s, lines.megabits(meter.bytes) / elapsed_s
    meter.total(
        lines.total_received(meter.messages, rate, mbit, meter.messages, elapsed_s),
        lines.total_latency(meter.whole, whole=True),
    )
    return 0


def consumer_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the consumers."""
    from magnetar.client.options import InitialPosition, SubscriptionType

    options: dict[str, Any] = {
        "type": SubscriptionType[args.subscription_type.upper()],
        "initial_position": InitialPosition[args.subscription_position.upper()],
        "receiver_queue_size": args.receiver_queue_size,
        "receiver_queue_total": args.receiver_queue_size_across_partitions,
        "auto_scale_receiver_queue": args.auto_scaled_receiver_queue_size,
        "ack_group_s": args.acks_delay_millis / 1000,
        "batch_index_ack": args.batch_index_ack,
        "replicate_subscription": args.replicated,
        "chunk_ack_oldest": args.auto_ack_chunk_q_full,
    }
    if args.max_chunked_msg:
        options["chunks_pending_max"] = args.max_chunked_msg
    if args.expire_time_incomplete_chunked_messages:
        options["chunk_expiry_s"] = args.expire_time_incomplete_chunked_messages / 1000
    if args.encryption_key_value_file:
        from magnetar.client.crypto.api import Decryption, KeyFiles

        options["decryption"] = Decryption(KeyFiles(private=args.encryption_key_value_file))
    return options


async def read(args: argparse.Namespace) -> int:
    """Reads until the end of the run; returns the exit code."""
    topics = flags.topics_of(args.topics, args.num_topics, "-")
    meter = Meter(limit=args.num_messages, duration_s=args.test_time, as_json=args.json)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connection.client_of(args, **flags.client_keywords(args))
        )
        sources: list[Any] = [
            _Read(await stack.enter_async_context(_reader(client, args, topic))) for topic in topics
        ]
        await _measure(args, sources, meter, lines.read_line)
    elapsed_s = meter.elapsed_s
    rate, mbit = meter.messages / elapsed_s, lines.megabits(meter.bytes) / elapsed_s
    meter.total(
        lines.total_read(meter.messages, rate, mbit), lines.total_latency(meter.whole, whole=True)
    )
    return 0


def _reader(client: "Client", args: argparse.Namespace, topic: str) -> Any:
    from magnetar.client.message_id import EARLIEST, LATEST, MessageId

    start: texts.Position = args.start_message_id
    if start.kind == "id":
        message_id = MessageId(*start.message_id)
    else:
        message_id = EARLIEST if start.kind == "earliest" else LATEST
    return client.reader(topic, message_id, receiver_queue_size=args.receiver_queue_size)


async def _measure(
    args: argparse.Namespace,
    sources: Sequence[Source],
    meter: Meter,
    line: Callable[..., str],
) -> None:
    """Receives from all sources until the run is over or a signal ends it."""
    pacer = Pacer(args.rate) if args.rate else None
    await until_over(
        [_receive(source, meter, pacer) for source in sources],
        meter.report(args.interval, line),
        duration_s=args.test_time,
        first=True,
    )


async def _receive(source: Source, meter: Meter, pacer: Pacer | None) -> None:
    """Returns once the run has its number of messages."""
    while True:
        if pacer is not None:
            await pacer.wait()
        message: Message[Any] | None = await source.next()
        now_ms = time.time_ns() // 1_000_000
        turn = 0
        while message is not None:
            if meter.over():
                return
            turn += 1
            meter.done(len(message.data), (now_ms - message.publish_time_ms) * 1000)
            await source.handled(message)
            if meter.over():
                return
            if pacer is not None or turn >= TURN_MESSAGES:
                break
            message = source.next_nowait()
        if turn >= TURN_MESSAGES:
            await asyncio.sleep(0)

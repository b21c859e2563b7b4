"""`magnetar perf produce`: sends messages at a rate, and reports throughput and latencies."""

import argparse
import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from magnetar.cli.messages import connection
from magnetar.cli.messages.errors import FAILED, UsageFailed
from magnetar.cli.perf import flags, lines
from magnetar.cli.perf.meter import Meter
from magnetar.cli.perf.tasks import until_over

if TYPE_CHECKING:
    from magnetar.client.producer.producer import Producer

BURST: Final = 200
"""Messages that are sent in one turn of the event loop."""
SETTLE_S: Final = 30.0
"""How long the end of a run waits for receipts."""
TURN_S: Final = 0.001
"""The shortest pause between two turns of a limited rate."""
RANDOM_KEYS: Final = 2**31
COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
ACCESS_MODES: Final = {
    "Shared": "SHARED",
    "Exclusive": "EXCLUSIVE",
    "WaitForExclusive": "WAIT_FOR_EXCLUSIVE",
    "ExclusiveWithFencing": "EXCLUSIVE_WITH_FENCING",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of pulsar-perf produce."""
    flags.add_common(parser)
    add = parser.add_argument
    add(
        "-r", "--rate", type=float, default=100.0, metavar="N", help="messages/s (100; 0: no limit)"
    )
    add("-s", "--size", type=int, default=1024, metavar="BYTES", help="of a message (1024)")
    add("-m", "--num-messages", type=int, default=0, metavar="N", help="end after N messages")
    add("-n", "--num-producers", type=int, default=1, metavar="N", help="per topic (1)")
    add("--separator", default="-", metavar="TEXT", help="between topic and number (-)")
    add("-pn", "--producer-name", default="", metavar="NAME")
    add("-am", "--access-mode", choices=tuple(ACCESS_MODES), default="Shared")
    add("--send-timeout", type=float, default=0.0, metavar="S", help="(0: none)")
    add("-o", "--max-outstanding", type=int, default=0, metavar="N", help="without a receipt")
    add("-p", "--max-outstanding-across-partitions", type=int, default=0, metavar="N")
    add("-b", "--batch-time-window", type=float, default=1.0, metavar="MS", help="(1)")
    add("-bm", "--batch-max-messages", type=int, default=1000, metavar="N", help="(1000)")
    add("-bb", "--batch-max-bytes", type=int, default=4_194_304, metavar="N", help="(4194304)")
    add("-db", "--disable-batching", action="store_true")
    add("-z", "--compression", choices=COMPRESSIONS, type=str.upper, default="NONE")
    add("-ch", "--chunking", action="store_true", help="split messages that are too large")
    add("-d", "--delay", type=float, default=0.0, metavar="S", help="delay deliveries")
    add("-dr", "--delay-range", type=_range, metavar="A,B", help="random delays in seconds")
    add("-set", "--set-event-time", action="store_true")
    add("-mk", "--message-key-generation-mode", choices=("autoIncrement", "random"))
    add("-f", "--payload-file", metavar="FILE", help="messages are random parts of a file")
    add("-e", "--payload-delimiter", default="\\n", metavar="TEXT", help=r"of its parts (\n)")
    add("-fp", "--format-payload", action="store_true", help="%%i: number, %%t: nanoseconds")
    add("-np", "--partitions", type=int, default=0, metavar="N", help="create topics with N")
    add("-au", "--admin-url", metavar="URL", help="the admin REST, for --partitions")
    add("-k", "--encryption-key-name", metavar="NAME")
    add("-v", "--encryption-key-value-file", metavar="FILE", help="the public key")
    add("-ef", "--exit-on-failure", action="store_true", help="end at the first failure")
    add("--warmup-time", type=float, default=1.0, metavar="S", help="without latencies (1)")
    add("--advise", action="store_true", help="suggest settings at the end")
    transactional = ("-txn", "--txn-enable"), ("-abort",)
    flags.refuse(
        parser,
        *(flags.Refused(names, flags.TXN, takes_value=False) for names in transactional),
        flags.Refused(("-nmt", "--numMessage-perTransaction"), flags.TXN),
        flags.Refused(("-tto", "--txn-timeout"), flags.TXN),
        flags.Refused(("-fc", "--format-class"), "only --format-payload formats"),
        flags.Refused(
            ("-threads", "--num-test-threads"), "a process has one event loop: start several"
        ),
        flags.HISTOGRAM_FILE,
    )


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(",")
    try:
        bounds = int(first), int(last)
    except ValueError:
        bounds = 0, 0
    if not 0 <= bounds[0] < bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not ORIGIN,BOUND such as 1,300")
    return bounds


def producer_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the producers."""
    from magnetar.client.options import AccessMode, Batching, Compression

    batch_messages = args.batch_max_messages
    if args.max_outstanding:  # a batch cannot have more messages than may wait for receipts
        batch_messages = min(batch_messages, args.max_outstanding)
    batching = Batching(
        messages_max=batch_messages,
        bytes_max=args.batch_max_bytes,
        delay_s=args.batch_time_window / 1000,
    )
    options: dict[str, Any] = {
        "access_mode": AccessMode[ACCESS_MODES[args.access_mode]],
        "send_timeout_s": args.send_timeout,
        "max_pending_messages": args.max_outstanding,
        "batching": None if args.disable_batching else batching,
        "compression": Compression[args.compression],
        "chunking": args.chunking,
    }
    if args.max_outstanding_across_partitions:
        if not args.max_outstanding:
            raise UsageFailed("-p needs -o: it is the limit of a topic's partitions together")
        options["max_pending_messages_total"] = args.max_outstanding_across_partitions
    if bool(args.encryption_key_name) != bool(args.encryption_key_value_file):
        raise UsageFailed("--encryption-key-name and --encryption-key-value-file go together")
    if args.encryption_key_name:
        from magnetar.client.crypto.api import Encryption, KeyFiles

        keys = KeyFiles(public=args.encryption_key_value_file)
        options["encryption"] = Encryption([args.encryption_key_name], keys)
    return options


def payloads(args: argparse.Namespace) -> Callable[[int], bytes]:
    """Returns the function from the number of a message to its payload."""
    if not args.payload_file:
        if args.format_payload:
            raise UsageFailed("--format-payload needs --payload-file")
        data = random.randbytes(args.size)
        return lambda _: data
    delimiter = args.payload_delimiter.replace("\\n", "\n")
    try:
        text = Path(args.payload_file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailed(f"--payload-file: {error}") from None
    parts = [part for part in text.split(delimiter) if part]
    if not parts:
        raise UsageFailed(f"--payload-file: {args.payload_file} is empty")
    if not args.format_payload:
        encoded = [part.encode() for part in parts]
        return lambda _: random.choice(encoded)

    def formatted(number: int) -> bytes:
        part = random.choice(parts)
        return part.replace("%i", str(number)).replace("%t", str(time.time_ns())).encode()

    return formatted


def create_partitions(args: argparse.Namespace, topics: list[str]) -> None:
    """Creates partitioned topics; those that exist must have that many partitions."""
    from magnetar.cli import admin_rest
    from magnetar.core.names import parse_topic

    if not args.partitions:
        return
    args.admin_url = args.admin_url or admin_rest.url_default()
    for topic in topics:
        name = parse_topic(topic)
        parts = (name.domain, name.tenant, name.namespace_local, quote(name.local, safe=""))
        path = f"/admin/v2/{'/'.join(map(str, parts))}/partitions"
        try:
            admin_rest.send(args, "PUT", path, str(args.partitions).encode())
        except admin_rest.AdminFailed as error:
            if error.status != admin_rest.CONFLICT:
                raise
            existing = admin_rest.get_json(args, path)["partitions"]
            if existing != args.partitions:
                raise UsageFailed(
                    f"{topic} exists with {existing} partitions, not {args.partitions}"
                ) from None


async def work(args: argparse.Namespace) -> int:
    """Sends until the end of the run; returns the exit code."""
    topics = flags.topics_of(args.topics, args.num_topics, args.separator)
    options = producer_keywords(args)
    payload = payloads(args)
    if args.num_producers < 1 or args.rate < 0:
        raise UsageFailed("--num-producers is at least 1, and --rate at least 0")
    await asyncio.to_thread(create_partitions, args, topics)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connection.client_of(args, **flags.client_keywords(args))
        )
        producers: list[Producer[bytes]] = []
        for topic in topics:
            for _ in range(args.num_producers):
                name = args.producer_name
                if name and len(topics) * args.num_producers > 1:
                    name = f"{name}{args.separator}{len(producers)}"
                producer = client.producer(topic, name=name, **options)
                producers.append(await stack.enter_async_context(producer))
        meter = Meter(limit=args.num_messages, duration_s=args.test_time, as_json=args.json)
        load = _Load(args, producers, payload, meter)
        return await _measure(args, load, meter, producers)


async def _measure(
    args: argparse.Namespace, load: "_Load", meter: Meter, producers: list["Producer[bytes]"]
) -> int:
    if not await until_over([load.run()], meter.report(args.interval, lines.produced_line)):
        await load.settle()
    advice = [item for producer in producers for item in producer.advise()] if args.advise else []
    elapsed_s = meter.elapsed_s
    mbit = lines.megabits(meter.bytes) / elapsed_s
    meter.total(
        lines.total_sent(meter.messages, meter.messages / elapsed_s, mbit),
        lines.total_latency(meter.whole),
        **({"advice": [_advice_document(item) for item in advice]} if args.advise else {}),
    )
    if args.advise and not args.json:
        for item in advice:
            print(advice_line(item))
        if not advice:
            print("Advice: none; the settings fit, or fewer than 50 entries were sent")
    if load.error is not None:
        raise load.error
    return FAILED if meter.failures else 0


def advice_line(item: Any) -> str:
    """Returns a suggestion as text."""
    text = f"Advice: {item.setting} = {item.value}: {item.reason}"
    if item.messages_per_entry is not None:
        text += f"; predicts {item.messages_per_entry:.1f} messages per batch"
    return text


def _advice_document(item: Any) -> dict[str, Any]:
    return {
        "setting": item.setting,
        "value": str(item.value),
        "reason": item.reason,
        "messagesPerEntry": item.messages_per_entry,
    }


class _Load:
    """Sends messages round robin over the producers, at a rate or as fast as they are stored."""

    def __init__(
        self,
        args: argparse.Namespace,
        producers: list["Producer[bytes]"],
        payload: Callable[[int], bytes],
        meter: Meter,
    ) -> None:
        self._args = args
        self._producers = producers
        self._payload = payload
        self._meter = meter
        self._flying: deque[asyncio.Future[Any]] = deque()
        self._warm_at = time.monotonic() + args.warmup_time
        self._keys = self._key_source()
        self._plain = not (
            args.delay or args.delay_range or args.set_event_time
            or args.message_key_generation_mode
        )  # fmt: skip
        self.error: Exception | None = None
        """Why the run ended early."""

    def _key_source(self) -> Iterator[str]:
        if self._args.message_key_generation_mode == "random":
            return (str(random.randrange(RANDOM_KEYS)) for _ in count())
        return map(str, count())

    async def run(self) -> None:
        """Returns once the number of messages is sent, or the time is over."""
        args, meter = self._args, self._meter
        limit, rate = args.num_messages, args.rate
        loop = asyncio.get_running_loop()
        start = loop.time()
        sent = 0
        while not meter.due() and not (limit and sent >= limit) and self.error is None:
            allowed = BURST
            if rate:
                allowed = min(allowed, int((loop.time() - start) * rate) + 1 - sent)
            if limit:
                allowed = min(allowed, limit - sent)
            for _ in range(allowed):
                await self._send(self._producers[sent % len(self._producers)], sent)
                sent += 1
            pause_s = 0.0
            if rate:
                pause_s = max(start + sent / rate - loop.time(), 0.0 if allowed > 0 else TURN_S)
            await asyncio.sleep(pause_s)
            self._forget()
        await self.settle()

    async def settle(self) -> None:
        """Waits for the receipts of what was sent."""
        from magnetar.client.errors import ClientError

        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                for producer in self._producers:
                    with suppress(ClientError):  # the messages' own futures have counted it
                        await producer.flush()
        self._forget()

    def _forget(self) -> None:
        while self._flying and self._flying[0].done():
            self._flying.popleft()

    async def _send(self, producer: "Producer[bytes]", number: int) -> None:
        from magnetar.client.errors import MemoryBufferIsFull, ProducerQueueIsFull

        data = self._payload(number)
        fields = {} if self._plain else self._fields()
        while True:
            started = time.monotonic()
            try:
                future = producer.send_nowait(data, **fields)
                break
            except (MemoryBufferIsFull, ProducerQueueIsFull):
                self._forget()
                if not self._flying:
                    raise  # the message alone exceeds the limit
                await asyncio.wait({self._flying[0]})
        size = len(data)
        future.add_done_callback(lambda done: self._receipt(done, started, size))
        self._flying.append(future)

    def _fields(self) -> dict[str, Any]:
        args = self._args
        fields: dict[str, Any] = {}
        if args.message_key_generation_mode:
            fields["key"] = next(self._keys)
        if args.delay_range:
            fields["deliver_after_s"] = random.randrange(*args.delay_range)
        elif args.delay:
            fields["deliver_after_s"] = args.delay
        if args.set_event_time:
            fields["event_time_ms"] = time.time_ns() // 1_000_000
        return fields

    def _receipt(self, done: "asyncio.Future[Any]", started: float, size: int) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._meter.failures += 1
            if self._args.exit_on_failure and isinstance(error, Exception):
                self.error = self.error or error
            return
        now = time.monotonic()
        latency_us = round((now - started) * 1e6) if now >= self._warm_at else None
        self._meter.done(size, latency_us)

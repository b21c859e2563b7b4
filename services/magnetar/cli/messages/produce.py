"""`magnetar produce`: sends messages from arguments, files, or lines of stdin."""

import argparse
import asyncio
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.messages import connection, schema, texts
from magnetar.cli.messages.errors import FAILED, INTERRUPTED, InputFailed, UsageFailed

if TYPE_CHECKING:
    from magnetar.cli.messages.input import Item
    from magnetar.cli.messages.summary import Summary
    from magnetar.client.message_id import MessageId
    from magnetar.client.producer.producer import Producer

IN_FLIGHT_MAX: Final = 10_000
"""Messages without a receipt."""
COMPRESSIONS: Final = ("none", "lz4", "zlib", "zstd", "snappy")
ACCESS_MODES: Final = ("shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing")
LOCAL_CLUSTER: Final = "__local__"
"""The name by which clients of Pulsar turn replication of a message off."""

DESCRIPTION: Final = """\
Sends messages to a topic and waits for their receipts. Messages come from --message, from --file
(each file is one), or from the lines of --lines or stdin.

  magnetar produce orders -m hello -k 1 -p region=eu
  seq 1000 | magnetar produce orders
  magnetar consume orders -s copy --json | magnetar produce orders-2 --json

Exit status: 0 all messages are stored, 1 a message or the connection failed, 2 an argument is
wrong, 130 a signal ended it; what was read before is stored.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `produce`."""
    parser = subparsers.add_parser(
        "produce",
        help="send messages from arguments, files, or lines of stdin",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic")
    _add_input(parser)
    _add_fields(parser)
    schema.add_flags(parser)
    _add_producer(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print no summary")
    parser.add_argument(
        "--print-ids", action="store_true", help="print the id of each message on stdout"
    )
    connection.add_flags(parser)


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("messages")
    group.add_argument(
        "-m", "--message", metavar="TEXT", action="append", default=[], help="a message; repeatable"
    )
    group.add_argument(
        "-f", "--file", metavar="FILE", action="append", default=[],
        help="a file whose content is a message; repeatable",
    )  # fmt: skip
    group.add_argument(
        "-l", "--lines", metavar="FILE", help="a message per line of a file (stdin: -)"
    )
    group.add_argument(
        "-D", "--delimiter", type=texts.delimiter, default=b"\n", metavar="TEXT",
        help=r"what ends a line (\n)",
    )  # fmt: skip
    group.add_argument(
        "-K", "--key-delimiter", type=texts.delimiter, metavar="TEXT",
        help=r"lines are KEY, this text, VALUE; such as : or \t",
    )  # fmt: skip
    group.add_argument(
        "--json", action="store_true", help="lines are objects of `magnetar consume --json`"
    )
    group.add_argument(
        "-i", "--input", choices=("raw", "hex", "base64"), default="raw",
        help="the form of values in lines and --message (raw)",
    )  # fmt: skip
    group.add_argument(
        "-Z", "--null", action="store_true", help="empty values are null: they delete their keys"
    )
    group.add_argument(
        "-n", "--count", type=texts.positive_int, metavar="N",
        help="send --message and --file N times",
    )  # fmt: skip
    group.add_argument(
        "-r", "--rate", type=texts.positive_float, metavar="N", help="at most N messages per second"
    )


def _add_fields(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fields of all messages")
    group.add_argument("-k", "--key", metavar="KEY", help="the key, unless a line has its own")
    group.add_argument("--ordering-key", metavar="KEY", help="the key for Key_Shared consumers")
    group.add_argument(
        "-p", "--property", metavar="NAME=VALUE", type=texts.pair, action="append", default=[],
        help="a property; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--event-time", metavar="TIME", type=texts.time_ms, default=0, help=texts.TIME_FORMS
    )
    group.add_argument(
        "--deliver-after", metavar="S", type=texts.positive_float, default=0.0,
        help="Shared consumers get messages this many seconds after they were sent",
    )  # fmt: skip
    group.add_argument(
        "--deliver-at", metavar="TIME", type=texts.time_ms, default=0, help="or at this time"
    )
    group.add_argument(
        "--replicate-to", metavar="CLUSTER", action="append", default=[],
        help="replicate only to this cluster; repeatable",
    )  # fmt: skip
    group.add_argument(
        "-dr", "--disable-replication", action="store_true", help="do not replicate to others"
    )


def _add_producer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("producer")
    group.add_argument("--name", metavar="NAME", default="", help="the name of the producer")
    group.add_argument("--access-mode", choices=ACCESS_MODES, default="shared")
    group.add_argument("-z", "--compression", choices=COMPRESSIONS, default="none")
    group.add_argument("--no-batching", action="store_true", help="each message is an entry")
    group.add_argument("--batch-messages", type=texts.positive_int, metavar="N", help="(1000)")
    group.add_argument("--batch-bytes", type=texts.positive_int, metavar="N", help="(131072)")
    group.add_argument(
        "--batch-delay", type=texts.positive_float, metavar="MS", help="milliseconds (10)"
    )
    group.add_argument("--batch-by-key", action="store_true", help="a batch per key")
    group.add_argument(
        "-c", "--chunking", action="store_true",
        help="send messages larger than the broker's maximum in pieces",
    )  # fmt: skip
    group.add_argument(
        "--partition", type=int, metavar="N", help="send messages without a key to this partition"
    )
    group.add_argument(
        "--send-timeout", type=float, metavar="S", help="seconds until a message fails (30)"
    )
    group.add_argument(
        "--encrypt-key", metavar="NAME", action="append", default=[],
        help="encrypt for this key; repeatable, needs --public-key",
    )  # fmt: skip
    group.add_argument("--public-key", metavar="FILE", help="the public key, in PEM")


def run(args: argparse.Namespace) -> int:
    """Sends the messages; returns the exit code of DESCRIPTION."""
    from magnetar.cli.messages.session import run as run_session

    return run_session("produce", lambda: _work(args))


async def _work(args: argparse.Namespace) -> int:
    from magnetar.cli.messages.summary import Summary

    _check(args)
    declared, options = schema.schema_of(args), producer_options(args)
    summary = Summary("sent", args.quiet)
    sender = Sender(args, summary)
    code = 0
    try:
        async with (
            connection.client_of(args) as client,
            client.producer(args.topic, schema=declared, **options) as producer,
        ):
            try:
                await sender.send_all(producer)
            finally:
                await producer.close()
                sender.collect()
    except asyncio.CancelledError:
        code = INTERRUPTED
    except BaseException:
        summary.print()
        raise
    if sender.error is not None:
        summary.notes.append(f"{sender.failed} failed")
        print(f"magnetar produce: {sender.error}", file=sys.stderr)
        code = FAILED
    summary.print(interrupted=code == INTERRUPTED)
    return code


def _check(args: argparse.Namespace) -> None:
    given = bool(args.message or args.file)
    batch = args.batch_messages or args.batch_bytes or args.batch_delay or args.batch_by_key
    refusals = (
        (given and args.lines, "--lines excludes --message and --file"),
        (given and args.json, "--json describes lines, and excludes --message and --file"),
        (given and args.key_delimiter, "--key-delimiter is for lines: give --key"),
        (args.count and not given, "--count repeats --message and --file; lines are sent once"),
        (
            args.json and (args.key_delimiter or args.null or args.input != "raw"),
            "--json excludes --key-delimiter, --null and --input: objects have all of that",
        ),
        (args.deliver_at and args.deliver_after, "give --deliver-at or --deliver-after, not both"),
        (args.no_batching and batch, "--no-batching excludes the options of batches"),
        (
            args.disable_replication and args.replicate_to,
            "--disable-replication excludes --replicate-to",
        ),
        (
            bool(args.encrypt_key) != bool(args.public_key),
            "--encrypt-key and --public-key go together",
        ),
    )
    for refused, reason in refusals:
        if refused:
            raise UsageFailed(reason)


def producer_options(args: argparse.Namespace) -> Any:
    """Returns the keywords of `client.producer`."""
    from magnetar.client.options import AccessMode, Batching, Compression, SinglePartition

    batch: dict[str, Any] = {"by_key": args.batch_by_key}
    if args.batch_messages:
        batch["messages_max"] = args.batch_messages
    if args.batch_bytes:
        batch["bytes_max"] = args.batch_bytes
    if args.batch_delay:
        batch["delay_s"] = args.batch_delay / 1000
    options: dict[str, Any] = {
        "name": args.name,
        "access_mode": AccessMode[args.access_mode.upper()],
        "compression": Compression[args.compression.upper()],
        "batching": None if args.no_batching else Batching(**batch),
        "chunking": args.chunking,
    }
    if args.partition is not None:
        options["routing"] = SinglePartition(partition=args.partition)
    if args.send_timeout is not None:
        options["send_timeout_s"] = args.send_timeout
    if args.encrypt_key:
        from magnetar.client.crypto.api import Encryption, KeyFiles

        options["encryption"] = Encryption(args.encrypt_key, KeyFiles(public=args.public_key))
    return options


class Sender:
    """Keeps messages in flight, and counts their receipts in order."""

    def __init__(self, args: argparse.Namespace, summary: "Summary") -> None:
        self._args = args
        self._summary = summary
        self._flying: deque[tuple[asyncio.Future[MessageId], int]] = deque()
        self._properties = dict(args.property)
        self._replicate_to = (LOCAL_CLUSTER,) if args.disable_replication else args.replicate_to
        self._ordering_key = None if args.ordering_key is None else args.ordering_key.encode()
        self.error: Exception | None = None
        """The first failure; nothing is sent after it."""
        self.failed = 0

    async def send_all(self, producer: "Producer[bytes]") -> None:
        """Sends all messages of the input, and waits for their receipts."""
        from magnetar.cli.messages.input import items
        from magnetar.cli.messages.pacing import Pacer
        from magnetar.client.errors import ClientError

        pacer = Pacer(self._args.rate) if self._args.rate else None
        async for item in items(self._args):
            if pacer is not None:
                await pacer.wait()
            await self._send(producer, item)
            self.collect()
            if self.error is not None:
                break
        with suppress(ClientError):  # it is the error of a message, which `collect` finds
            await producer.flush()
        self.collect()

    async def _send(self, producer: "Producer[bytes]", item: "Item") -> None:
        from magnetar.client.errors import MemoryBufferIsFull, ProducerQueueIsFull, SchemaFailed

        fields = self._fields(item)
        while True:
            if len(self._flying) < IN_FLIGHT_MAX:
                try:
                    future = producer.send_nowait(item.value, **fields)
                except (MemoryBufferIsFull, ProducerQueueIsFull):
                    if not self._flying:
                        raise  # the message alone exceeds the limit
                except SchemaFailed as error:
                    where = f"line {item.line}" if item.line else "the value"
                    raise InputFailed(f"{where}: {error}") from None
                else:
                    self._flying.append((future, len(item.value or b"")))
                    return
            await self._oldest()
            self.collect()

    def _fields(self, item: "Item") -> dict[str, Any]:
        args = self._args
        own_key = item.key is not None or item.key_bytes is not None
        return {
            "key": item.key if own_key else args.key,
            "key_bytes": item.key_bytes,
            "ordering_key": item.ordering_key or self._ordering_key,
            "properties": {**self._properties, **item.properties},
            "event_time_ms": item.event_time_ms or args.event_time,
            "deliver_at_ms": item.deliver_at_ms or args.deliver_at,
            "deliver_after_s": 0.0 if item.deliver_at_ms else args.deliver_after,
            "replicate_to": tuple(self._replicate_to),
        }

    async def _oldest(self) -> None:
        await asyncio.wait({self._flying[0][0]})

    def collect(self) -> None:
        """Counts the receipts that have arrived, in the order of the messages."""
        while self._flying and self._flying[0][0].done():
            future, size = self._flying.popleft()
            if future.cancelled():
                continue
            error = future.exception()
            if error is not None:
                self.failed += 1
                if self.error is None and isinstance(error, Exception):
                    self.error = error
                continue
            self._summary.messages += 1
            self._summary.bytes += size
            if self._args.print_ids:
                print(future.result(), flush=True)

"""`magnetar read`: prints messages of topics from a position on, without a subscription."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.messages import connection, output, texts
from magnetar.cli.messages.consume import add_decryption, add_end, decryption_of
from magnetar.cli.messages.errors import INCOMPLETE, INTERRUPTED, UsageFailed

if TYPE_CHECKING:
    from magnetar.cli.messages.texts import Position
    from magnetar.client.client import Client
    from magnetar.client.consumer.reader import Reader
    from magnetar.client.message import Message

AVAILABLE_S: Final = 10.0
"""How long a message may take that the broker has announced. It never comes if it is not for
users, such as the last message of an aborted transaction."""

DESCRIPTION: Final = """\
Prints the messages of topics from a position on, and leaves nothing behind: no subscription, no
acknowledgment. Ends at the end of the topics, or after --count messages, which it waits for; with
--follow, on Ctrl-C.

  magnetar read orders
  magnetar read orders --start 10m --follow --json
  magnetar read orders --start 12:0:-1 -n 5

Exit status: 0 it has ended as described, 1 the connection failed or a request was refused, 2 an
argument is wrong, 3 fewer than --count messages came before --timeout, 130 a signal came before
--count.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `read`."""
    parser = subparsers.add_parser(
        "read",
        help="print the messages of topics from a position on",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", nargs="+", help="a topic, or several")
    add_end(parser, "print this many messages, and wait for them")
    parser.add_argument(
        "--start", type=texts.position, default=texts.Position("earliest"), metavar="POSITION",
        help=f"earliest, latest, a message id, or a publish time: {texts.TIME_FORMS} (earliest)",
    )  # fmt: skip
    parser.add_argument(
        "--exclusive", action="store_true", help="begin after the message of --start ID"
    )
    parser.add_argument("--name", metavar="NAME", default="", help="the name of the reader")
    parser.add_argument("--queue-size", type=int, metavar="N", help="messages received ahead")
    parser.add_argument("--read-compacted", action="store_true", help="only the latest of each key")
    add_decryption(parser)
    output.add_flags(parser)
    connection.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the messages; returns the exit code of DESCRIPTION."""
    from magnetar.cli.messages.session import run as run_session

    return run_session("read", lambda: _work(args))


async def _work(args: argparse.Namespace) -> int:
    from magnetar.cli.messages.summary import Summary

    output.check(args)
    if args.count and args.follow:
        raise UsageFailed("--follow excludes --count")
    if args.exclusive and args.start.kind != "id":
        raise UsageFailed("--exclusive needs --start with a message id")
    summary = Summary("read", args.quiet)
    render = output.renderer(args)
    interrupted = False
    try:
        async with connection.client_of(args) as client, await _opened(args, client) as reader:
            await output.copy(
                _Read(reader, args.timeout, to_end=not args.count and not args.follow),
                render,
                summary,
                count=args.count,
                rate=args.rate,
                written=_nothing,
            )
    except asyncio.CancelledError:
        interrupted = True
    except BrokenPipeError:
        raise
    except BaseException:
        summary.print()
        raise
    output.note_unreadable(render, summary)
    summary.print(interrupted=interrupted)
    if args.count and summary.messages < args.count:
        return INTERRUPTED if interrupted else INCOMPLETE
    return 0


async def _nothing(group: list["Message[Any]"]) -> None:
    """Readers acknowledge nothing."""


async def _opened(args: argparse.Namespace, client: "Client") -> "Reader[Any]":
    from magnetar.client.message_id import EARLIEST, LATEST

    start: Position = args.start
    options: dict[str, Any] = {
        "name": args.name,
        "read_compacted": args.read_compacted,
        "inclusive": start.kind == "id" and not args.exclusive,
        "decryption": decryption_of(args),
        "create_topic": False,
        "schema": output.schema_of(args),
    }
    if args.queue_size is not None:
        options["receiver_queue_size"] = args.queue_size
    message_id = EARLIEST
    topics = args.topic
    if start.kind == "id":
        message_id, topics = await _at_id(client, topics, start)
    elif start.kind == "latest":
        message_id = LATEST
    reader: Reader[Any] = await client.reader(topics, message_id, **options)
    if start.kind == "time":
        try:
            await reader.seek(start.time_ms)
        except BaseException:
            await reader.close()
            raise
    return reader


async def _at_id(client: "Client", topics: list[str], start: "Position") -> tuple[Any, list[str]]:
    """Returns the message id, and the topic or partition that has it."""
    from magnetar.client.message_id import MessageId

    message_id = MessageId(*start.message_id)
    if len(topics) > 1:
        raise UsageFailed("a message id belongs to one topic: name only that, or --start a time")
    partitions = await client.partitions(topics[0])
    if len(partitions) == 1:
        return message_id, partitions
    if not 0 <= message_id.partition < len(partitions):
        raise UsageFailed(
            f"{topics[0]} has {len(partitions)} partitions: give an id with its partition, "
            "LEDGER:ENTRY:PARTITION, which reads that partition, or --start a time"
        )
    return message_id, [partitions[message_id.partition]]


class _Read:
    """A reader as a source of the output."""

    def __init__(self, reader: "Reader[Any]", timeout_s: float | None, *, to_end: bool) -> None:
        self._reader = reader
        self._timeout_s = timeout_s
        self._to_end = to_end

    async def next(self) -> "Message[Any] | None":
        from magnetar.client.consumer.consumer import EndOfTopics
        from magnetar.client.errors import OperationTimeout

        timeout_s = self._timeout_s
        try:
            if self._to_end:
                if not await self._reader.has_message_available():
                    return None
                timeout_s = timeout_s or AVAILABLE_S
            return await self._reader.read(timeout_s)
        except (EndOfTopics, OperationTimeout):
            return None

    def next_nowait(self) -> "Message[Any] | None":
        return self._reader.read_nowait()

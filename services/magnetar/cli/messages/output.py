"""The loop of `consume` and `read`: takes messages in groups, writes them, then acknowledges."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.cli.messages import texts
from magnetar.cli.messages.blocking import write_all
from magnetar.cli.messages.errors import UsageFailed
from magnetar.cli.messages.render import OUTPUTS, Renderer, parse_format
from magnetar.core.tasks import TaskScope

if TYPE_CHECKING:
    from magnetar.cli.messages.summary import Summary
    from magnetar.client.message import Message

GROUP_MESSAGES_MAX: Final = 500
"""Messages that are written at once."""
GROUP_BYTES_MAX: Final = 1 << 20
WRITE_GRACE_S: Final = 1.0
"""How long a signal waits for a write that a pipe blocks."""


class Source(Protocol):
    """Where messages come from: a consumer or a reader."""

    async def next(self) -> "Message[Any] | None":
        """Waits for a message; None at the end."""

    def next_nowait(self) -> "Message[Any] | None":
        """Returns a message that has arrived already."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the output."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object per line")
    group.add_argument(
        "-o", "--output", choices=OUTPUTS, default="text",
        help="the form of values; records of schemas are JSON in text (text)",
    )  # fmt: skip
    group.add_argument(
        "-F", "--format", type=_form, default="", metavar="TEXT",
        help=r"as kcat's: %%s value, %%S its bytes, %%k key, %%K its bytes, %%h properties, "
        r"%%t topic, %%p partition, %%o message id, %%T publish time in ms, %%%%; \n, \t, \xNN",
    )  # fmt: skip
    group.add_argument(
        "-K", "--key-delimiter", type=texts.delimiter, metavar="TEXT",
        help="print KEY and this text before values",
    )  # fmt: skip
    group.add_argument(
        "-D", "--delimiter", type=texts.unescape, default=b"\n", metavar="TEXT",
        help=r"what ends a value (\n)",
    )  # fmt: skip
    group.add_argument(
        "--raw", action="store_true", help="do not decode values by the topic's schema"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print no summary")


def _form(text: str) -> str:
    parse_format(text)
    return text


def check(args: argparse.Namespace) -> None:
    """Raises UsageFailed for options of the output that exclude each other."""
    if args.json and (args.output != "text" or args.format or args.key_delimiter):
        raise UsageFailed("--json excludes --output, --format and --key-delimiter")
    if args.format and args.key_delimiter:
        raise UsageFailed("--format excludes --key-delimiter: use %k")


def renderer(args: argparse.Namespace) -> Renderer:
    """Returns the renderer of the options."""
    return Renderer(
        json=args.json,
        output=args.output,
        form=args.format,
        key_delimiter=args.key_delimiter,
        delimiter=args.delimiter,
        terminal=sys.stdout.isatty(),
    )


def schema_of(args: argparse.Namespace) -> Any:
    """Returns the schema that decodes values."""
    from magnetar.client.schema.api import BYTES
    from magnetar.client.schema.auto_consume import AutoConsumeSchema

    return BYTES if args.raw else AutoConsumeSchema()


async def copy(
    source: Source,
    render: Renderer,
    summary: "Summary",
    *,
    count: int | None,
    rate: float | None,
    written: Callable[[list["Message[Any]"]], Awaitable[None]],
) -> None:
    """Writes messages until the end of `source`, or until `count` of them are written.

    `written` gets each group once it has left this process, so that nothing is acknowledged that
    the reader of a pipe did not get.
    """
    from magnetar.cli.messages.pacing import Pacer

    pacer = Pacer(rate) if rate else None
    output = sys.stdout.fileno()
    while count is None or summary.messages < count:
        if pacer is not None:
            await pacer.wait()
        first = await source.next()
        if first is None:
            return
        left = GROUP_MESSAGES_MAX if count is None else count - summary.messages
        group = _group(source, first, 1 if pacer is not None else min(left, GROUP_MESSAGES_MAX))
        interrupted = await _write(output, b"".join(map(render, group)))
        summary.messages += len(group)
        summary.bytes += sum(len(message.data) for message in group)
        await written(group)
        if interrupted:
            raise asyncio.CancelledError


async def _write(descriptor: int, data: bytes) -> bool:
    """Writes all bytes; returns whether the caller was cancelled meanwhile.

    A cancellation waits for WRITE_GRACE_S, so that what is written is also acknowledged.
    """
    async with TaskScope("output") as tasks:
        writing = tasks.start(write_all(descriptor, data), "write")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait({writing}, timeout=WRITE_GRACE_S)
            if not done:
                raise
            writing.result()
            return True
    return False


def _group(source: Source, first: "Message[Any]", most: int) -> list["Message[Any]"]:
    group = [first]
    size = len(first.data)
    while len(group) < most and size < GROUP_BYTES_MAX:
        message = source.next_nowait()
        if message is None:
            break
        group.append(message)
        size += len(message.data)
    return group


def note_unreadable(render: Renderer, summary: "Summary") -> None:
    """Adds to the summary how many values could not be decoded, and why the first could not."""
    if render.unreadable:
        summary.notes.append(f"{render.unreadable} not decoded: {render.reason}")

"""`magnetar consume`: receives the messages of a subscription, prints and acknowledges them."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.messages import connection, output, texts
from magnetar.cli.messages.errors import INCOMPLETE, INTERRUPTED, UsageFailed

if TYPE_CHECKING:
    from magnetar.cli.messages.summary import Summary
    from magnetar.client.client import Client
    from magnetar.client.consumer.consumer import Consumer
    from magnetar.client.message import Message

IDLE_S: Final = 2.0
"""Without --count, --follow and --timeout, the command ends after this time without a message."""
TYPES: Final = ("exclusive", "shared", "failover", "key_shared")

DESCRIPTION: Final = """\
Receives the messages of a subscription, prints them, and acknowledges each after it is printed.
Ends after --count messages, or once no message has come for --timeout seconds; with --follow, on
Ctrl-C.

  magnetar consume orders -s billing --follow
  magnetar consume orders -s billing -n 10 --json
  magnetar consume 'public/default/orders-.*' --regex -s audit -p earliest

Exit status: 0 it has ended as described, 1 the connection failed or a request was refused, 2 an
argument is wrong, 3 fewer than --count messages came before --timeout, 130 a signal came before
--count.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `consume`."""
    parser = subparsers.add_parser(
        "consume",
        help="print the messages of a subscription, and acknowledge them",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", nargs="+", help="a topic, or several")
    add_end(parser, "print this many messages")
    group = parser.add_argument_group("subscription")
    group.add_argument("-s", "--subscription", metavar="NAME", required=True)
    group.add_argument(
        "-t", "--type", choices=TYPES, type=_lower, default="exclusive", help="(exclusive)"
    )
    group.add_argument(
        "-p", "--initial-position", choices=("latest", "earliest"), type=str.lower,
        default="latest", help="where a new subscription begins (latest)",
    )  # fmt: skip
    group.add_argument("--regex", action="store_true", help="TOPIC is TENANT/NAMESPACE/EXPRESSION")
    group.add_argument(
        "--ack", action=argparse.BooleanOptionalAction, default=True,
        help="acknowledge messages, or leave them to the subscription (--ack)",
    )  # fmt: skip
    group.add_argument(
        "--temporary", action="store_true",
        help="a new subscription is not durable: it ends with the command",
    )  # fmt: skip
    group.add_argument("--name", metavar="NAME", default="", help="the name of the consumer")
    group.add_argument("--queue-size", type=int, metavar="N", help="messages received ahead (1000)")
    group.add_argument("--read-compacted", action="store_true", help="only the latest of each key")
    group.add_argument(
        "--batch-index-ack", action="store_true", help="acknowledge messages of batches one by one"
    )
    group.add_argument(
        "--replicated", action="store_true", help="replicate the state of the subscription"
    )
    add_decryption(group)
    output.add_flags(parser)
    connection.add_flags(parser)


def _lower(text: str) -> str:
    """Accepts the spellings of Pulsar's tools: `Exclusive`, `Key_Shared`."""
    return text.lower()


def add_end(parser: argparse.ArgumentParser, count: str) -> None:
    """Adds the options that say when the command ends."""
    parser.add_argument("-n", "--count", type=texts.positive_int, metavar="N", help=count)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="wait for further messages, until Ctrl-C"
    )
    parser.add_argument(
        "--timeout", type=texts.positive_float, metavar="S",
        help="end once no message has come for this many seconds",
    )  # fmt: skip
    parser.add_argument(
        "-r", "--rate", type=texts.positive_float, metavar="N", help="at most N messages per second"
    )


def add_decryption(group: Any) -> None:
    """Adds the options of decryption."""
    group.add_argument("--private-key", metavar="FILE", help="decrypts messages; RSA in PEM")
    group.add_argument(
        "--crypto-failure", choices=("fail", "discard", "consume"), type=str.lower,
        help="what happens to a message that cannot be decrypted (fail)",
    )  # fmt: skip


def decryption_of(args: argparse.Namespace) -> Any:
    """Returns the decryption of the options; None without."""
    if not args.private_key:
        if args.crypto_failure:
            raise UsageFailed("--crypto-failure needs --private-key")
        return None
    from magnetar.client.crypto.api import CryptoFailure, Decryption, KeyFiles

    return Decryption(
        KeyFiles(private=args.private_key), CryptoFailure(args.crypto_failure or "fail")
    )


def run(args: argparse.Namespace) -> int:
    """Prints the messages; returns the exit code of DESCRIPTION."""
    from magnetar.cli.messages.session import run as run_session

    return run_session("consume", lambda: _work(args))


async def _work(args: argparse.Namespace) -> int:
    from magnetar.cli.messages.summary import Summary

    output.check(args)
    if args.count and args.follow:
        raise UsageFailed("--follow excludes --count")
    if args.regex and len(args.topic) > 1:
        raise UsageFailed("--regex takes one expression: combine them with |")
    summary = Summary("received", args.quiet)
    render = output.renderer(args)
    interrupted = False
    try:
        async with connection.client_of(args) as client, _opened(args, client) as consumer:
            await _copy(args, consumer, render, summary)
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


def _opened(args: argparse.Namespace, client: "Client") -> Any:
    from magnetar.client.options import InitialPosition, SubscriptionType

    options: dict[str, Any] = {
        "type": SubscriptionType[args.type.upper()],
        "initial_position": InitialPosition[args.initial_position.upper()],
        "durable": not args.temporary,
        "name": args.name,
        "read_compacted": args.read_compacted,
        "batch_index_ack": args.batch_index_ack,
        "replicate_subscription": args.replicated,
        "decryption": decryption_of(args),
        "schema": output.schema_of(args),
    }
    if args.queue_size is not None:
        options["receiver_queue_size"] = args.queue_size
    if args.regex:
        return client.pattern_consumer(args.topic[0], args.subscription, **options)
    return client.consumer(args.topic, args.subscription, **options)


class _Consumed:
    """A consumer as a source of the output."""

    def __init__(self, consumer: "Consumer[Any]", timeout_s: float | None) -> None:
        self._consumer = consumer
        self._timeout_s = timeout_s

    async def next(self) -> "Message[Any] | None":
        from magnetar.client.consumer.consumer import EndOfTopics
        from magnetar.client.errors import OperationTimeout

        try:
            return await self._consumer.receive(self._timeout_s)
        except (EndOfTopics, OperationTimeout):
            return None

    def next_nowait(self) -> "Message[Any] | None":
        return self._consumer.receive_nowait()


async def _copy(
    args: argparse.Namespace, consumer: "Consumer[Any]", render: Any, summary: "Summary"
) -> None:
    async def written(group: list["Message[Any]"]) -> None:
        if args.ack:
            await consumer.ack_many(group)

    timeout_s: float | None = args.timeout
    if timeout_s is None and not args.count and not args.follow:
        timeout_s = IDLE_S
    await output.copy(
        _Consumed(consumer, timeout_s),
        render,
        summary,
        count=args.count,
        rate=args.rate,
        written=written,
    )

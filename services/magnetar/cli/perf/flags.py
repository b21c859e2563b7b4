"""The flags of pulsar-perf (4.0.8), and those of its flags that are refused, with the remedy."""

import argparse
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from magnetar.cli.messages import connection
from magnetar.cli.messages.texts import positive_float

INTERVAL_S: Final = 10.0
"""Between two lines of the log, as in pulsar-perf."""
_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Refused(NamedTuple):
    """A flag of pulsar-perf that is not honored."""

    names: tuple[str, ...]
    reason: str
    takes_value: bool = True


_AUTH: Final = (
    "secrets in arguments are visible to other users of the machine: use --token-file, "
    "--oauth2-file, --user or --cert-file"
)
_THREADS: Final = "a process has one event loop: start several processes"
REFUSED: Final = (
    Refused(("--auth-plugin",), _AUTH),
    Refused(("--auth-params",), _AUTH),
    Refused(("-V", "--version"), "use `magnetar version`", takes_value=False),
    Refused(("-bw", "--busy-wait"), "the event loop waits for the system", takes_value=False),
    Refused(("-ioThreads", "--num-io-threads"), _THREADS),
    Refused(("-lt", "--num-listener-threads"), _THREADS),
    Refused(("-mlr", "--max-lookup-request"), "lookups are not limited by a number"),
    Refused(("-i", "--stats-interval-seconds"), "use --interval for the lines of the log"),
    Refused(("--proxy-url",), "give the proxy as --service-url"),
    Refused(("--proxy-protocol",), "give the proxy as --service-url"),
    Refused(("--ssl-factory-plugin",), "use --ca-file, --cert-file and --key-file"),
    Refused(("--ssl-factory-plugin-params",), "use --ca-file, --cert-file and --key-file"),
)
HISTOGRAM_FILE: Final = Refused(("--histogram-file",), "use --json for latencies by interval")
TXN: Final = "transactions are measured by `magnetar perf transaction`"


class _Refuse(argparse.Action):
    """Ends the parse with the reason for which a flag is refused."""

    def __init__(self, *, reason: str, **options: Any) -> None:
        super().__init__(**options)
        self.reason = reason

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002
        values: str | Sequence[Any] | None,  # noqa: ARG002
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string} of pulsar-perf is not supported: {self.reason}")


def refuse(parser: argparse.ArgumentParser, *refused: Refused) -> None:
    """Adds flags that end the parse with their reason."""
    for item in refused:
        parser.add_argument(
            *item.names,
            action=_Refuse,
            reason=item.reason,
            nargs="?" if item.takes_value else 0,
            default=argparse.SUPPRESS,
            dest="refused",
            help=argparse.SUPPRESS,
        )


def size(text: str) -> int:
    """Returns the bytes of `32M`, `64K` or a number."""
    unit = text[-1:].upper() if not text[-1:].isdigit() else ""
    try:
        number = int(text[: len(text) - len(unit)]) * _SIZES[unit]
    except (KeyError, ValueError):
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64M")
    return number


def add_common(parser: argparse.ArgumentParser, *, topics: bool = True) -> None:
    """Adds the flags that all commands share."""
    if topics:
        parser.add_argument("topics", nargs="+", metavar="TOPIC")
        parser.add_argument(
            "-t", "--num-topics", "--num-topic", dest="num_topics", type=int, default=1,
            metavar="N", help="with one TOPIC, use TOPIC-0 to TOPIC-(N-1) (1)",
        )  # fmt: skip
    parser.add_argument(
        "-time", "--test-duration", dest="test_time", type=float, default=0.0, metavar="S",
        help="end after this many seconds (0: never)",
    )  # fmt: skip
    parser.add_argument(
        "-c", "--max-connections", type=int, default=1, metavar="N", help="per broker (1)"
    )
    parser.add_argument(
        "-ml", "--memory-limit", type=size, metavar="SIZE", help="of unanswered messages (64M)"
    )
    parser.add_argument(
        "--interval", type=positive_float, default=INTERVAL_S, metavar="S",
        help="seconds between two lines of the log (10)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON objects, one per line")
    connection.add_flags(parser)
    aliases = {
        "--service-url": "url",
        "--trust-cert-file": "ca_file",
        "--listener-name": "listener",
    }
    for name, dest in aliases.items():
        parser.add_argument(name, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--tls-allow-insecure", dest="insecure", action="store_true", default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )  # fmt: skip
    parser.add_argument(
        "--tls-enable-hostname-verification", dest="no_verify_hostname", action="store_false",
        default=argparse.SUPPRESS, help=argparse.SUPPRESS,
    )  # fmt: skip
    refuse(parser, *REFUSED)


def add_subscriptions(parser: argparse.ArgumentParser, *, position: str, kind: str) -> None:
    """Adds the flags of subscriptions, with their defaults."""
    parser.add_argument(
        "-ns", "--num-subscriptions", type=int, default=1, metavar="N", help="per topic (1)"
    )
    parser.add_argument(
        "-ss", "--subscriptions", action="append", metavar="NAMES", help="separated by commas (sub)"
    )
    parser.add_argument(
        "-sp", "--subscription-position", choices=("Latest", "Earliest"), type=str.capitalize,
        default=position, help=f"of new subscriptions ({position})",
    )  # fmt: skip
    parser.add_argument(
        "-st", "--subscription-type", default=kind,
        choices=("Exclusive", "Shared", "Failover", "Key_Shared"), help=f"({kind})",
    )  # fmt: skip
    parser.add_argument(
        "-q", "--receiver-queue-size", type=int, default=1000, metavar="N", help="(1000)"
    )
    parser.add_argument(
        "-rs", "--replicated", action="store_true", help="replicate the subscription's state"
    )


def topics_of(names: Sequence[str], count: int, separator: str) -> list[str]:
    """Returns the topics: those of the arguments, or a number of topics with one prefix."""
    from magnetar.cli.messages.errors import UsageFailed

    if count > 1 and len(names) == 1:
        return [f"{names[0]}{separator}{index}" for index in range(count)]
    if count not in (1, len(names)):
        raise UsageFailed(f"--num-topics is {count}, and {len(names)} topics are given")
    return list(names)


def subscriptions_of(args: argparse.Namespace) -> list[str]:
    """Returns the names of the subscriptions; raises UsageFailed if their number is another."""
    from magnetar.cli.messages.errors import UsageFailed

    names = [name for text in args.subscriptions or ["sub"] for name in text.split(",") if name]
    count: int = args.num_subscriptions
    if count > 1 and len(names) == 1:
        return [f"{names[0]}-{index}" for index in range(count)]
    if count not in (1, len(names)):
        raise UsageFailed(
            f"--num-subscriptions is {count}, and --subscriptions has {len(names)} names"
        )
    return names


def client_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the client beside those of its connection."""
    options: dict[str, Any] = {"connections_per_broker": args.max_connections}
    if args.memory_limit is not None:
        options["memory_limit_bytes"] = args.memory_limit
    return options

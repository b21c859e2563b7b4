"""`magnetar perf`: measures throughput and latencies, with the flags and lines of pulsar-perf."""

import argparse
from typing import Final

DESCRIPTION: Final = """\
Measures producers, consumers, readers and transactions with the flags of pulsar-perf, and prints
the lines of its log. Flags that are not supported are refused. A terminal shows a live line.

Exit status: 0 the run has ended, also by Ctrl-C, 1 messages failed or the connection did, 2 an
argument is wrong.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `perf`."""
    from magnetar.cli.perf import consume, produce, transaction

    parser = subparsers.add_parser(
        "perf",
        help="measure throughput and latencies, as pulsar-perf does",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, text, add_flags in (
        ("produce", "send messages at a rate", produce.add_flags),
        ("consume", "receive and acknowledge messages", consume.add_consume_flags),
        ("read", "read messages without a subscription", consume.add_read_flags),
        ("transaction", "acknowledge and send in transactions", transaction.add_flags),
    ):
        add_flags(kinds.add_parser(name, help=text, allow_abbrev=False))


def run(args: argparse.Namespace) -> int:
    """Runs the measurement; returns the exit code of DESCRIPTION."""
    from magnetar.cli.messages.session import run as run_session
    from magnetar.cli.perf import consume, produce, transaction

    works = {
        "produce": produce.work,
        "consume": consume.consume,
        "read": consume.read,
        "transaction": transaction.work,
    }
    return run_session(f"perf {args.kind}", lambda: works[args.kind](args))

"""The entry point of the command `magnetar`: imports the module of the chosen command only.

Every command module has `add_parser(subparsers)` and `run(args) -> exit code`. `magnetar --help`
imports none of them, so that a server's start does not wait for modules that it does not use.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Final, NamedTuple

from magnetar import __version__
from magnetar.cli.parser import HelpFormatter, Parser


class Command(NamedTuple):
    """The module of a command, and its line in the help."""

    module: str
    help: str


COMMANDS: Final = {
    "standalone": Command(
        "magnetar.cli.standalone", "run a broker, a bookie and the metadata store in one process"
    ),
    "cluster": Command(
        "magnetar.cli.cluster", "run etcd, bookies and brokers on this machine, and change them"
    ),
    "broker": Command("magnetar.cli.broker", "run a broker of a cluster"),
    "bookie": Command("magnetar.cli.bookie", "run a bookie of a cluster, or maintain its files"),
    "ledger": Command(
        "magnetar.cli.ledger", "prove the copies of ledgers, and list under-replicated ledgers"
    ),
    "autorecovery": Command(
        "magnetar.cli.autorecovery", "re-replicate entries of lost bookies, in a separate process"
    ),
    "operator": Command("magnetar.cli.operator", "run the Kubernetes operator"),
    "job": Command(
        "magnetar.cli.job", "offload, compact, or explain the backlog of topics, with Spark"
    ),
    "demo": Command(
        "magnetar.cli.demo", "publish, kill, restart, consume and check: 336,776 flights"
    ),
    "plan": Command(
        "magnetar.cli.plan", "show what manifests would change, and which data they would delete"
    ),
    "produce": Command(
        "magnetar.cli.messages.produce", "send messages from arguments, files, or lines of stdin"
    ),
    "consume": Command(
        "magnetar.cli.messages.consume",
        "print the messages of a subscription, and acknowledge them",
    ),
    "read": Command(
        "magnetar.cli.messages.read", "print the messages of topics from a position on"
    ),
    "perf": Command("magnetar.cli.perf", "measure throughput and latencies, as pulsar-perf does"),
    "topics": Command(
        "magnetar.cli.administration.topics", "list, create, delete and inspect topics"
    ),
    "subscriptions": Command(
        "magnetar.cli.administration.subscriptions", "list, create and move subscriptions; peek"
    ),
    "namespaces": Command(
        "magnetar.cli.administration.namespaces", "list, create, delete namespaces; policies"
    ),
    "tenants": Command("magnetar.cli.administration.tenants", "list, create and delete tenants"),
    "advise": Command("magnetar.cli.advise", "suggest settings for the producers of a topic"),
    "explain": Command(
        "magnetar.cli.explain", "say why messages are not delivered or not published"
    ),
    "redrive": Command(
        "magnetar.cli.redrive", "move dead letters back to the topics that they come from"
    ),
    "token": Command("magnetar.cli.token", "create keys and tokens, show and validate tokens"),
    "etcd": Command("magnetar.cli.etcd", "list the key ranges that each role needs in etcd"),
    "config": Command("magnetar.cli.config", "list and explain the settings"),
    "completion": Command(
        "magnetar.cli.completion", "print a script that completes commands in a shell"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), "")
    parser = Parser(
        prog="magnetar",
        description="A messaging and streaming system that speaks Apache Pulsar's protocol.",
        formatter_class=partial(HelpFormatter, max_help_position=16),
    )
    parser.add_argument("--version", action="version", version=f"magnetar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = None
    # A process that runs a command keeps the parsers, so it creates that of its command only.
    alone = command in COMMANDS and arguments[0] == command
    for name in (command,) if alone else COMMANDS:
        module, text = COMMANDS[name]
        if name == command:
            chosen = import_module(module)
            chosen.add_parser(commands)
        else:
            commands.add_parser(name, help=text)
    commands.add_parser("version", help="print the version")
    args = parser.parse_args(arguments)
    if chosen is None:
        print(f"magnetar {__version__}")
        return 0
    try:
        return int(chosen.run(args))
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe: not an error, but nothing can be printed.
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())

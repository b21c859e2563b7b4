"""The entry point: finds the command's module and imports that one only.

Every command module offers `add_parser(subparsers)` and `run(args) -> exit code`. `magnetar --help`
imports none of them; a start of the server must not wait for what it does not use.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from magnetar import __version__

COMMANDS = {
    "standalone": "run a broker, a bookie and the metadata store in one process",
    "cluster": "run etcd, bookies and brokers on this machine, and change them",
    "broker": "run a broker of a cluster",
    "bookie": "run a bookie of a cluster, or look after its files",
    "ledger": "prove the copies of ledgers, and list those that lack some",
    "autorecovery": "make lost copies of entries anew, in a process of its own",
    "operator": "run the Kubernetes operator",
    "job": "offload, compact, or explain the backlog of topics, with Spark",
    "demo": "publish, kill, restart, consume and check: 336,776 flights",
    "plan": "show what manifests would change, and which data they would delete",
    "config": "list and explain the settings",
    "version": "print the version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    named = next((word for word in arguments if not word.startswith("-")), "")
    parser = argparse.ArgumentParser(
        prog="magnetar",
        description="A messaging and streaming system that speaks Apache Pulsar's protocol.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=16),
    )
    parser.add_argument("--version", action="version", version=f"magnetar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = None
    for name, text in COMMANDS.items():
        if name == named and name != "version":
            chosen = import_module(f"magnetar.cli.{name}")
            chosen.add_parser(commands)
        else:
            commands.add_parser(name, help=text)
    args = parser.parse_args(arguments)
    if chosen is None:
        print(f"magnetar {__version__}")
        return 0
    try:
        return int(chosen.run(args))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough: not an error, but nothing more can be printed.
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())

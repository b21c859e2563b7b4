"""`magnetar bookie`: a storage node, and what looks after its files and its ledgers.

Without an action it runs one. Every action is a module of this package that offers
`add_parser(actions)` and `run(args) -> exit code`; only the one that was named does any work.
"""

import argparse
from importlib import import_module
from typing import Final

ACTIONS: Final = ("inspect", "list", "decommission")
ALIASES: Final = {"listbookies": "list", "decommissionbookie": "decommission"}
"""BookKeeper's names of the same."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `bookie` and what belongs to it."""
    from magnetar.cli import roles
    from magnetar.cli.bookie.serving import DESCRIPTION

    parser = subparsers.add_parser(
        "bookie", help="run a bookie, or look after its files and ledgers", description=DESCRIPTION
    )
    roles.add_flags(parser, "bookie")
    actions = parser.add_subparsers(dest="action", metavar="[ACTION]")
    for name in ACTIONS:
        import_module(f"magnetar.cli.bookie.{name}").add_parser(actions)


def run(args: argparse.Namespace) -> int:
    """Does what was asked; returns the exit code."""
    action = ALIASES.get(args.action, args.action or "serving")
    return int(import_module(f"magnetar.cli.bookie.{action}").run(args))

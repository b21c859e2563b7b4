"""`magnetar bookie`: runs a storage node, or maintains its files and ledgers.

Without an action it runs a bookie. Every action is a module of this package with
`add_parser(actions)` and `run(args) -> exit code`. Only `run` imports more than the parser needs.
"""

import argparse
from importlib import import_module
from typing import Final

ACTIONS: Final = {
    "inspect": "magnetar.cli.bookie.inspect",
    "list": "magnetar.cli.bookie.list",
    "decommission": "magnetar.cli.bookie.decommission",
}
ALIASES: Final = {"listbookies": "list", "decommissionbookie": "decommission"}
"""BookKeeper's names of these actions."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `bookie` and its actions."""
    from magnetar.cli import roles
    from magnetar.cli.bookie.serving import DESCRIPTION

    parser = subparsers.add_parser(
        "bookie", help="run a bookie, or maintain its files and ledgers", description=DESCRIPTION
    )
    roles.add_flags(parser, "bookie")
    actions = parser.add_subparsers(dest="action", metavar="[ACTION]")
    for module in ACTIONS.values():
        import_module(module).add_parser(actions)


def run(args: argparse.Namespace) -> int:
    """Runs the action, or a bookie; returns the exit code."""
    if args.action is None:
        from magnetar.cli.bookie import serving

        return serving.run(args)
    module = ACTIONS[ALIASES.get(args.action, args.action)]
    return int(import_module(module).run(args))

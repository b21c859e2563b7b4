"""`magnetar bookie list`: prints the registered and the draining bookies of a cluster."""

import argparse
from typing import TYPE_CHECKING

from magnetar.cli import cluster_access
from magnetar.cli.cluster_access import print_json

if TYPE_CHECKING:
    from magnetar.bookie.registration import BookieRegistration


def add_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the action `list`."""
    parser = actions.add_parser(
        "list",
        aliases=["listbookies"],
        help="list the bookies of a cluster",
        description="Lists the registered bookies, and those that are draining.",
    )
    cluster_access.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the bookies; returns the exit code."""
    return cluster_access.run("bookie list", lambda: _run(args))


async def _run(args: argparse.Namespace) -> int:
    from magnetar.bookie.registration import DRAINING_PREFIX

    async with cluster_access.opened(args, "bookie list") as access:
        draining = set(await access.store.children(DRAINING_PREFIX))
        registered = access.bookies.registrations()
    for bookie in registered:
        if args.json:
            print_json({"draining": bookie.bookie_id in draining, "registration": bookie})
        else:
            print(_line(bookie, draining=bookie.bookie_id in draining))
    for bookie_id in sorted(draining - {bookie.bookie_id for bookie in registered}):
        if args.json:
            print_json({"draining": True, "bookie_id": bookie_id, "registration": None})
        else:
            print(f"{bookie_id}  not running  draining")
    return 0


def _line(bookie: "BookieRegistration", *, draining: bool) -> str:
    state = "takes entries" if bookie.writable else f"read-only: {bookie.read_only_reason}"
    if draining:
        state = "draining"
    total = bookie.disk_bytes_total
    free = f"{bookie.disk_bytes_free / total:.0%} free" if total else ""
    address = f"{bookie.host}:{bookie.port}"
    words = (bookie.bookie_id, address, bookie.rack, bookie.incarnation, state, free)
    return "  ".join(word for word in words if word)

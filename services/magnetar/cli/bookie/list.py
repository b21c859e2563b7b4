"""`magnetar bookie list`: the bookies of a cluster, as they have registered."""

import argparse
from typing import TYPE_CHECKING

from magnetar.cli import cluster_access
from magnetar.cli.cluster_access import print_json

if TYPE_CHECKING:
    from magnetar.bookie.registration import BookieRegistration


def add_parser(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the action."""
    parser = actions.add_parser(
        "list",
        aliases=["listbookies"],
        help="list the bookies of a cluster",
        description="The bookies that are registered, and those that are being emptied.",
    )
    cluster_access.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Prints them; returns the exit code."""
    return cluster_access.run("bookie list", lambda: _run(args))


async def _run(args: argparse.Namespace) -> int:
    from magnetar.bookie.registration import DRAINING_PREFIX

    async with cluster_access.opened(args, "bookie list") as access:
        draining = set(await access.store.children(DRAINING_PREFIX))
        registered = access.bookies.registrations()
    for one in registered:
        if args.json:
            print_json({"draining": one.bookie_id in draining, "registration": one})
        else:
            print(_line(one, draining=one.bookie_id in draining))
    for bookie_id in sorted(draining - {one.bookie_id for one in registered}):
        if args.json:
            print_json({"draining": True, "bookie_id": bookie_id, "registration": None})
        else:
            print(f"{bookie_id}  not running  draining")
    return 0


def _line(one: "BookieRegistration", *, draining: bool) -> str:
    state = "takes entries" if one.writable else f"read-only: {one.read_only_reason}"
    if draining:
        state = "draining"
    free = f"{one.disk_bytes_free / one.disk_bytes_total:.0%} free" if one.disk_bytes_total else ""
    words = (one.bookie_id, f"{one.host}:{one.port}", one.rack, one.incarnation, state, free)
    return "  ".join(word for word in words if word)

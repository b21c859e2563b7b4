"""`magnetar namespaces`: list, create and delete namespaces; their policies and backlogs."""

import argparse
import json
from urllib.parse import quote

from magnetar.cli import admin_rest
from magnetar.cli.administration import calls, policies, show
from magnetar.cli.administration.calls import Verb, argument


def _list(args: argparse.Namespace) -> None:
    tenants = [args.tenant] if args.tenant else admin_rest.get_json(args, "/admin/v2/tenants")
    listed: list[str] = []
    for tenant in tenants:
        listed += admin_rest.get_json(args, f"/admin/v2/namespaces/{quote(tenant, safe='')}")
    show.names(args, listed)


def _create(args: argparse.Namespace) -> None:
    body = None if args.bundles is None else json.dumps({"bundles": {"numBundles": args.bundles}})
    admin_rest.send(
        args, "PUT", calls.namespace_path(args.namespace), body.encode() if body else None
    )
    calls.done(args, f"created namespace {args.namespace}")


def _delete(args: argparse.Namespace) -> None:
    path = calls.namespace_path(args.namespace)
    admin_rest.send(args, "DELETE", path + ("?force=true" if args.force else ""))
    calls.done(args, f"deleted namespace {args.namespace}")


def _clear_backlog(args: argparse.Namespace) -> None:
    path = f"{calls.namespace_path(args.namespace)}/clearBacklog"
    if args.subscription:
        path += f"/{quote(args.subscription, safe='')}"
    admin_rest.send(args, "POST", path)
    calls.done(args, f"cleared the backlog of {args.namespace}")


_NAMESPACE = argument("namespace", help="TENANT/NAMESPACE")
VERBS = {
    "list": Verb("list the namespaces of a tenant, or all", _list, [argument("tenant", nargs="?")]),
    "create": Verb(
        "create a namespace",
        _create,
        [_NAMESPACE, argument("--bundles", type=int, metavar="N", help="number of bundles")],
    ),
    "delete": Verb(
        "delete a namespace",
        _delete,
        [_NAMESPACE, argument("--force", action="store_true", help="with its topics")],
    ),
    "clear-backlog": Verb(
        "skip all messages of all subscriptions, or of one name",
        _clear_backlog,
        [_NAMESPACE, argument("subscription", nargs="?")],
    ),
    **policies.verbs("namespace"),
}
HELP = "list, create and delete namespaces; read and set their policies"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `namespaces`."""
    calls.add_parser(subparsers, "namespaces", HELP, VERBS)


def run(args: argparse.Namespace) -> int:
    """Runs an action; returns the exit code."""
    return calls.run("namespaces", VERBS, args)

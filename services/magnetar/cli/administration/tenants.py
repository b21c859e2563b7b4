"""`magnetar tenants`: list, show, create, update and delete tenants."""

import argparse
import json
from urllib.parse import quote

from magnetar.cli import admin_rest
from magnetar.cli.administration import calls, show
from magnetar.cli.administration.calls import Verb, argument


def _path(args: argparse.Namespace) -> str:
    return f"/admin/v2/tenants/{quote(args.tenant, safe='')}"


def _list(args: argparse.Namespace) -> None:
    show.names(args, admin_rest.get_json(args, "/admin/v2/tenants"))


def _show(args: argparse.Namespace) -> None:
    document = admin_rest.get_json(args, _path(args))
    show.fields(args, document, {name: ", ".join(value) for name, value in document.items()})


def _create(args: argparse.Namespace) -> None:
    clusters = _words(args.allowed_clusters) or admin_rest.get_json(args, "/admin/v2/clusters")
    document = {"adminRoles": _words(args.admin_roles), "allowedClusters": clusters}
    admin_rest.send(args, "PUT", _path(args), json.dumps(document).encode())
    calls.done(args, f"created tenant {args.tenant}")


def _update(args: argparse.Namespace) -> None:
    document = admin_rest.get_json(args, _path(args))
    if args.allowed_clusters is None and args.admin_roles is None:
        raise calls.WrongArgument("give --admin-roles or --allowed-clusters")
    if args.admin_roles is not None:
        document["adminRoles"] = _words(args.admin_roles)
    if args.allowed_clusters is not None:
        document["allowedClusters"] = _words(args.allowed_clusters)
    admin_rest.send(args, "POST", _path(args), json.dumps(document).encode())
    calls.done(args, f"updated tenant {args.tenant}")


def _delete(args: argparse.Namespace) -> None:
    admin_rest.send(args, "DELETE", _path(args) + ("?force=true" if args.force else ""))
    calls.done(args, f"deleted tenant {args.tenant}")


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


_TENANT = argument("tenant")
_SETTINGS = (
    argument("--admin-roles", metavar="A,B", help="the roles that administer it"),
    argument("--allowed-clusters", metavar="A,B", help="by default, all"),
)
VERBS = {
    "list": Verb("list the tenants", _list),
    "show": Verb("print the roles and clusters of a tenant", _show, [_TENANT]),
    "create": Verb("create a tenant", _create, [_TENANT, *_SETTINGS]),
    "update": Verb("change the roles or clusters of a tenant", _update, [_TENANT, *_SETTINGS]),
    "delete": Verb(
        "delete a tenant",
        _delete,
        [_TENANT, argument("--force", action="store_true", help="with its namespaces")],
    ),
}
HELP = "list, create and delete tenants"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `tenants`."""
    calls.add_parser(subparsers, "tenants", HELP, VERBS)


def run(args: argparse.Namespace) -> int:
    """Runs an action; returns the exit code."""
    return calls.run("tenants", VERBS, args)

"""`magnetar etcd roles`: the key ranges of each role, as commands for etcdctl or as JSON."""

import argparse
from typing import Final

DESCRIPTION: Final = """\
Prints the commands that create a role in etcd for each kind of process of a cluster, with the key
ranges that it needs and no others. Grant a role to the user that the process logs in as
(metadata_username). Commands that maintain bookies and ledgers need the role `autorecovery`.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `etcd` with its subcommands."""
    from magnetar.cluster.etcd_roles import PERMISSIONS
    from magnetar.metadata.store_url import ROOT_DEFAULT

    parser = subparsers.add_parser("etcd", help="list the key ranges that each role needs in etcd")
    commands = parser.add_subparsers(dest="etcd_command", metavar="COMMAND", required=True)
    roles = commands.add_parser("roles", help="print the roles", description=DESCRIPTION)
    roles.add_argument("--role", choices=sorted(PERMISSIONS), help="only this role (default: all)")
    roles.add_argument(
        "--root",
        default=ROOT_DEFAULT,
        metavar="PATH",
        help=f"metadata_root of the cluster ({ROOT_DEFAULT})",
    )
    roles.add_argument("--json", action="store_true", help="print one JSON document per line")


def run(args: argparse.Namespace) -> int:
    """Prints the roles; returns the exit code."""
    import msgspec

    from magnetar.cluster.etcd_roles import PERMISSIONS, etcdctl_commands

    for role in PERMISSIONS if args.role is None else (args.role,):
        if not args.json:
            print("\n".join(etcdctl_commands(role, args.root)))
            continue
        for permission in PERMISSIONS[role]:
            document = {
                "role": role,
                "key": args.root + permission.key,
                "prefix": permission.prefix,
                "access": permission.access,
            }
            print(msgspec.json.encode(document).decode())
    return 0

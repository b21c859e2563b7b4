"""`magnetar plan`: what manifests would change if they were applied, data first.

Thin: it parses, connects, calls `magnetar_operator.resources.plan_files` and prints. The operator's
package is imported only here, when the command is run.
"""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar_operator.resources.plan_files import Findings

FAILED = 1

DESCRIPTION = """\
Compares manifests of magnetar.io (Tenant, Namespace, Topic, Subscription, MagnetarCluster) with
what runs, and shows what applying them would do: first which data would be deleted, with how many
bytes and ledgers in how many topics, then what would be refused and why, then all other changes.
Nothing is changed.

By default resources are looked up in the Kubernetes of KUBECONFIG (or of the pod), which also tells
what was set before and was taken out of a manifest since. With --admin-url the manifests are
compared with one cluster, without Kubernetes.

Exit status: 0 nothing to do, 1 an error or a refused change, 2 changes, 3 data would be deleted.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `plan`."""
    parser = subparsers.add_parser(
        "plan",
        help="show what manifests would change, and which data they would delete",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="a file with one or more documents, a folder of such, or - for standard input; "
        "may be given several times",
    )
    parser.add_argument(
        "-n", "--namespace", default="", help="the Kubernetes namespace where a document names none"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--kube",
        nargs="?",
        const="",
        metavar="KUBECONFIG",
        help="ask Kubernetes (default), through this file",
    )
    where.add_argument(
        "--admin-url",
        metavar="URL",
        help="compare with this cluster, such as http://localhost:8080",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Plans; returns the exit code of the description."""
    import asyncio

    try:
        from magnetar_operator.kube import KubeError
        from magnetar_operator.resources.admin_client import AdminError
        from magnetar_operator.resources.plan_files import CannotPlan
    except ImportError as error:
        print(f"magnetar plan: {error}: pip install 'magnetar[operator]'", file=sys.stderr)
        return FAILED
    try:
        found = asyncio.run(_plan(args))
    except (CannotPlan, KubeError, AdminError) as error:
        print(f"magnetar plan: {error}", file=sys.stderr)
        return FAILED
    if args.json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found.document())).decode() + "\n")
    else:
        for line in found.lines():
            print(line)
    return found.code


async def _plan(args: argparse.Namespace) -> "Findings":
    from magnetar_operator.kube import KubeClient
    from magnetar_operator.resources.plan_files import PlanFiles, read_documents

    stdin = sys.stdin.read() if "-" in args.filename else ""
    documents = read_documents(args.filename, stdin)
    kube = None if args.admin_url else KubeClient.connect(args.kube or None)
    planning = PlanFiles(kube, args.admin_url or "", args.namespace)
    try:
        return await planning.run(documents)
    finally:
        await planning.close()
        if kube is not None:
            await kube.close()

"""`magnetar plan`: prints the changes that manifests would cause, deleted data first.

`magnetar_operator.plan_manifests`, part of an optional package, plans; this module connects and
prints.
"""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar_operator.plan_manifests import Findings

FAILED = 1

DESCRIPTION = """\
Compares manifests of magnetar.io (Tenant, Namespace, Topic, Subscription, MagnetarCluster) with the
running clusters, and prints the changes that applying them would cause: first the data that would
be deleted, with its bytes, ledgers and topics, then the changes that would be refused and why, then
all other changes. Changes nothing.

By default the current resources are read from the Kubernetes of KUBECONFIG (or of the pod). They
include fields that were set before and removed from a manifest since. With --admin-url the
manifests are compared with one cluster, without Kubernetes.

Exit status: 0 nothing to do, 1 an error or a refused change, 2 changes, 3 data would be deleted.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `plan`."""
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
        "-n", "--namespace", default="", help="the Kubernetes namespace of documents without one"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--kube",
        nargs="?",
        const="",
        metavar="KUBECONFIG",
        help="compare with Kubernetes (default), using this file",
    )
    source.add_argument(
        "--admin-url",
        metavar="URL",
        help="compare with this cluster, such as http://localhost:8080",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Plans; returns the exit code of DESCRIPTION."""
    import asyncio

    try:
        from magnetar_operator.admin.client import AdminError
        from magnetar_operator.kube.client import KubeError
        from magnetar_operator.plan_manifests import CannotPlan
    except ImportError as error:
        print(f"magnetar plan: {error}: pip install 'magnetar[operator]'", file=sys.stderr)
        return FAILED
    try:
        findings = asyncio.run(_plan(args))
    except (CannotPlan, KubeError, AdminError) as error:
        print(f"magnetar plan: {error}", file=sys.stderr)
        return FAILED
    if args.json:
        import msgspec

        sys.stdout.write(
            msgspec.json.format(msgspec.json.encode(findings.document())).decode() + "\n"
        )
    else:
        for line in findings.lines():
            print(line)
    return findings.code


async def _plan(args: argparse.Namespace) -> "Findings":
    from magnetar_operator.kube.client import KubeClient
    from magnetar_operator.plan_manifests import PlanFiles, read_documents

    stdin = sys.stdin.read() if "-" in args.filename else ""
    documents = read_documents(args.filename, stdin)
    kube = None if args.admin_url else KubeClient.connect(args.kube or None)
    plan = PlanFiles(kube, args.admin_url or "", args.namespace)
    try:
        return await plan.run(documents)
    finally:
        await plan.close()
        if kube is not None:
            await kube.close()

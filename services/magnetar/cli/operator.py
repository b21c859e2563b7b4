"""`magnetar operator`: keeps clusters, tenants, namespaces and topics as manifests want them."""

import argparse
import dataclasses
from typing import Final

DESCRIPTION: Final = """\
Runs the Kubernetes operator: it watches MagnetarCluster, Tenant, Namespace, Topic, Subscription and
SparkJob resources and makes the world be as they say. Several may run: the one that holds the Lease
acts.

In a pod it uses the pod's account, elsewhere --kubeconfig or $KUBECONFIG. Every flag is also an
environment variable: MAGNETAR_OPERATOR_ and its name in capitals.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `operator`."""
    parser = subparsers.add_parser(
        "operator",
        help="run the Kubernetes operator",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    flag("--kubeconfig", metavar="FILE", help="the cluster to talk to")
    flag(
        "--namespace",
        action="append",
        metavar="NAME",
        dest="namespaces",
        help="watch this namespace only; may be given several times (default: all)",
    )
    flag("--lease-namespace", metavar="NAME", help="where the Lease of the acting operator is")
    flag("--lease-name", metavar="NAME", help="its name (magnetar-operator)")
    flag("--identity", metavar="NAME", help="who holds the Lease (the pod's name)")
    flag("--host", metavar="ADDRESS", help="what /healthz, /readyz and /metrics listen on")
    flag("--port", type=int, metavar="N", help="their port (8080); 0 takes a free one")
    flag("--workers", type=int, metavar="N", help="objects looked at at the same time (8)")
    flag(
        "--resync-s",
        type=float,
        metavar="S",
        help="every object is compared with the world this often (60)",
    )
    flag("--image", metavar="IMAGE", help="the image of clusters that name none")
    flag("--etcd-image", metavar="IMAGE", help="the image of etcd where none is named")


def run(args: argparse.Namespace) -> int:
    """Runs it until a signal; returns the exit code."""
    try:
        from magnetar_operator import main
        from magnetar_operator.settings import Settings
    except ModuleNotFoundError as missing:
        print(f"magnetar operator: {missing}. Type: pip install 'magnetar[operator]'")
        return 1
    settings = Settings.from_environment()
    fields = {field.name for field in dataclasses.fields(settings)}
    given = {key: each for key, each in vars(args).items() if key in fields and each is not None}
    if "namespaces" in given:
        given["namespaces"] = tuple(given["namespaces"])
    return main.main(dataclasses.replace(settings, **given))

"""`magnetar operator`: runs the Kubernetes operator.

The operator is `magnetar_operator`, an optional package; without it, the command prints what to
install.
"""

import argparse
import dataclasses
from typing import Final

DESCRIPTION: Final = """\
Runs the Kubernetes operator: it watches MagnetarCluster, Tenant, Namespace, Topic, Subscription and
SparkJob resources and reconciles clusters, topics and jobs with them. Several operators may run:
the holder of the Lease acts.

In a pod, it uses the pod's service account, elsewhere --kubeconfig or $KUBECONFIG. Every flag is
also an environment variable: MAGNETAR_OPERATOR_ and its name in capitals.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `operator`."""
    parser = subparsers.add_parser(
        "operator",
        help="run the Kubernetes operator",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    flag("--kubeconfig", metavar="FILE", help="configuration of the Kubernetes cluster")
    flag(
        "--namespace",
        action="append",
        metavar="NAME",
        dest="namespaces",
        help="watch only this namespace; may be given several times (default: all)",
    )
    flag("--lease-namespace", metavar="NAME", help="namespace of the acting operator's Lease")
    flag("--lease-name", metavar="NAME", help="name of the Lease (magnetar-operator)")
    flag("--identity", metavar="NAME", help="this operator's name in the Lease (the pod's name)")
    flag("--host", metavar="ADDRESS", help="address of /healthz, /readyz and /metrics")
    flag("--port", type=int, metavar="N", help="their port (8080); 0 takes a free one")
    flag("--workers", type=int, metavar="N", help="objects to reconcile at a time (8)")
    flag(
        "--resync-s",
        type=float,
        metavar="S",
        help="interval of the full reconciliation of every object (60)",
    )
    flag("--image", metavar="IMAGE", help="default image of clusters")
    flag("--etcd-image", metavar="IMAGE", help="default image of etcd")


def run(args: argparse.Namespace) -> int:
    """Runs the operator until a signal; returns the exit code."""
    try:
        from magnetar_operator import main
        from magnetar_operator.settings import Settings
    except ModuleNotFoundError as missing:
        print(f"magnetar operator: {missing}. Install it: pip install 'magnetar[operator]'")
        return 1
    settings = Settings.from_environment()
    fields = {field.name for field in dataclasses.fields(settings)}
    flags = {
        name: value for name, value in vars(args).items() if name in fields and value is not None
    }
    if "namespaces" in flags:
        flags["namespaces"] = tuple(flags["namespaces"])
    return main.main(dataclasses.replace(settings, **flags))

"""The operator's work for many Topic resources: `python -m tests.bench.operator --topics 1000`.

Needs KUBECONFIG (any API server; creates and deletes a namespace) and starts a standalone. Applies
all resources at once through the API. Measures the time until all are Ready, the requests per
resource to the API server and to the brokers, the memory of the operator (in its own process), and
the writes of later reconciles, which should be none.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kubernetes import client
from tests.operator.resource_rig import Live, manifest, operator
from tests.support.kube import apply_crds, connected, delete_namespace, fresh_namespace, tool
from tests.support.server_process import ServerProcess

GROUP, VERSION = "magnetar.io", "v1alpha1"
PART = "magnetar_operator.catalog.reconciler"
POLL_S = 0.5
READY_S_MAX = 600.0
APPLIERS = 16
POLICIES = {"retention": {"time": "7d", "size": "1Gi"}, "messageTTL": "1d"}


def resident_mib(pid: int | str = "self") -> float:
    """Returns the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def serve(namespace: str, resync_s: float) -> None:
    """Runs the operator; answers each line on standard input with its figures."""
    with operator(namespace, resync_s=resync_s, parts=(PART,)) as running:
        print(json.dumps({"started_mib": resident_mib()}), flush=True)
        for _ in sys.stdin:
            context = running.context
            kube = {
                f"{verb} {resource}": count
                for (verb, _, resource), count in context.kube.requests.items()
            }
            numbers = {
                "mib": resident_mib(),
                "kube": kube,
                "rest": context.clients.requests(),
                "looks": dict(context.queue.reconciles),
            }
            print(json.dumps(numbers), flush=True)


class Child:
    """The operator's process, and its figures."""

    def __init__(self, namespace: str, resync_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.operator", "--serve", namespace,
             "--resync", str(resync_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started = self._read()

    def numbers(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def ready(api: client.CustomObjectsApi, namespace: str) -> int:
    """Returns the number of Topics that are Ready."""
    found: Any = api.list_namespaced_custom_object(
        GROUP, VERSION, namespace, "topics", resource_version="0"
    )
    return sum(
        any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in each.get("status", {}).get("conditions", ())
        )
        for each in found["items"]
    )


def writes(numbers: dict[str, Any]) -> int:
    """Returns the number of writes to the API server and the brokers."""
    kube = sum(
        count
        for name, count in numbers["kube"].items()
        if name.split()[0] not in ("get", "list", "watch") and not name.endswith(" leases")
    )
    rest = sum(count for method, count in numbers["rest"].items() if method != "GET")
    return int(kube + rest)


def measure(topics: int, resync_s: float, *, policies: bool) -> None:
    """Runs once and prints the figures."""
    kubectl = tool("kubectl")
    apply_crds(kubectl)
    kube = connected()
    namespace = fresh_namespace(kube)
    api = client.CustomObjectsApi(kube)
    with (
        tempfile.TemporaryDirectory() as root,
        ServerProcess(Path(root)) as server,
        Live(kubectl.within(namespace), server.http_url) as live,
    ):
        child = Child(namespace, resync_s)
        live.apply("Tenant", "bench", {})
        live.apply("Namespace", "bench", {"tenant": "bench"})
        live.ready("Namespace", "bench")
        before = child.numbers()

        def create(number: int) -> None:
            spec: dict[str, Any] = {
                "name": f"bench/bench/t{number}",
                "adminUrl": server.http_url,
                "lifecyclePolicy": "CleanUpAfterDeletion",
            }
            if policies:
                spec["policies"] = POLICIES
            body = manifest("Topic", f"t{number}", spec)
            api.create_namespaced_custom_object(GROUP, VERSION, namespace, "topics", body)

        began = time.monotonic()
        with ThreadPoolExecutor(APPLIERS) as pool:
            list(pool.map(create, range(topics)))
        applied_s = time.monotonic() - began
        while ready(api, namespace) < topics:
            assert time.monotonic() - began < READY_S_MAX, "not all became Ready"
            time.sleep(POLL_S)
        ready_s = time.monotonic() - began
        first = child.numbers()
        # Two whole passes: every object is reconciled twice more.
        while child.numbers()["looks"].get("Topic", 0) < first["looks"]["Topic"] + 2 * topics:
            time.sleep(POLL_S)
        quiet = child.numbers()
        while child.numbers()["looks"].get("Topic", 0) < quiet["looks"]["Topic"] + topics:
            time.sleep(POLL_S)
        last = child.numbers()
        child.stop()
        looks = last["looks"]["Topic"] - quiet["looks"]["Topic"]
        gets = last["rest"]["GET"] - quiet["rest"]["GET"]
        result = {
            "topics": topics,
            "policies": policies,
            "applied_s": round(applied_s, 1),
            "all_ready_s": round(ready_s, 1),
            "operator_started_mib": round(child.started["started_mib"], 1),
            "operator_mib": round(last["mib"], 1),
            "kube_requests_per_topic": _per_topic(before["kube"], first["kube"], topics),
            "rest_requests_per_topic": _per_topic(before["rest"], first["rest"], topics),
            "writes_of_a_pass_with_nothing_to_do": writes(last) - writes(quiet),
            "rest_gets_per_look": round(gets / looks, 2),
        }
        # Before the clean-up, which takes a while.
        print(json.dumps(result, indent=1), flush=True)
    delete_namespace(kube, namespace)


def _per_topic(before: dict[str, int], after: dict[str, int], topics: int) -> dict[str, float]:
    return {
        name: round((count - before.get(name, 0)) / topics, 2)
        for name, count in sorted(after.items())
        if count - before.get(name, 0) > topics / 100
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--resync", type=float, default=60.0, help="seconds between two looks")
    parser.add_argument("--policies", action="store_true", help="each topic has two policies")
    parser.add_argument("--serve", metavar="NAMESPACE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.resync)
        return 0
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG must name a cluster"
    measure(args.topics, args.resync, policies=args.policies)
    return 0


if __name__ == "__main__":
    sys.exit(main())

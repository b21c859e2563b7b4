"""A Kubernetes for tests: whatever KUBECONFIG points to, asked through kubectl, helm and its API.

`Tool` runs a program with a deadline and shows what it printed where it failed. `Capabilities` says
once per run what the cluster can do: answer requests (marker `kube`), run containers (`kube_node`).
Every test has a namespace of its own; a namespace is deleted without waiting for its end, and its
name is never used again. Bounds: each call has a deadline, each wait too.
"""

import json
import os
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config

from magnetar_operator.kube.kinds import Kind

ROOT: Final = Path(__file__).resolve().parents[2]
CRDS: Final = ROOT / "crds"
CALL_TIMEOUT_S: Final = 60.0
PROBE_TIMEOUT_S: Final = 30
ESTABLISHED_S_MAX: Final = 60
RIGHTS_S_MAX: Final = 60.0
POLL_S: Final = 0.1
SIMULATED_NODE: Final = "kwok.x-k8s.io/node"
"""The annotation of nodes that start nothing, though their pods turn Running."""
NODE: Final = Kind("v1", "Node", "nodes", namespaced=False)
TEST_LABEL: Final = "magnetar.io/test"
TOOLS_NAME: Final = "magnetar-tools:"
SPARK_NAME: Final = "magnetar-spark:"
ETCD_IMAGE: Final = "quay.io/coreos/etcd:v3.5.21"
"""The chart's; KUBE_TEST_ETCD_IMAGE names another, for clusters that reach no registry."""


class ToolError(AssertionError):
    """A program that ended with another code than 0, with all that it printed."""

    def __init__(self, command: list[str], code: int, out: str, err: str) -> None:
        super().__init__(f"{' '.join(command)}\nended with {code}\n{out}{err}")
        self.code = code
        self.out = out
        self.err = err


@dataclass(frozen=True)
class Tool:
    """kubectl or helm; `namespace` goes before the arguments of every call."""

    program: str
    namespace: str = ""

    def __call__(
        self, *args: object, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> str:
        """What it printed; `ToolError` where it failed, `TimeoutExpired` at the deadline."""
        done = self.run(*args, stdin=stdin, timeout_s=timeout_s)
        if done.returncode:
            raise ToolError(list(done.args), done.returncode, done.stdout, done.stderr)
        return done.stdout

    def run(
        self, *args: object, stdin: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> "subprocess.CompletedProcess[str]":
        """For callers that expect a failure: nothing is raised but at the deadline."""
        where = ["--namespace", self.namespace] if self.namespace else []
        command = [self.program, *where, *map(str, args)]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s
        )

    def json(self, *args: object, stdin: str | None = None) -> Any:
        """For `get`, `apply` and the like: `-o json` is added."""
        return json.loads(self(*args, "-o", "json", stdin=stdin))

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Server-side, so that a second apply of the same changes nothing."""
        documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=documents)

    def within(self, namespace: str) -> "Tool":
        return Tool(self.program, namespace)


def tool(program: str) -> Tool:
    """The program of PATH; a run that was asked to use a cluster fails without it."""
    found = shutil.which(program)
    assert found, f"KUBECONFIG is set, but there is no {program} in PATH"
    return Tool(found)


@dataclass(frozen=True)
class Capabilities:
    """What tests may ask of the cluster, and the line that says so."""

    has_api: bool
    runs_containers: bool
    text: str


def connected() -> client.ApiClient:
    """A client of the cluster that KUBECONFIG points to; its current context counts."""
    settings = client.Configuration()
    config.load_kube_config(client_configuration=settings)
    return client.ApiClient(settings)


def runs_containers(node: Any) -> bool:
    simulated = SIMULATED_NODE in (node.metadata.annotations or {})
    conditions = {each.type: each.status for each in node.status.conditions or ()}
    return not simulated and conditions.get("Ready") == "True"


@cache
def capabilities() -> Capabilities:
    """Asked once per run. Where KUBECONFIG is set and nothing answers, tests run, and fail."""
    if not os.environ.get("KUBECONFIG"):
        return Capabilities(
            False, False, "KUBECONFIG is not set: tests that need it are deselected"
        )
    try:
        with connected() as api:
            server = api.configuration.host
            nodes = client.CoreV1Api(api).list_node(_request_timeout=PROBE_TIMEOUT_S).items
    except Exception as error:  # noqa: BLE001 - of any library: the tests show it in full
        return Capabilities(
            True, True, f"the cluster of KUBECONFIG does not answer: {error!r}"[:200]
        )
    if any(map(runs_containers, nodes)):
        return Capabilities(True, True, f"{server}, runs containers")
    return Capabilities(
        True, False, f"{server}, no Ready node that runs containers: kube_node is deselected"
    )


def wait_allowed(kubectl: Tool, account: str, *what: str) -> None:
    """Waits until the API server knows of rights that were given a moment ago."""
    deadline = time.monotonic() + RIGHTS_S_MAX
    while (said := kubectl.run("auth", "can-i", f"--as={account}", *what)).stdout.strip() != "yes":
        assert time.monotonic() < deadline, f"{account}, {' '.join(what)}: {said}"
        time.sleep(POLL_S)


def fresh_namespace(api: client.ApiClient) -> str:
    name = f"mt-{secrets.token_hex(5)}"
    metadata = client.V1ObjectMeta(name=name, labels={TEST_LABEL: "true"})
    client.CoreV1Api(api).create_namespace(
        client.V1Namespace(metadata=metadata), _request_timeout=CALL_TIMEOUT_S
    )
    return name


def delete_namespace(api: client.ApiClient, name: str) -> None:
    """Asked for, not waited for: what is in it may take its time to go."""
    client.CoreV1Api(api).delete_namespace(
        name, propagation_policy="Background", _request_timeout=CALL_TIMEOUT_S
    )


def apply_crds(kubectl: Tool) -> list[str]:
    """All of crds/*.yaml, until the API server serves them; their names."""
    files = sorted(CRDS.glob("*.yaml"))
    assert files, f"no CRDs in {CRDS.relative_to(ROOT)}: type `make crds`"
    args = [part for file in files for part in ("-f", file)]
    applied = kubectl("apply", "--server-side", "--force-conflicts", "-o", "name", *args).split()
    wait = f"--timeout={ESTABLISHED_S_MAX}s"
    kubectl("wait", "--for=condition=Established", wait, *applied, timeout_s=ESTABLISHED_S_MAX + 10)
    return [name.partition("/")[2] for name in applied]


@dataclass(frozen=True)
class Images:
    """What a cluster can start: of Magnetar, with the official client, with Spark, of etcd."""

    magnetar: str
    tools: str
    etcd: str
    spark: str

    @classmethod
    def of_environment(cls) -> "Images":
        magnetar = os.environ.get("KUBE_TEST_IMAGE", "")
        assert magnetar, "containers are to run, but KUBE_TEST_IMAGE is not set (images/README.md)"
        return cls(
            magnetar,
            os.environ.get("KUBE_TEST_TOOLS_IMAGE") or magnetar.replace("magnetar:", TOOLS_NAME),
            os.environ.get("KUBE_TEST_ETCD_IMAGE") or ETCD_IMAGE,
            os.environ.get("KUBE_TEST_SPARK_IMAGE") or magnetar.replace("magnetar:", SPARK_NAME),
        )

    def helm_values(self) -> dict[str, Any]:
        """For the chart's `-f`."""

        def parts(image: str) -> dict[str, str]:
            repository, _, tag = image.rpartition(":")
            return {"repository": repository, "tag": tag}

        ours = parts(self.magnetar)
        return {
            "defaultImageRepository": ours["repository"],
            "defaultImageTag": ours["tag"],
            "images": {
                "etcd": parts(self.etcd),
                "toolset": parts(self.tools),
                "spark": parts(self.spark),
            },
        }

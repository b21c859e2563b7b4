"""The load: a pod that runs `load_program`, asked through its files."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .world import StepError, World, expect

PROGRAM: Final = Path(__file__).with_name("load_program.py")
POD: Final = "load"
TOPICS: Final = 6
RATE_PER_TOPIC: Final = 40
PADDING_BYTES: Final = 2048
FLOWS_S_MAX: Final = 90.0
RESULT_S_MAX: Final = 300.0


@dataclass
class Load:
    """Started with `start`; `pause_of` tells how long a fault was felt, `finish` what was lost."""

    world: World
    pod: str = POD
    role: str = "admin"
    """Whose token it presents, if the cluster has tokens."""
    namespace: str = "public/default"

    def start(self, topics: int = TOPICS) -> None:
        prefix = "e2e" if self.pod == POD else self.pod
        names = ",".join(f"persistent://{self.namespace}/{prefix}-{n}" for n in range(topics))
        environment = {
            "SERVICE_URL": self.world.service_url,
            "TOPICS": names,
            "RATE": str(RATE_PER_TOPIC),
            "PADDING_BYTES": str(PADDING_BYTES),
        }
        self.world.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self.pod},
                "data": {"load.py": PROGRAM.read_text()},
            },
            client_pod(self.world, self.pod, ["/load/load.py"], environment, self.pod, self.role),
        )
        self.world.eventually("the load pod runs", lambda: self.status() is not None, FLOWS_S_MAX)
        self.flows(at_least=topics * 5)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.world.exec(self.pod, "cat", "/tmp/status.json"))  # noqa: S108
        return found

    def flows(self, at_least: int) -> None:
        """Until so many more messages have a receipt and were received."""
        before = self.status()

        def look() -> bool:
            now = self.status()
            return all(now[key] >= before[key] + at_least for key in ("receipted", "received"))

        self.world.eventually(f"{at_least} more messages sent and received", look, FLOWS_S_MAX)

    def mark(self, name: str) -> None:
        """Begins a window; pauses before it are forgotten."""
        self.world.exec(self.pod, "sh", "-c", f"printf %s '{name}' > /tmp/mark")
        self.world.eventually("the mark is seen", lambda: self.status()["mark"] == name)

    def pause_of(self, name: str, at_least: int = 60) -> float:
        """The longest time without a receipt of any topic since the mark, once messages flow."""
        self.flows(at_least)
        found = self.status()
        expect(found["mark"] == name, f"the window {name} ended too early: {found}")
        return float(found["longest_pause_s"])

    def finish(self) -> dict[str, Any]:
        self.world.exec(self.pod, "touch", "/tmp/stop")  # noqa: S108

        def look() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(self.world.exec(self.pod, "cat", "/tmp/result.json"))  # noqa: S108
            return found

        return self.world.eventually("the load's result", look, RESULT_S_MAX)


def client_pod(
    world: World,
    name: str,
    arguments: list[str],
    environment: dict[str, str],
    config_map: str,
    role: str,
) -> dict[str, Any]:
    """A client's pod, with the authorities and the role's token if the cluster has them.

    Without a role it has no token.
    """
    made = pod(name, world.images.tools, arguments, environment, config_map)
    spec = made["spec"]
    (container,) = spec["containers"]

    def add(volume: str, variable: str, file: str, source: dict[str, Any]) -> None:
        spec["volumes"].append({"name": volume, **source})
        mount = {"name": volume, "mountPath": f"/{volume}", "readOnly": True}
        container["volumeMounts"].append(mount)
        container["env"].append({"name": variable, "value": f"/{volume}/{file}"})

    if world.has_tls:
        add("trust", "TRUST_FILE", "ca.crt", {"configMap": {"name": f"{world.cluster}-ca"}})
    if world.has_tokens and role:
        secret = {"secretName": f"{world.cluster}-token-{role}"}
        add("token", "TOKEN_FILE", "TOKEN", {"secret": secret})
    return made


def pod(
    name: str, image: str, arguments: list[str], environment: dict[str, str], config_map: str
) -> dict[str, Any]:
    """As restricted as the chart's own."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", *arguments],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "load", "mountPath": "/load"},
        ],
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "load"}},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "load", "configMap": {"name": config_map}},
            ],
        },
    }


def start_asker(world: World, name: str = "asker", role: str = "admin") -> None:
    """A pod that only waits to be told what to ask."""
    start_idle(world, name, role)
    world.asker = name


def start_idle(world: World, name: str, role: str) -> None:
    """A pod of a role, for programs that `World.exec` starts in it."""
    sleep = ["-c", "import time; time.sleep(86400)"]
    world.kubectl.apply(client_pod(world, name, sleep, {}, "kube-root-ca.crt", role))
    world.kubectl("wait", "--for=condition=Ready", "--timeout=60s", f"pod/{name}", timeout_s=70)


def felt(load: Load, name: str, seconds: float) -> str:
    """For a step's note."""
    return f"{name}: receipts paused for {seconds:.1f} s"


def settle(seconds: float) -> None:
    """Load goes on for a while, so that there is something that could be lost."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 1.0))


def verdict(result: dict[str, Any]) -> str:
    """The result as a sentence; `StepError` where anything receipted is gone."""
    lost, missing, disorder = result["lost"], result["not_received"], result["disorder"]
    if lost or missing or disorder:
        raise StepError(f"lost {lost}, not received {missing}, out of order {disorder}: {result}")
    return (
        f"{result['receipted']} receipted messages: all received in order, and all read again; "
        f"{result['duplicates']} duplicates, {result['errors']} errors of the client"
    )

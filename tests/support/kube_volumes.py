"""Volumes that are directories of the node, opened to the pods that claim them.

Kubernetes hands a volume to a pod's `fsGroup`, but not one that is a plain directory of the node:
Kubernetes' own host-path provisioner, which test clusters use, makes those as root's, and a pod
that is not root cannot write there. Where it provisions, a DaemonSet in a namespace of its own
opens each new directory, which is before the pod that waits for it starts.
"""

from typing import Any, Final

from tests.support.kube import Tool

PROVISIONER: Final = "kubernetes.io/host-path"
DIRECTORY: Final = "/tmp/hostpath_pv"  # noqa: S108 - where that provisioner makes them, always
NAMESPACE: Final = "magnetar-test-volumes"
READY_S_MAX: Final = 180

PROGRAM: Final = f"""
import pathlib, time
opened = set()
while True:
    for each in pathlib.Path({DIRECTORY!r}).iterdir():
        if each not in opened:
            each.chmod(0o777)
            opened.add(each)
    time.sleep(0.1)
"""


def needs_opening(kubectl: Tool) -> bool:
    classes = kubectl.json("get", "storageclasses")["items"]
    return any(each["provisioner"] == PROVISIONER for each in classes)


def daemon_set(image: str) -> dict[str, Any]:
    labels = {"app": "volumes"}
    container = {
        "name": "volumes",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", PROGRAM],
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": "volumes", "mountPath": DIRECTORY}],
    }
    path = {"path": DIRECTORY, "type": "DirectoryOrCreate"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "volumes", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "volumes", "hostPath": path}],
                    "terminationGracePeriodSeconds": 0,
                    "automountServiceAccountToken": False,
                },
            },
        },
    }


def open_volumes(kubectl: Tool, image: str) -> bool:
    """Whether that was needed; `image` is any with Python."""
    if not needs_opening(kubectl):
        return False
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    kubectl.apply(namespace, daemon_set(image))
    wait = ("rollout", "status", "daemonset/volumes", f"--timeout={READY_S_MAX}s")
    kubectl.within(NAMESPACE)(*wait, timeout_s=READY_S_MAX + 10)
    return True

"""The chart where containers run: messages outlive an upgrade, a rollback, an uninstall.

One release for the whole file, small and with fixed steps, for a start takes its time: a batch of
messages is written first and read last, and a stream of them runs through the changes between.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kubernetes import client
from tests.support.kube import Images, Tool, delete_namespace, fresh_namespace

pytestmark = [pytest.mark.kube_node, pytest.mark.timeout(1200)]

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "magnetar"
READY_S: Final = 240
KEPT: Final = 200
VALUES: Final[dict[str, Any]] = {
    "affinity": {"anti_affinity": False},
    "components": {"toolset": True},
    "dashboards": {"enabled": False},
    "etcd": {"replicaCount": 1, "volumes": {"data": {"size": "1Gi"}}},
    "bookkeeper": {
        "volumes": {"common": {"size": "1Gi"}},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    },
    "broker": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
}

WRITE: Final = """
import pulsar, sys
client = pulsar.Client(sys.argv[1])
client.subscribe("kept", "kept").close()
producer = client.create_producer("kept")
for number in range(int(sys.argv[2])):
    producer.send(b"%d" % number)
client.close()
"""
READ: Final = """
import pulsar, sys
client = pulsar.Client(sys.argv[1])
consumer = client.subscribe("kept", "kept", initial_position=pulsar.InitialPosition.Earliest)
for number in range(int(sys.argv[2])):
    message = consumer.receive(timeout_millis=60000)
    assert message.data() == b"%d" % number, (number, message.data())
client.close()
"""
# Ends when its input does; says how many were receipted once it has received all of them in order.
# The client's own lines go to a file: they would come into the midst of ours.
STREAM: Final = """
import pulsar, sys, threading, time
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
log = pulsar.FileLogger(pulsar.LoggerLevel.Info, "/tmp/stream.log")
client = pulsar.Client(sys.argv[1], operation_timeout_seconds=60, logger=log)
consumer = client.subscribe("stream", "stream")
producer = client.create_producer("stream", send_timeout_millis=120000)
sent = 0
print("begun", flush=True)
while not ended.is_set():
    producer.send(b"%d" % sent)
    sent += 1
    time.sleep(0.01)
expected = 0
while expected < sent:
    message = consumer.receive(timeout_millis=60000)
    number = int(message.data())
    # One that was sent again, for its receipt was lost, may come twice; none may be left out.
    assert number <= expected, (number, expected)
    expected = max(expected, number + 1)
    consumer.acknowledge(message)
print(sent, flush=True)
client.close()
"""


class Release:
    """The release `r` in a namespace."""

    def __init__(self, kubectl: Tool, helm: Tool, images: Images) -> None:
        self.kubectl = kubectl
        self._helm = helm
        self._images = images

    def helm(self, action: str, *more: str) -> str:
        return self._helm(action, "r", *more, timeout_s=READY_S + 10)

    def apply(self, action: str, **values: Any) -> None:
        """Installs or upgrades, until all of it is ready."""
        files = json.dumps({**VALUES, **self._images.helm_values(), **values})
        where = ("--wait", "--timeout", f"{READY_S}s", "-f", "-")
        self._helm(action, "r", CHART, *where, stdin=files, timeout_s=READY_S + 10)

    def python(self, program: str, *args: object) -> str:
        """A program in the toolset's pod."""
        url = f"pulsar://r-broker.{self.kubectl.namespace}.svc:6650"
        where = ("exec", "r-toolset-0", "--", "python", "-c", program, url)
        return self.kubectl(*where, *args, timeout_s=READY_S)

    def stream(self) -> "subprocess.Popen[str]":
        """STREAM, begun."""
        url = f"pulsar://r-broker.{self.kubectl.namespace}.svc:6650"
        where = ["--namespace", self.kubectl.namespace, "exec", "-i", "r-toolset-0", "--"]
        started = subprocess.Popen(
            [self.kubectl.program, *where, "python", "-c", STREAM, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert started.stdout
        assert started.stdout.readline() == "begun\n"
        return started

    def uids(self, component: str) -> set[str]:
        """Of the pods that run."""
        found = self.kubectl.json("get", "pod", "-l", f"component={component}")["items"]
        return {
            each["metadata"]["uid"] for each in found if "deletionTimestamp" not in each["metadata"]
        }

    def wait_rolled(self) -> None:
        """Until no old pod is left: Helm waits only until as many new ones as must be are ready."""
        for what in ("deployment/r-broker", "statefulset/r-bookie"):
            timeout = f"--timeout={READY_S}s"
            self.kubectl("rollout", "status", what, timeout, timeout_s=READY_S + 10)


@pytest.fixture(scope="module")
def release(
    kube_api: client.ApiClient, kubectl: Tool, helm: Tool, images: Images
) -> Iterator[Release]:
    namespace = fresh_namespace(kube_api)
    found = Release(kubectl.within(namespace), helm.within(namespace), images)
    try:
        found.apply("install")
        found.python(WRITE, KEPT)
        yield found
    finally:
        delete_namespace(kube_api, namespace)


def test_helms_test_passes(release: Release) -> None:
    assert "Phase:          Succeeded" in release.helm("test", "--timeout", "120s")


def test_settings_change_and_change_back_under_load(release: Release) -> None:
    """Brokers and bookies are restarted one by one, twice; nothing that was receipted is lost."""
    before = {each: release.uids(each) for each in ("broker", "bookie", "etcd")}
    stream = release.stream()
    broker = {**VALUES["broker"], "configData": {"managedLedgerCacheSizeMB": "32"}}
    bookie = {**VALUES["bookkeeper"], "configData": {"read_cache_mb": 16}}
    release.apply("upgrade", broker=broker, bookkeeper=bookie)
    release.wait_rolled()
    upgraded = {each: release.uids(each) for each in before}
    assert not before["broker"] & upgraded["broker"]
    assert not before["bookie"] & upgraded["bookie"]
    assert before["etcd"] == upgraded["etcd"]
    release.helm("rollback", "--wait", "--timeout", f"{READY_S}s")
    release.wait_rolled()
    assert not upgraded["broker"] & release.uids("broker")
    said, _ = stream.communicate(timeout=READY_S)
    assert stream.returncode == 0
    assert int(said) > 100


def test_an_uninstall_keeps_what_was_written(release: Release) -> None:
    claims = release.kubectl.json("get", "pvc")["items"]
    release.helm("uninstall", "--wait", "--timeout", f"{READY_S}s")
    release.kubectl("wait", "pod", "--all", "--for=delete", "--timeout=120s", timeout_s=130)
    kept = release.kubectl.json("get", "pvc")["items"]
    assert [each["metadata"]["uid"] for each in kept] == [
        each["metadata"]["uid"] for each in claims
    ]
    release.apply("install")
    release.python(READ, KEPT)

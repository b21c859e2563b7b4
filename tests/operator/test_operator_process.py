"""The operator's process: one acts at a time; killed anywhere, it is taken up; RBAC fits."""

import asyncio
import datetime
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.operator.cluster_rig import NAME, Rig, processes, rig

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.cluster.reconciler import ClusterReconciler
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import (
    CLUSTER,
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    PDB,
    PERMISSION,
    POD,
    SERVICE,
    SERVICE_MONITOR,
    STATEFUL_SET,
    SUBSCRIPTION,
    TENANT,
    TOPIC,
    Object,
)
from magnetar_operator.kube.lease import HOLD_S, LEASE_S, Leadership, NotLeading
from magnetar_operator.kube.rbac import CLUSTER_RULES, WATCH, missing, text
from magnetar_operator.settings import Settings

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

LEASE_NAME = "operator"


@pytest.fixture
async def kube() -> AsyncIterator[KubeClient]:
    client = KubeClient.connect()
    yield client
    await client.close()


@pytest.fixture
async def on(kube_namespace: str, crds: list[str]) -> AsyncIterator[Rig]:
    async with rig(kube_namespace) as test_rig:
        yield test_rig


class Hand:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_the_lease_is_taken_over_only_after_its_holder_has_stopped(
    kube: KubeClient, kube_namespace: str
) -> None:
    clock = Hand()
    first = Leadership(kube, kube_namespace, LEASE_NAME, "first", clock)
    second = Leadership(kube, kube_namespace, LEASE_NAME, "second", clock)
    assert await first._try()
    first.check()
    assert not await second._try()
    # The first is paused from here on; the second watches.
    while not await second._try():
        assert not (first.held and second.held)
        with pytest.raises(NotLeading):
            second.check()
        clock.now += 1.0
    assert clock.now - 100.0 >= LEASE_S > HOLD_S
    with pytest.raises(NotLeading):
        first.check()
    assert not await first._write(), "what it knows is out of date"
    await second.release()
    assert await first._try(), "what is given up is free at once"


async def test_nothing_is_written_without_the_lease(kube: KubeClient, kube_namespace: str) -> None:
    leadership = Leadership(kube, kube_namespace, LEASE_NAME, "nobody")
    guarded = KubeClient.connect()
    guarded.guard = leadership.check
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": kube_namespace},
    }
    with pytest.raises(NotLeading):
        await guarded.apply(manifest)
    assert await guarded.find(CONFIG_MAP, "x", kube_namespace) is None
    await guarded.close()


@contextmanager
def operator_process(
    namespace: str, identity: str, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [
        *(sys.executable, "-m", "magnetar.cli.main", "operator", "--namespace", namespace),
        *("--lease-namespace", namespace, "--identity", identity, "--resync-s", "1"),
        *("--host", "127.0.0.1", "--port", "0", "--image", "magnetar:test"),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)


async def until(what: str, holds: Callable[[], Any], wait_s: float = 90.0) -> Any:
    deadline = time.monotonic() + wait_s
    while True:
        outcome = await holds()
        if outcome:
            return outcome
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.2)


async def test_the_second_operator_continues_where_the_first_was_killed(
    on: Rig, tmp_path: Path
) -> None:
    """SIGKILL during a reconcile; the other operator starts and completes it."""

    async def holder() -> str:
        lease = await on.kube.find(LEASE, "magnetar-operator", on.namespace)
        return str((lease or {}).get("spec", {}).get("holderIdentity", ""))

    async def bookies() -> list[Object]:
        await on.kubelet()
        return await on.kube.list(POD, on.namespace, labels={"component": "bookie"})

    with (
        operator_process(on.namespace, "one", tmp_path / "one.log") as one,
        operator_process(on.namespace, "two", tmp_path / "two.log") as two,
    ):
        first = await until("a holder", holder)
        leading, waiting = (one, two) if first == "one" else (two, one)
        await on.apply()
        await until("etcd", lambda: on.kube.find(STATEFUL_SET, f"{NAME}-etcd", on.namespace))
        leading.send_signal(signal.SIGKILL)
        # Nobody acts until the lease has run out; then the other makes the bookies.
        pods = await until("bookies", bookies)
        assert len(pods) <= 3
        second = await holder()
        assert {first, second} == {"one", "two"}
        owned = await on.kube.list(STATEFUL_SET, on.namespace)
        assert {item["metadata"]["name"] for item in owned} == {f"{NAME}-etcd", f"{NAME}-bookie"}
        # A graceful end releases the lease and deletes nothing.
        waiting.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(waiting.wait, 60) == 0
        assert await holder() == ""
        assert len(await on.kube.list(STATEFUL_SET, on.namespace)) == 2


class Dying(KubeClient):
    """Its process dies at the given request, before the answer is read.

    To the world that is the same as before the next one is sent.
    """

    left = 10**9

    async def request(self, *args: Any, **kwargs: Any) -> Object:
        self.left -= 1
        is_last = self.left == 0
        try:
            return await super().request(*args, **kwargs)
        finally:
            if is_last:
                raise asyncio.CancelledError


async def harm(on: Rig) -> None:
    """Something of every kind is missing or changed."""
    await on.kube.delete(CONFIG_MAP, f"{NAME}-broker", on.namespace)
    await on.kube.delete(SERVICE, f"{NAME}-bookie", on.namespace)
    await on.kube.delete(PDB, f"{NAME}-broker", on.namespace)
    await on.kube.delete(DEPLOYMENT, f"{NAME}-broker", on.namespace)
    await on.kube.scale(STATEFUL_SET, on.namespace, f"{NAME}-bookie", 2)
    policy = {"spec": {"policyTypes": ["Ingress", "Egress"]}}
    await on.kube.merge(NETWORK_POLICY, on.namespace, f"{NAME}-etcd", policy)


@pytest.mark.timeout(600)
async def test_a_reconcile_that_dies_at_any_request_is_continued(on: Rig, tmp_path: Path) -> None:
    """At its first request, its second, …, until it comes through."""
    dying = Dying.connect()
    async with processes(tmp_path, 3) as members:
        await on.apply(adminUrl=members.admin_url)
        await on.until_condition("Ready", "True")
        for number in range(1, 200):
            await harm(on)
            clients = AdminClients()
            settings = Settings(image="magnetar:test", etcd_image="etcd:test")
            handler = ClusterReconciler(settings, dying, Events(dying), clients)
            dying.left = number
            look = asyncio.ensure_future(handler.reconcile(await on.owner()))
            await asyncio.wait({look})
            await clients.close()
            # The next process needs one reconcile; then nothing is left to do.
            await on.look()
            await on.look()
            assert await on.bookies() == 3
            on.asked.requests.clear()
            await on.handler.reconcile(await on.owner())
            requests = {key for key in on.asked.requests if key[0] not in ("get", "list")}
            assert requests <= {("patch", "magnetar.io", "magnetarclusters/status")}, number
            if not look.cancelled():
                look.result()
                break
        assert number > 25, "it came through too soon"
        await on.until_condition("Ready", "True")
    await dying.close()


@pytest.fixture
async def service_monitors(kube: KubeClient) -> AsyncIterator[None]:
    """Their CRD, as far as the operator needs it."""
    names = {"plural": "servicemonitors", "singular": "servicemonitor", "kind": "ServiceMonitor"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    name = "servicemonitors.monitoring.coreos.com"
    before = await kube.find(CRD, name)
    manifest = {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": name},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    if before is None:
        await kube.create(manifest)
        await until("the CRD", lambda: kube.serves(SERVICE_MONITOR))
    yield
    if before is None:
        await kube.delete(CRD, name)


async def test_the_role_has_exactly_the_rights_that_a_lifecycle_uses(
    on: Rig, tmp_path: Path, service_monitors: None
) -> None:
    """A cluster with all options, upgraded and scaled meanwhile, and reduced at the end."""
    everything: dict[str, Any] = {
        "autorecovery": {"mode": "Separate"},
        "broker": {"autoscaling": {"enabled": True}},
        "storageRetention": "Delete",
    }
    async with processes(tmp_path, 3) as members:
        everything["adminUrl"] = members.admin_url
        await on.apply(**everything)
        await on.until_condition("Ready", "True")
        on.unready = {f"{NAME}-bookie-2"}
        await on.apply(**{**everything, "image": "magnetar:next"})

        async def first_is_replaced() -> bool:
            pods = await on.kube.list(POD, on.namespace, labels={"component": "bookie"})
            return "magnetar:next" in {pod["spec"]["containers"][0]["image"] for pod in pods}

        await on.until("the first restart", first_is_replaced)
        # Brokers wait for the bookies, but not with their number.
        broker = {"autoscaling": {"enabled": True}, "replicas": 3}
        await on.apply(**{**everything, "image": "magnetar:next", "broker": broker})
        await on.look()
        brokers = await on.kube.get(DEPLOYMENT, f"{NAME}-broker", on.namespace)
        assert brokers["spec"]["replicas"] == 3
        assert brokers["spec"]["template"]["spec"]["containers"][0]["image"] == "magnetar:test"
        on.unready = set()
        await on.until_condition("Upgrading", "False")
        await members.follow(on)
        await on.annotate(**{"replace-volume": f"{NAME}-bookie-0"})

        async def volume_is_new() -> bool:
            await members.follow(on)
            owner = await on.owner()
            requested = "magnetar.io/replace-volume" in owner["metadata"].get("annotations", {})
            return not requested and "drain" not in owner["status"]

        await on.until("a new volume", volume_is_new)
        off = {"pdb": {"enabled": False}}
        await on.apply(
            adminUrl=members.admin_url,
            image="magnetar:next",
            broker=off,
            bookie=off,
            metrics={"serviceMonitor": "Never"},
            networkPolicy={"enabled": False},
        )
        await on.look()
    now = [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]
    events = Events(on.asked, lambda: now[0])
    for _ in range(2):
        await events.record(await on.owner(), "Told", "twice")
        now[0] += datetime.timedelta(minutes=10)
    assert missing(on.asked.requests, ("watched",)) == []
    parts = {
        (verb, rule.kind.group, rule.resource)
        for rule in CLUSTER_RULES
        if rule.scope == "watched"
        and rule.kind not in (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION, PERMISSION)
        for verb in rule.verbs
    }
    watched = {
        (verb, kind.group, kind.plural)
        for kind in (CLUSTER, STATEFUL_SET, DEPLOYMENT, POD)
        for verb in WATCH
    }
    assert parts - set(on.asked.requests) - watched == set(), "verbs that nothing needs"


def test_the_charts_roles_are_generated_from_the_list() -> None:
    path = Path(__file__).parents[2] / "charts/magnetar/files/operator-rbac.yaml"
    assert path.read_text() == text(), "python -m magnetar_operator.kube.rbac > " + path.name

"""A node is drained, by kubectl: one bookie at a time, and none while ledgers lack copies.

The nodes are objects that no kubelet serves, the pods are bound to them by hand, and the test ends
pods that are being deleted: everything else (evictions, disruption budgets, the pods that are made
anew) is the API server's and its controllers' own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.operator.cluster_rig import NAME, Processes, Rig, processes, rig
from tests.operator.test_cluster_live import complete, publish, read_all
from tests.support.kube import NODE, SIMULATED_NODE, Tool

from magnetar_operator.kube.client import KubeError
from magnetar_operator.kube.kinds import PDB, POD, Object

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]

REFUSED = "disruption budget"
DRAIN_S = 180
LEAVES, STAYS = "leaves", "stays"


@pytest.fixture
async def on(kube_namespace: str, crds: list[str]) -> AsyncIterator[Rig]:
    async with rig(kube_namespace) as test_rig:
        yield test_rig


@asynccontextmanager
async def nodes(on: Rig) -> AsyncIterator[dict[str, str]]:
    """Two that nothing is scheduled to; their names."""
    found = {item: f"{on.namespace}-{item}" for item in (LEAVES, STAYS)}
    for name in found.values():
        metadata = {"name": name, "annotations": {SIMULATED_NODE: "by hand"}}
        taint = {"key": "magnetar.io/nowhere", "effect": "NoSchedule"}
        kind = {"apiVersion": NODE.api_version, "kind": NODE.kind}
        body = {**kind, "metadata": metadata, "spec": {"taints": [taint]}}
        await on.kube.request("POST", NODE.path(None), None, body)
    try:
        yield found
    finally:
        for name in found.values():
            await on.kube.delete(NODE, name)


async def bookies(on: Rig) -> list[Object]:
    return await on.kube.list(POD, on.namespace, labels={"component": "bookie"})


async def bind(on: Rig, pod: str, node: str) -> None:
    """As the scheduler would."""
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": on.namespace},
        "target": {"kind": NODE.kind, "apiVersion": NODE.api_version, "name": node},
    }
    await on.kube.request("POST", POD.path(on.namespace, pod, "binding"), None, body)


async def evict(on: Rig, pod: str) -> KubeError | None:
    """The refusal."""
    metadata = {"name": pod, "namespace": on.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    try:
        await on.kube.request("POST", POD.path(on.namespace, pod, "eviction"), None, body)
    except KubeError as error:
        return error
    return None


async def is_evictable(on: Rig) -> bool:
    """Whether the budget lets a bookie go, as of its newest form."""
    budget = await on.kube.get(PDB, f"{NAME}-bookie", on.namespace)
    status = budget.get("status", {})
    current = status.get("observedGeneration") == budget["metadata"]["generation"]
    return bool(current and status.get("disruptionsAllowed") == 1)


async def is_shut(on: Rig) -> bool:
    """Whether the budget lets none go, and the API server knows."""
    budget = await on.kube.get(PDB, f"{NAME}-bookie", on.namespace)
    status = budget.get("status", {})
    current = status.get("observedGeneration") == budget["metadata"]["generation"]
    return bool(current and status.get("disruptionsAllowed") == 0)


@dataclass
class Drained:
    """Plays the machines while a node is drained; records which bookies were down when."""

    on: Rig
    found: Processes
    nodes: dict[str, str]
    said: Path
    """What kubectl prints."""
    evicted: list[str] = field(default_factory=list)
    away_max: int = 0

    async def turn(self) -> None:
        """Pods that are deleted end, and their bookies; new ones start on the node that stays."""
        pods = await bookies(self.on)
        for pod in pods:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                await self._end(name, pod["metadata"]["uid"])
            elif not pod["spec"].get("nodeName"):
                await bind(self.on, name, self.nodes[STAYS])
        self.away_max = max(self.away_max, len(self.on.unready))
        unfinished = [pod for pod in pods if pod["spec"].get("nodeName") == self.nodes[LEAVES]]
        # The evicted bookie returns once the next eviction was refused.
        if self.on.unready and (REFUSED in self.said.read_text() or not unfinished):
            await self._start()

    async def _end(self, name: str, uid: str) -> None:
        if name not in self.on.unready:
            self.evicted.append(name)
            self.on.unready.add(name)
            await self.found.stop_bookie(int(name[-1]))
        await self.on.kube.delete(POD, name, self.on.namespace, uid=uid, grace_period_s=0)

    async def _start(self) -> None:
        for name in sorted(self.on.unready):
            await self.found.start_bookie(int(name[-1]))
        self.on.unready.clear()
        self.said.write_text("")


async def test_an_eviction_is_refused_while_ledgers_lack_copies(on: Rig, tmp_path: Path) -> None:
    async with processes(tmp_path, 3, copies=3) as members:
        await complete(on, members)
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        await members.stop_bookie(2)
        await on.until_condition("LedgersHealthy", "False")
        await on.until("no leave to evict one", lambda: is_shut(on))
        uids = {bookie["metadata"]["uid"] for bookie in await bookies(on)}
        for index in range(3):
            refused = await evict(on, f"{NAME}-bookie-{index}")
            assert refused is not None
            assert refused.status == 429
            assert REFUSED in refused.message
        assert {bookie["metadata"]["uid"] for bookie in await bookies(on)} == uids
        await members.start_bookie(2)
        await on.until("leave to evict one", lambda: is_evictable(on))
        assert await evict(on, f"{NAME}-bookie-0") is None
        refused = await evict(on, f"{NAME}-bookie-1")
        assert refused is not None
        assert refused.status == 429


async def test_kubectl_drains_a_node_of_bookies_one_after_the_other(
    on: Rig, tmp_path: Path, kubectl: Tool
) -> None:
    async with processes(tmp_path, 3) as members, nodes(on) as named:
        await complete(on, members)
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        for index in range(3):
            await bind(on, f"{NAME}-bookie-{index}", named[STAYS if index == 2 else LEAVES])
        await on.until("leave to evict one", lambda: is_evictable(on))
        output = tmp_path / "drain.log"
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_S}s")
        with output.open("ab") as out:
            drain = await asyncio.create_subprocess_exec(
                kubectl.program, "drain", named[LEAVES], *flags, stdout=out, stderr=out
            )
        machines = Drained(on, members, named, output)

        async def is_drained() -> bool:
            await machines.turn()
            return drain.returncode is not None and not on.unready

        try:
            await on.until("the node to be drained", is_drained, DRAIN_S)
        finally:
            if drain.returncode is None:
                drain.kill()
        assert await drain.wait() == 0, output.read_text()
        assert sorted(machines.evicted) == [f"{NAME}-bookie-0", f"{NAME}-bookie-1"]
        assert machines.away_max == 1
        await on.until_condition("Ready", "True")
        assert {bookie["spec"]["nodeName"] for bookie in await bookies(on)} == {named[STAYS]}
        await asyncio.to_thread(read_all, members.service_url, tmp_path)

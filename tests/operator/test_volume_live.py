"""A bookie's volume replaced, on a real API server, beside real bookies and a real broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.operator.cluster_rig import NAME, SETTINGS, Processes, Rig, processes, rig
from tests.operator.test_cluster_live import complete, publish, read_all
from tests.operator.test_operator_process import until

from magnetar_operator.admin.client import AdminClient, AdminClients
from magnetar_operator.cluster.reconciler import ClusterReconciler
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import PDB, PVC, Object

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

BOOKIE = f"{NAME}-bookie-1"
REQUEST = "replace_volume"
DONE_S = 60.0


@pytest.fixture
async def on(kube_namespace: str, crds: list[str]) -> AsyncIterator[Rig]:
    async with rig(kube_namespace) as test_rig:
        yield test_rig


async def ask(on: Rig, bookie: str | None) -> None:
    await on.annotate(**{REQUEST.replace("_", "-"): bookie})


async def claims(on: Rig) -> dict[str, str]:
    """Their uids, by name."""
    volume_claims = await on.kube.list(PVC, on.namespace, labels={"component": "bookie"})
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in volume_claims}


async def health(found: Processes) -> dict[str, Any]:
    """The bookies that are registered."""
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(f"{found.admin_url}/admin/v2/magnetar/ledgers/health")
    return {bookie["bookieId"]: bookie for bookie in answer.json()["bookies"]}


async def is_replaced(on: Rig, found: Processes, seen: set[str]) -> bool:
    """The disks follow the claim; whether nothing is left to be done."""
    await found.follow(on)
    owner = await on.owner()
    status = owner.get("status", {})
    drain = status.get("drain", {})
    seen |= {status.get("phase", ""), drain.get("step", ""), drain.get("reason", "")}
    statuses = {
        condition["type"]: condition["status"] for condition in status.get("conditions", ())
    }
    requested = "magnetar.io/replace-volume" in owner["metadata"].get("annotations", {})
    return not requested and not drain and statuses.get("ReplacingVolume") == "False"


async def test_a_volume_is_replaced_after_its_proof_and_the_old_disks_are_retired(
    on: Rig, tmp_path: Path
) -> None:
    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        await members.follow(on)
        volumes, before = await claims(on), await health(members)
        await ask(on, BOOKIE)
        await on.look()
        assert await claims(on) == volumes, "not before the proof"
        budget = await on.kube.get(PDB, f"{NAME}-bookie", on.namespace)
        assert budget["spec"]["maxUnavailable"] == 0, "no other may be evicted"
        # A label that the operator selects by is removed: the claim still exists.
        unlabelled = {"metadata": {"labels": {"cluster": None}}}
        await on.kube.merge(PVC, on.namespace, f"data-{BOOKIE}", unlabelled)
        seen: set[str] = set()
        await on.until("the new volume", lambda: is_replaced(on, members, seen), DONE_S)
        assert {"ReplacingVolume", "Removing", "Registering", "volume"} <= seen
        after = await claims(on)
        assert {name for name in after if after[name] != volumes[name]} == {f"data-{BOOKIE}"}
        now = await health(members)
        assert now[BOOKIE]["incarnation"] != before[BOOKIE]["incarnation"]
        assert now[BOOKIE].get("incarnationsBefore", 0) == 0, "the old disks are retired"
        assert now[BOOKIE]["writable"]
        assert not now[BOOKIE]["draining"]
        assert len(await on.notes("VolumeDeleted")) == 1
        assert any("takes new ledgers" in event for event in await on.notes("VolumeReplaced"))
        await on.until_condition("Ready", "True")
        assert await on.handler.reconcile(await on.owner()) is None, "nothing begins again"
        await asyncio.to_thread(read_all, members.service_url, tmp_path)


async def test_a_replacement_is_refused_if_too_few_bookies_would_be_left(
    on: Rig, tmp_path: Path
) -> None:
    async with processes(tmp_path, 2) as members:
        await complete(on, members, bookie={"replicas": 2})
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        volumes = await claims(on)
        await ask(on, BOOKIE)
        refused = await on.until_condition("VolumeReplacementRefused", "True")
        assert "Add a bookie first" in refused["message"]
        assert "ledger" in refused["message"]
        assert (await on.status())["drain"]["step"] == "Refused"
        await ask(on, f"{NAME}-bookie-7")

        async def told() -> bool:
            return "m-bookie-0 to m-bookie-1" in (await on.condition(refused["type"]))["message"]

        await on.until("which bookies there are", told)
        await ask(on, None)
        await on.until_condition("VolumeReplacementRefused", "False")
        assert await claims(on) == volumes


class Mortal(KubeClient):
    """Its process dies at every write: the server has executed it, and the answer is lost."""

    async def request(self, method: str, *args: Any, **kwargs: Any) -> Object:
        answer = await super().request(method, *args, **kwargs)
        if method != "GET":
            raise asyncio.CancelledError
        return answer


async def test_an_operator_killed_at_every_write_still_replaces_the_volume(
    on: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process gets one write done, of Kubernetes or of the brokers: all states are met."""
    call = AdminClient.call

    async def fatal(self: AdminClient, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = await call(self, method, *args, **kwargs)
        if method != "GET":
            raise asyncio.CancelledError
        return answer

    async with processes(tmp_path, 3) as members:
        await complete(on, members)
        await asyncio.to_thread(publish, members.service_url, tmp_path)
        await members.follow(on)
        volumes, before = await claims(on), await health(members)
        await ask(on, BOOKIE)
        monkeypatch.setattr(AdminClient, "call", fatal)
        deaths = 0
        changes: set[tuple[str, str]] = set()

        async def dies_and_is_followed() -> bool:
            nonlocal deaths
            mortal = Mortal.connect()
            clients = AdminClients()
            handler = ClusterReconciler(SETTINGS, mortal, Events(mortal), clients)
            look = asyncio.ensure_future(handler.reconcile(await on.owner()))
            await asyncio.wait({look})
            await clients.close()
            await mortal.close()
            deaths += look.cancelled()
            await on.kubelet()
            changes.update((await claims(on)).items())
            return await is_replaced(on, members, set())

        await until("the new volume", dies_and_is_followed, DONE_S)
        monkeypatch.undo()
        assert deaths >= 8
        assert changes - set(volumes.items()) == {
            (f"data-{BOOKIE}", (await claims(on))[f"data-{BOOKIE}"])
        }, "one volume, once"
        now = await health(members)
        assert now[BOOKIE]["incarnation"] != before[BOOKIE]["incarnation"]
        assert not any(item["draining"] for item in now.values())
        await on.until_condition("Ready", "True")
        await asyncio.to_thread(read_all, members.service_url, tmp_path)

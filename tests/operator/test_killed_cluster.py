"""The operator dies at every place of a look at a MagnetarCluster; the next one goes on from there.

A cluster is made, one of its settings is changed (its bookies are restarted one by one), a bookie
is added and taken away again (drained and proven), over a real API server with its controllers,
real bookies and a real broker, with a clock of the test's own. During each of these steps operators
die one after the other, each where it first comes to one of the places that the step has, until
all places had their death. Each time the cluster becomes what it becomes in an undisturbed life,
and nothing is deleted that is not deleted there.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pytest
from kubernetes import client
from tests.operator.cluster_rig import NAME, SETTINGS, Processes, Rig, at_rest, processes, rig
from tests.operator.killed_rig import Aside, Course, aside, at_place, course
from tests.operator.test_cluster_live import publish, read_all
from tests.support.kube import delete_namespace, fresh_namespace
from tests.support.stepped_loop import FakeClock, Point

from magnetar_operator.cluster.observe import KINDS
from magnetar_operator.cluster.reconciler import register
from magnetar_operator.engine.context import Context
from magnetar_operator.kube.kinds import CLUSTER, DEPLOYMENT, POD, PVC, STATEFUL_SET, Kind, Object

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1200)]

SEED: Final = 5
LIVES_MAX: Final = 12
DEATHS_MAX: Final = 12
"""Of operators in one step of one life."""
POLL_S: Final = 0.05
REST_S_MAX: Final = 120.0
ANSWER_S: Final = 30.0
LEFT_OUT: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
KEPT: Final = ("type", "status", "reason")
UNDER_WAY: Final = ("requested", "copying", "proving")


RANDOM: Final = Random(SEED)


class Setting:
    """A `killed_rig.World`: one namespace with one cluster, beside processes that are shared."""

    def __init__(self, beside: Aside, found: Processes, namespace: str) -> None:
        self.namespace = namespace
        self.kinds: tuple[Kind, ...] = (CLUSTER,)
        self.settings = SETTINGS
        self.beside = beside
        self.processes = found
        self._opened = AsyncExitStack()
        self.rig: Rig = beside.do(self._opened.enter_async_context(rig(namespace)))
        self._seen: set[tuple[str, str, str]] = set()

    def close(self) -> None:
        self.beside.do(self._opened.aclose())

    def register(self, context: Context) -> None:
        register(context)

    def objects(self, kind: Kind) -> list[Object]:
        remaining: list[Object] = self.beside.do(self.rig.kube.list(kind, self.namespace))
        return remaining

    # -- automatic changes ------------------------------------------------------------------------

    def settle(self) -> bool:
        before, self._seen = self._seen, self.beside.do(self._settled())
        return before != self._seen

    def heals(self) -> bool:
        return bool(self.beside.do(self._healed()))

    async def _healed(self) -> bool:
        """All ledgers have their copies again after the removal of a bookie."""
        waited = False
        async with asyncio.timeout(REST_S_MAX):
            while not (await self._ask("ledgers/health") or {}).get("healthy"):
                waited = True
                await asyncio.sleep(POLL_S)
        return waited

    async def _ask(self, what: str) -> Any:
        """None if the broker does not know."""
        url = self.processes.admin_url
        async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, trust_env=False) as rest:
            answer = await rest.get(f"/admin/v2/magnetar/{what}")
        return answer.json() if answer.status_code == 200 else None

    async def _settled(self) -> set[tuple[str, str, str]]:
        async with asyncio.timeout(REST_S_MAX):
            while True:
                await self.rig.kubelet()
                remaining = {
                    kind: await self.rig.kube.list(kind, self.namespace)
                    for kind in (STATEFUL_SET, DEPLOYMENT, POD)
                }
                if await self._rests(remaining):
                    break
                await asyncio.sleep(POLL_S)
        return {
            (kind.kind, obj["metadata"]["name"], obj["metadata"]["resourceVersion"])
            for kind, objects in remaining.items()
            for obj in objects
        }

    async def _rests(self, found: dict[Kind, list[Object]]) -> bool:
        fourth = f"{NAME}-bookie-3" in {pod["metadata"]["name"] for pod in found[POD]}
        await self.processes.have_bookie(3, fourth)
        if not at_rest([*found[STATEFUL_SET], *found[DEPLOYMENT]], found[POD]):
            return False
        drains = await self._ask("bookies/drains")
        return drains is not None and not any(drain["state"] in UNDER_WAY for drain in drains)

    # -- users' changes---------------------------------------------------------------------------

    def _apply(self, replicas: int, **config: str) -> None:
        bookie = {"replicas": replicas, "config": config}
        self.beside.do(self.rig.apply(adminUrl=self.processes.admin_url, bookie=bookie))

    def create(self) -> None:
        self._apply(3)

    def roll(self) -> None:
        self._apply(3, journal_max_mb="256")

    def grow(self) -> None:
        self._apply(4, journal_max_mb="256")

    def shrink(self) -> None:
        self._apply(3, journal_max_mb="256")

    # -- present state----------------------------------------------------------------------------

    def state(self) -> Any:
        """Without times and the fields that the API server generates."""
        said: dict[str, Any] = {}
        for kind in (*KINDS, PVC):
            for obj in self.objects(kind):
                metadata = {k: v for k, v in obj["metadata"].items() if k not in LEFT_OUT}
                for reference in metadata.get("ownerReferences", ()):
                    reference.pop("uid")
                metadata.get("annotations", {}).pop("magnetar.io/applied", "")  # with the uid
                if kind is PVC:  # who binds it writes to it
                    metadata = {key: metadata[key] for key in ("name", "labels")}
                ours = obj.get("spec", {}).items()
                spec = {k: v for k, v in ours if "lusterIP" not in k and k != "volumeName"}
                said[f"{kind.kind} {metadata['name']}"] = [metadata, spec, obj.get("data")]
        said["pods"] = sorted(
            pod["metadata"]["name"]
            for pod in self.objects(POD)
            if pod["metadata"]["labels"]["component"] != "broker"
        )
        (owner,) = self.objects(CLUSTER)
        status = owner["status"]
        said["status"] = [status["phase"], status["bookies"]] + [
            {key: condition[key] for key in KEPT} for condition in status["conditions"]
        ]
        return json.loads(json.dumps(said).replace(self.namespace, "NAMESPACE"))

    def gone(self, went: Course) -> list[str]:
        """What was deleted."""
        return [path.replace(self.namespace, "NAMESPACE") for path in went.log.deleted.elements()]


class Step:
    """One change by a user, and the result of an operator that is not killed."""

    def __init__(self, setting: Setting, do: Callable[[Setting], None]) -> None:
        self.do = do
        do(setting)
        went = course(setting, FakeClock())
        self.state = setting.state()
        self.gone = setting.gone(went)
        self.left: list[Point] = list(dict.fromkeys(went.points))
        RANDOM.shuffle(self.left)
        self.places = len(self.left)
        print(f"{do.__name__}: {len(went.points)} awaits at {self.places} places")

    def again(self, setting: Setting) -> None:
        """With operators that die, as many as places are left."""
        places = self.left[:DEATHS_MAX]
        self.do(setting)
        # A new clock for each step: ours runs ahead of the one by which bookies date their proofs.
        went = course(setting, FakeClock(), map(at_place, places))
        met, missed = places[: went.killed], places[went.killed : went.killed + 1]
        # What was not come to, as it was done already, is the first of the next life. One that was
        # the first and not come to is of another course of things, and keeps the others waiting.
        rest = self.left[len(met) + len(missed) :]
        RANDOM.shuffle(rest)
        self.left = [*missed, *rest] if met else [*rest, *missed]
        where = f"{self.do.__name__}, killed at {met}"
        state = setting.state()
        for name in sorted({*state, *self.state}):
            now, then = json.dumps(state.get(name)), json.dumps(self.state.get(name))
            assert now == then, f"{where}: {name}"
        assert sorted(setting.gone(went)) == sorted(self.gone), where


@pytest.fixture
def found(tmp_path: Path) -> Iterator[tuple[Aside, Processes]]:
    with aside() as beside:
        opened = AsyncExitStack()
        yield beside, beside.do(opened.enter_async_context(processes(tmp_path, 3)))
        beside.do(opened.aclose())


@contextmanager
def life(found: tuple[Aside, Processes], kube_api: client.ApiClient) -> Iterator[Setting]:
    """In a namespace of its own."""
    namespace = fresh_namespace(kube_api)
    setting = Setting(*found, namespace)
    yield setting
    setting.close()
    delete_namespace(kube_api, namespace)


def test_killed_anywhere_in_the_life_of_a_cluster(
    found: tuple[Aside, Processes], kube_api: client.ApiClient, crds: list[str], tmp_path: Path
) -> None:
    shared = found[1]
    publish(shared.service_url, tmp_path)

    with life(found, kube_api) as setting:
        does = (Setting.create, Setting.roll, Setting.grow, Setting.shrink)
        steps = [Step(setting, do) for do in does]
    for _ in range(LIVES_MAX):
        if not any(step.left for step in steps):
            break
        with life(found, kube_api) as setting:
            for step in steps:
                step.again(setting)
            print([f"{step.places - len(step.left)} of {step.places}" for step in steps])
    for step in steps:
        print(f"{step.do.__name__}: {step.places - len(step.left)} places had their death")
        assert len(step.left) <= step.places / 10
    read_all(shared.service_url, tmp_path)

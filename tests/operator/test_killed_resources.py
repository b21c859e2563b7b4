"""The operator dies at every await of a look at resources; the next one ends what it began.

A Tenant, a Namespace, a Topic and a Subscription are made, changed, changed by hand, and deleted,
over a real API server and a real standalone, with a clock of the test's own. Each of these steps is
broken off at each place in the code that awaits, and at some that come again (`killed_rig`); in the
long form, at each single await. What is there after it, and what was deleted on the way, is what an
operator that nobody killed would have made of it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from kubernetes import client
from tests.operator.killed_rig import Aside, Course, Log, Process, aside, at_point, chosen, course
from tests.operator.resource_rig import Live
from tests.support.kube import Tool, delete_namespace, fresh_namespace
from tests.support.server_process import ServerProcess
from tests.support.stepped_loop import FakeClock

from magnetar_operator.catalog.reconciler import register
from magnetar_operator.engine.context import Context
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import EVENT, NAMESPACE, SUBSCRIPTION, TENANT, TOPIC, Kind, Object
from magnetar_operator.settings import Settings

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds"), pytest.mark.timeout(1500)]

SEED: Final = 5
KINDS: Final = (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION)
MORE: Final = 4
"""Points beside the first of each place in the code."""
ALL: Final = 1_000_000
LESS: Final = 12
KEPT: Final = ("type", "status", "reason", "observedGeneration")


class Lives:
    """A `killed_rig.World`: one set of resources at a time, all of the same name."""

    def __init__(self, live: Live, beside: Aside) -> None:
        self.live = live
        self.beside = beside
        self.namespace = live.kubectl.namespace
        self.kinds: tuple[Kind, ...] = KINDS
        self.settings = Settings(namespaces=(self.namespace,))
        self.clock = FakeClock()
        self.name = ""
        self.kube = KubeClient.connect()

    def register(self, context: Context) -> None:
        register(context)

    def objects(self, kind: Kind) -> list[Object]:
        obj = self.beside.do(self.kube.find(kind, self.name, self.namespace))
        return [] if obj is None else [obj]

    def settle(self) -> bool:
        return False

    def heals(self) -> bool:
        return False

    def close(self) -> None:
        self.beside.do(self.kube.close())

    # -- users' changes-------------------------------------------------------------------------

    def _apply(self, kind: Kind, **spec: Any) -> None:
        manifest = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        }
        self.beside.do(self.kube.apply(manifest))

    def _apply_all(self, partitions: int, team: str, policies: dict[str, Any], ttl: str) -> None:
        name, ref = self.name, {"name": self.name}
        at = {"adminUrl": self.live.url}
        self._apply(TENANT, adminRoles=[team], **at)
        named = {"name": f"{name}/{name}", "policies": {"messageTTL": ttl}, "bundles": 4, **at}
        self._apply(NAMESPACE, **named)
        properties = {"team": team}
        spec = {"partitions": partitions, "properties": properties, "policies": policies}
        self._apply(TOPIC, namespaceRef=ref, **spec)
        self._apply(SUBSCRIPTION, topicRef=ref, properties=properties)

    def create(self) -> None:
        policies = {"retention": {"time": "7d", "size": "1Gi"}, "messageTTL": "1h"}
        self._apply_all(2, "red", policies, "2h")

    def change(self) -> None:
        """Something more, something less, something else."""
        policies = {"retention": {"time": "8d", "size": "1Gi"}, "maxProducersPerTopic": 2}
        self._apply_all(4, "blue", policies, "3h")

    def drift(self) -> None:
        """By hand; the subscription is deleted."""
        say, name = self.live.say, self.name
        say("POST", f"/namespaces/{name}/{name}/messageTTL", 60)
        say("POST", f"{self.topic}/maxProducers", 7)
        say("DELETE", f"{self.topic}/retention")
        say("DELETE", f"{self.topic}/subscription/{name}")

    def delete(self) -> None:
        for kind in KINDS:
            self.beside.do(self.kube.delete(kind, self.name, self.namespace))

    # -- present state--------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return f"/persistent/{self.name}/{self.name}/{self.name}"

    def state(self) -> Any:
        """As people see it, without names, times and ids."""
        said: dict[str, Any] = {}
        for path in (
            *(f"/tenants/{self.name}", f"/namespaces/{self.name}/{self.name}"),
            *(f"{self.topic}/partitions", f"{self.topic}/subscriptions"),
            *(f"{self.topic}/{what}" for what in ("properties", "retention", "messageTTL")),
            f"{self.topic}/maxProducers",
            f"{self.topic}/subscription/{self.name}/properties",
        ):
            answer = self.live.rest.get(path)
            said[path] = [answer.status_code, answer.text]
        for kind in KINDS:
            for obj in self.objects(kind):
                status = obj["status"]
                said[kind.kind] = {
                    "finalizers": obj["metadata"].get("finalizers"),
                    "applied": status["applied"],
                    "conditions": [
                        {key: condition[key] for key in KEPT} for condition in status["conditions"]
                    ],
                }
        return json.loads(json.dumps(said).replace(self.name, "NAME"))

    def told(self) -> set[tuple[str, str]]:
        """Events: of which kind, and why."""
        events = self.beside.do(self.kube.list(EVENT, self.namespace))
        return {
            (item["regarding"]["kind"], item["reason"])
            for item in events
            if item["regarding"]["name"] == self.name
        }


@pytest.fixture(scope="module")
def lives(
    kube_api: client.ApiClient,
    kubectl: Tool,
    crds: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lives]:
    namespace = fresh_namespace(kube_api)
    root = Path(tmp_path_factory.mktemp("standalone"))
    with (
        ServerProcess(root) as server,
        Live(kubectl.within(namespace), server.http_url) as live,
        aside() as beside,
    ):
        running = Lives(live, beside)
        yield running
        running.close()
    delete_namespace(kube_api, namespace)


class Step:
    """The result of one step by an operator that is not killed."""

    def __init__(self, lives: Lives, do: Callable[[Lives], None], more: int) -> None:
        self.do = do
        self.name = do.__name__
        do(lives)
        went = course(lives, lives.clock)
        self.points = went.points
        self.numbers, places = chosen(self.points, SEED, more)
        self.state = lives.state()
        # A target that was created again but not filled when the operator died must be filled now.
        recorded = lives.told()
        self.told = recorded | {
            (kind, "DriftRepaired") for kind, why in recorded if why == "Recreated"
        }
        self.deleted = named(lives, went.log.deleted)
        tried = len(self.numbers)
        print(f"{self.name}: {len(self.points)} awaits at {places} places, {tried} tried")

    def check(self, lives: Lives, went: Course, where: str) -> None:
        """It came to the same."""
        assert lives.state() == self.state, where
        assert lives.told() <= self.told, where
        assert named(lives, went.log.deleted) <= self.deleted, where
        assert set(named(lives, Counter(went.log.deletions))) <= set(self.deleted), where


def named(lives: Lives, paths: Counter[str]) -> Counter[str]:
    return Counter({path.replace(lives.name, "NAME"): count for path, count in paths.items()})


def whole(lives: Lives, more: int) -> list[Step]:
    """Each step without a kill; `more` points besides the first of each place."""
    lives.name = f"whole-{more}"
    return [Step(lives, do, more) for do in (Lives.create, Lives.change, Lives.drift, Lives.delete)]


@pytest.fixture(scope="module")
def steps(lives: Lives) -> list[Step]:
    return whole(lives, MORE)


def live_and_die(lives: Lives, steps: list[Step]) -> None:
    """As many lives as the longest step has points, each step of each broken off at another."""
    killed = 0
    for turn in range(max(len(step.numbers) for step in steps)):
        lives.name = f"life-{len(steps[0].numbers)}-{turn:03d}"
        for step in steps:
            if step is steps[-1] and turn >= len(step.numbers):
                break
            at = step.numbers[turn : turn + 1]
            step.do(lives)
            went = course(lives, lives.clock, map(at_point, at))
            killed += went.killed
            step.check(lives, went, f"{step.name}, killed at {[step.points[item] for item in at]}")
    tried = sum(len(step.numbers) for step in steps)
    assert killed > 0.9 * tried > 50, "most of the points are met again"


def test_killed_anywhere_in_the_life_of_resources(lives: Lives, steps: list[Step]) -> None:
    live_and_die(lives, steps)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_killed_at_every_await_in_the_life_of_resources(lives: Lives) -> None:
    live_and_die(lives, whole(lives, ALL))


def test_killed_during_a_creation_before_the_manifest_changes(
    lives: Lives, steps: list[Step]
) -> None:
    """Fields that a killed process set without recording success are removed all the same."""
    create, change = steps[:2]
    for number in Random(SEED).sample(create.numbers, LESS):
        lives.name = f"less-{number:03d}"
        create.do(lives)
        died = Process(lives, lives.clock, Log(), at_point(number)).run()
        change.do(lives)
        course(lives, lives.clock)
        assert lives.state() == change.state, f"killed ({died}) at {create.points[number]}"

"""The operator ends at every await of a look, before and after each request is done.

The look runs over a real API server and a real standalone. Each time a fresh operator then goes on
from what is there: all is as the manifest says, nothing was deleted, nothing is there twice.
"""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client
from tests.operator.resource_rig import Live
from tests.support.kube import Tool, delete_namespace, fresh_namespace
from tests.support.server_process import ServerProcess

from magnetar_operator.api_kinds import TOPIC, Kind, Object
from magnetar_operator.events import Events
from magnetar_operator.kube import KubeClient
from magnetar_operator.resources.admin_client import AdminClient
from magnetar_operator.resources.cluster_view import Clusters
from magnetar_operator.resources.reconcile import Reconciler
from magnetar_operator.settings import FINALIZER
from magnetar_operator.work import Key

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds"), pytest.mark.timeout(180)]

LOOKS_MAX = 10
AWAITS_MAX = 200
NEVER = 1 << 30
POLICIES = {"retention": {"time": "7d", "size": "1Gi"}, "messageTTL": "1h"}
FULL = {"partitions": 2, "properties": {"team": "red"}, "policies": POLICIES}


class Killed(BaseException):
    """The process is no more: nothing may catch it."""


class Process:
    """One operator process, which ends at its n-th await, and does nothing after that."""

    def __init__(self, namespace: str, dies_at: int = NEVER) -> None:
        self._namespace = namespace
        self._dies_at = dies_at
        self.awaits = 0
        self.deleted: list[str] = []
        self.kube = KubeClient.connect()
        self.kube.request = self._deadly(self.kube.request)  # type: ignore[method-assign]
        self.clusters = Clusters(self._admin)
        self.reconciler = Reconciler(self.kube, Events(self.kube), self, self.clusters)

    def _admin(self, url: str) -> AdminClient:
        made = AdminClient(url)
        request = made._http.request

        async def noted(method: str, to: httpx.URL, **rest: Any) -> httpx.Response:
            if method == "DELETE":
                self.deleted.append(to.path)
            return await request(method, to, **rest)

        made._http.request = self._deadly(noted)  # type: ignore[method-assign]
        return made

    def _deadly(self, send: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def sent(*args: Any, **rest: Any) -> Any:
            self._await()
            answer = await send(*args, **rest)
            self._await()
            return answer

        return sent

    def _await(self) -> None:
        if self.awaits >= self._dies_at:
            raise Killed
        self.awaits += 1

    # -- as `placing.Siblings`: nothing was seen by watches

    def latest(self, key: Key) -> Object | None:
        return None

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        return []

    def look(self, key: Key, after_s: float = 0.0) -> None:
        """Nobody waits here."""

    # -- looks

    async def settle(self, name: str, kind: Kind = TOPIC) -> bool:
        """Looks until there is nothing to do; whether it was broken off."""
        try:
            for _ in range(LOOKS_MAX):
                one = await self.kube.find(kind, name, self._namespace)
                if one is None:
                    return False
                if await self.reconciler.reconcile(one) is None:
                    return False
        except Killed:
            return True
        finally:
            await self.clusters.close()
            await self.kube.close()
        raise AssertionError(f"{name} does not settle")


@pytest.fixture(scope="module")
def live(
    kube_api: client.ApiClient,
    kubectl: Tool,
    crds: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Live]:
    namespace = fresh_namespace(kube_api)
    root = Path(tmp_path_factory.mktemp("standalone"))
    with (
        ServerProcess(root) as server,
        Live(kubectl.within(namespace), server.http_url) as found,
    ):
        found.say("PUT", "/tenants/shop", {"allowedClusters": ["standalone"]})
        found.say("PUT", "/namespaces/shop/orders")
        yield found
    delete_namespace(kube_api, namespace)


def path_of(name: str) -> str:
    return f"/persistent/shop/orders/{name}"


def apply(live: Live, name: str, spec: dict[str, Any]) -> None:
    live.apply("Topic", name, {"name": f"shop/orders/{name}", **spec})


async def kill_and_go_on(live: Live, name: str, dies_at: int) -> tuple[bool, list[str]]:
    """Whether it was killed, and what both processes deleted."""
    namespace = live.kubectl.namespace
    first = Process(namespace, dies_at)
    killed = await first.settle(name)
    second = Process(namespace)
    assert not await second.settle(name)
    return killed, first.deleted + second.deleted


def check(live: Live, name: str, partitions: int, ttl: int | None, minutes: int) -> None:
    one = live.get("Topic", name)
    assert one["metadata"]["finalizers"] == [FINALIZER]
    assert live.condition("Topic", name)["reason"] == "AsSpecified"
    listed = live.say("GET", "/persistent/shop/orders/partitioned")
    assert listed.count(f"persistent://shop/orders/{name}") == 1
    assert live.say("GET", f"{path_of(name)}/partitions")["partitions"] == partitions
    assert live.say("GET", f"{path_of(name)}/messageTTL") == ttl
    assert live.say("GET", f"{path_of(name)}/retention")["retentionTimeInMinutes"] == minutes


async def test_while_it_creates(live: Live) -> None:
    for dies_at in range(AWAITS_MAX):
        name = f"made-{dies_at}"
        apply(live, name, FULL)
        killed, deleted = await kill_and_go_on(live, name, dies_at)
        assert deleted == []
        check(live, name, 2, 3_600, 10_080)
        assert live.events("DriftRepaired", name) == []
        assert live.events("Recreated", name) == []
        if not killed:
            break
    assert dies_at > 20


async def test_while_it_creates_and_then_the_manifest_says_less(live: Live) -> None:
    """What was set by a process that could not tell of it is taken away all the same."""
    for dies_at in range(AWAITS_MAX):
        name = f"less-{dies_at}"
        apply(live, name, FULL)
        first = Process(live.kubectl.namespace, dies_at)
        killed = await first.settle(name)
        apply(live, name, {"partitions": 2})
        assert not await Process(live.kubectl.namespace).settle(name)
        assert live.say("GET", f"{path_of(name)}/messageTTL") is None
        assert live.say("GET", f"{path_of(name)}/retention") is None
        assert not live.say("GET", f"{path_of(name)}/properties")
        if not killed:
            break
    assert dies_at > 20


async def test_while_it_changes(live: Live) -> None:
    for dies_at in range(AWAITS_MAX):
        name = f"changed-{dies_at}"
        apply(live, name, FULL)
        assert not await Process(live.kubectl.namespace).settle(name)
        changed = {"retention": {"time": "8d", "size": "1Gi"}, "maxProducersPerTopic": 2}
        apply(live, name, {"partitions": 4, "policies": changed})
        killed, deleted = await kill_and_go_on(live, name, dies_at)
        gone = {f"/admin/v2{path_of(name)}/{what}" for what in ("messageTTL", "properties")}
        assert set(deleted) <= gone
        check(live, name, 4, None, 11_520)
        assert live.say("GET", f"{path_of(name)}/maxProducers") == 2
        if not killed:
            break
    assert dies_at > 20


async def test_while_it_deletes(live: Live) -> None:
    live.say("PUT", f"{path_of('neighbour')}/partitions", 2)
    for dies_at in range(AWAITS_MAX):
        name = f"deleted-{dies_at}"
        apply(live, name, FULL)
        assert not await Process(live.kubectl.namespace).settle(name)
        live.delete("Topic", name, wait=False)
        killed, deleted = await kill_and_go_on(live, name, dies_at)
        assert {path.split("/")[6] for path in deleted} == {name}
        assert live.get("Topic", name) == {}
        assert f"persistent://shop/orders/{name}" not in live.say(
            "GET", "/persistent/shop/orders/partitioned"
        )
        if not killed:
            break
    assert dies_at > 5
    assert live.say("GET", f"{path_of('neighbour')}/partitions")["partitions"] == 2

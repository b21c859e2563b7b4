"""One cluster as many resources see it at about the same time: lists are asked for once.

A thousand topics of a namespace ask whether they exist; the namespace's list of topics answers all,
and is asked for anew when it is FRESH_S old. What is made or deleted through this view is put into
the lists at once. A list may be behind the cluster by FRESH_S and no more: who creates what is
there already is told so, who looks at what is gone too, and the next look sees it. Deletions do not
go by lists that may be old: they `forget` first.

One caller asks while others wait for the same list. Memory is by the names in the namespaces that
have resources.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.core.names import TopicName
from magnetar_operator.clock import SYSTEM, Clock
from magnetar_operator.resources.admin_client import AdminClient, NotFound
from magnetar_operator.resources.analyses import Analyses
from magnetar_operator.resources.targets import ADMIN, NAMESPACE, TENANT, TOPIC, Target

FRESH_S: Final = 10.0
SYSTEM_PREFIX: Final = "__"
"""Topics of the broker's own begin so."""


@dataclass(slots=True)
class _Known:
    names: set[str] | None
    """None: what it would be a list of is not there."""
    until: float


class ClusterView:
    """See the module's text."""

    def __init__(
        self, client: AdminClient, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.client = client
        self.has_all_policies: bool | None = None
        """Whether the cluster gives all policies of a topic at once; None: not known yet."""
        self.analyses = Analyses(client, monotonic)
        self._monotonic = monotonic
        self._lists: dict[str, _Known] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def clusters(self) -> set[str]:
        """The names that the cluster goes by."""
        return await self._list(f"{ADMIN}/clusters") or set()

    async def tenants(self) -> set[str]:
        return await self._list(f"{ADMIN}/tenants") or set()

    async def namespaces(self, tenant: str) -> set[str] | None:
        """In full; None where there is no such tenant."""
        return await self._list(f"{ADMIN}/namespaces/{tenant}")

    async def topics(self, namespace: str, domain: str) -> set[str] | None:
        """Topics and single partitions, in full; None where there is no such namespace."""
        return await self._list(f"{ADMIN}/{domain}/{namespace}")

    async def partitioned(self, namespace: str, domain: str) -> set[str] | None:
        """Partitioned topics."""
        return await self._list(f"{ADMIN}/{domain}/{namespace}/partitioned")

    async def exists(self, target: Target) -> bool:
        """Of a tenant, a namespace or a topic."""
        if target.kind == TENANT:
            return target.name in await self.tenants()
        if target.kind == NAMESPACE:
            return target.name in (await self.namespaces(target.tenant) or ())
        name = target.topic
        if target.name in (await self.partitioned(target.namespace, name.domain) or ()):
            return True
        return target.name in (await self.topics(target.namespace, name.domain) or ())

    async def is_partitioned(self, name: TopicName) -> bool:
        return str(name) in (await self.partitioned(str(name.namespace), name.domain) or ())

    # -- what changes the lists ------------------------------------------------------------------

    def made(self, target: Target, partitions: int = 0) -> None:
        """It exists now."""
        for key in self._keys(target, partitions):
            if (known := self._lists.get(key)) is not None and known.names is not None:
                known.names.add(target.name)
            elif known is not None:
                del self._lists[key]

    def gone(self, target: Target) -> None:
        """It exists no longer."""
        for key in (*self._keys(target, 0), *self._keys(target, 1)):
            if (known := self._lists.get(key)) is not None and known.names is not None:
                known.names.discard(target.name)

    def forget(self, target: Target) -> None:
        """Asks anew for what is in it, and whether it is there."""
        for key in (*self._keys(target, 0), *self._keys(target, 1), *self._inside(target)):
            self._lists.pop(key, None)

    def _keys(self, target: Target, partitions: int) -> tuple[str, ...]:
        """The lists that name it."""
        if target.kind == TENANT:
            return (f"{ADMIN}/tenants",)
        if target.kind == NAMESPACE:
            return (f"{ADMIN}/namespaces/{target.tenant}",)
        if target.kind == TOPIC:
            path = f"{ADMIN}/{target.topic.domain}/{target.namespace}"
            return (f"{path}/partitioned",) if partitions else (path,)
        return ()

    def _inside(self, target: Target) -> tuple[str, ...]:
        """The lists of what is in it."""
        if target.kind == TENANT:
            return (f"{ADMIN}/namespaces/{target.name}",)
        if target.kind == NAMESPACE:
            paths = [
                f"{ADMIN}/{domain}/{target.name}" for domain in ("persistent", "non-persistent")
            ]
            return (*paths, *(f"{path}/partitioned" for path in paths))
        return ()

    async def _list(self, path: str) -> set[str] | None:
        async with self._locks[path]:
            known = self._lists.get(path)
            if known is None or self._monotonic() >= known.until:
                known = self._lists[path] = _Known(await self._ask(path), 0.0)
                known.until = self._monotonic() + FRESH_S
            return known.names

    async def _ask(self, path: str) -> set[str] | None:
        try:
            return set(await self.client.get(path) or ())
        except NotFound:
            return None


async def inhabitants(view: ClusterView, namespace: str) -> list[str]:
    """What is in a namespace, partitioned topics as one, without the broker's own; sorted."""
    found: set[str] = set()
    for domain in ("persistent", "non-persistent"):
        found |= await view.partitioned(namespace, domain) or set()
        for name in await view.topics(namespace, domain) or ():
            topic = parse(name)
            if topic.partition_index < 0 or str(topic.base) not in found:
                found.add(name)
    return sorted(name for name in found if not parse(name).local.startswith(SYSTEM_PREFIX))


def parse(name: str) -> TopicName:
    """As listed, in full."""
    domain, _, rest = name.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return TopicName(domain, tenant, namespace, local)


class Clusters:
    """The clusters that resources are in, by the address of their admin REST."""

    def __init__(
        self, make: Callable[[str], AdminClient] | None = None, clock: Clock = SYSTEM
    ) -> None:
        self._make = make or (lambda url: AdminClient(url, clock.monotonic))
        self._clock = clock
        self._views: dict[str, ClusterView] = {}

    def at(self, url: str) -> ClusterView:
        """A cluster's; made when it is first asked for."""
        url = url.rstrip("/")
        if url not in self._views:
            self._views[url] = ClusterView(self._make(url), self._clock.monotonic)
        return self._views[url]

    def requests(self) -> dict[str, int]:
        """Sent so far, by method, to all of them."""
        total: dict[str, int] = {}
        for view in self._views.values():
            for method, count in view.client.requests.items():
                total[method] = total.get(method, 0) + count
        return total

    async def close(self) -> None:
        for view in self._views.values():
            await view.client.close()

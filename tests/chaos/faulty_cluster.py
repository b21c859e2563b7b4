"""A cluster of real processes behind proxies, and the faults that are done to it.

Members reach each other, and clients reach brokers, only through the proxies, so a cut partitions a
process from everything. The campaigns of messages (`campaign`) and of accounts (`accounts`) share
this cluster; `plan` chooses the faults.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
from tests.chaos.plan import ADMIN, Planned
from tests.chaos.proxy import Direction, Proxy
from tests.chaos.verify import Fault
from tests.support.cluster_processes import kill_all

from magnetar.cluster.local import state
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Member, Role

UNLOAD_TIMEOUT_S: Final = 90.0
BETWEEN_UNLOADS_S: Final = 0.7

Tell = Callable[[str], None]


class FaultyCluster:
    """One cluster behind proxies, with one namespace for the campaign's topics."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object],
        namespace: str,
        topics: Sequence[str],
        tell: Tell,
    ) -> None:
        self._tell = tell
        self._namespace = namespace
        self._topics = topics
        """Those that an unload may hit."""
        self.processes = LocalCluster.create(
            directory, bookies=3, brokers=2, base="free", name="chaos", settings=settings
        )
        self._proxies: dict[str, list[Proxy]] = {}
        self.faults: list[Fault] = []

    @property
    def service_url(self) -> str:
        """All brokers, by their proxies."""
        hosts = (
            f"{_proxy_host(member)}:{member.ports['port']}"
            for member in self.processes.named(Role.BROKER)
        )
        return "pulsar://" + ",".join(hosts)

    @property
    def counts(self) -> dict[str, int]:
        """The number of processes of each role."""
        return {role.value: len(self.processes.named(role)) for role in Role}

    async def start(self) -> None:
        """Start the proxies, the cluster behind them, and create the namespace."""
        etcd = self.processes.named(Role.ETCD)[0]
        etcd_url = f"etcd:http://{_proxy_host(etcd)}:{etcd.ports['client']}"
        with state.changing(self.processes.directory) as current:
            for member in current.members:
                if member.role is not Role.ETCD:
                    member.flags = ["--metadata-url", etcd_url]
                    member.flags += ["--advertised-host", _proxy_host(member)]
        for member in self.processes.members:
            ports = member.ports
            fronts = ("client",) if member.role is Role.ETCD else ("port", "http")
            self._proxies[member.name] = [
                Proxy(_proxy_host(member), ports[kind], member.host) for kind in fronts
            ]
            for proxy in self._proxies[member.name]:
                await proxy.start()
        await asyncio.to_thread(self.processes.up, self._tell)
        url = f"{self.processes.http_urls[0]}/admin/v2/namespaces/{self._namespace}"
        await asyncio.to_thread(_put, url)

    async def stop(self) -> None:
        """Kill all processes."""
        for proxies in self._proxies.values():
            for proxy in proxies:
                await proxy.stop()
        kill_all(self.processes)

    async def disturb(
        self,
        seconds: float,
        faults: Iterator[Planned],
        others: Mapping[str, Callable[[Planned], Awaitable[None]]] | None = None,
    ) -> None:
        """Do one fault after another for this long.

        `others` does the faults of roles that are no process of the cluster.
        """
        hooks = {ADMIN: self._unload, **(others or {})}
        end = time.monotonic() + seconds
        for planned in faults:
            await asyncio.sleep(planned.quiet_s)
            if time.monotonic() + planned.lasts_s > end:
                return
            begun = time.monotonic()
            if planned.role in hooks:
                target = f"{planned.role}-{planned.index % len(self._topics)}"
                do = hooks[planned.role](planned)
            else:
                member = self.processes.named(Role(planned.role))[planned.index]
                target = member.name
                do = self._do(planned, member)
            self._tell(f"{planned.kind} {target} for {planned.lasts_s:.1f} s")
            await do
            self.faults.append(Fault(planned.kind, target, begun, time.monotonic()))

    async def _unload(self, planned: Planned) -> None:
        """By the admin REST, again and again: what is refused meanwhile is nothing."""
        topic = self._topics[planned.index % len(self._topics)]
        end = time.monotonic() + planned.lasts_s
        async with httpx.AsyncClient(timeout=UNLOAD_TIMEOUT_S, follow_redirects=True) as client:
            broker = self.processes.http_urls[planned.index % 2]
            admin = f"{broker}/admin/v2"
            path = topic.replace("persistent://", "persistent/")
            while time.monotonic() < end:
                with contextlib.suppress(httpx.HTTPError):
                    url = f"{admin}/{path}/unload"
                    if planned.kind == "unload-namespace":
                        url = f"{admin}/namespaces/{self._namespace}/unload"
                    elif planned.kind == "unload-bundle":
                        bundle = await client.get(f"{broker}/lookup/v2/topic/{path}/bundle")
                        url = f"{admin}/namespaces/{self._namespace}/{bundle.text}/unload"
                    await client.put(url)
                await asyncio.sleep(BETWEEN_UNLOADS_S)

    async def _do(self, planned: Planned, member: Member) -> None:
        if planned.kind == "kill":
            await asyncio.to_thread(self.processes.kill, member.name)
            for proxy in self._proxies[member.name]:
                await proxy.refuse()
            await asyncio.sleep(planned.lasts_s)
            for proxy in self._proxies[member.name]:
                await proxy.start()
            await asyncio.to_thread(self.processes.start, member.name)
            await asyncio.to_thread(self.processes.wait_ready, [member.name])
        elif planned.kind == "pause":
            self.processes.pause(member.name)
            await asyncio.sleep(planned.lasts_s)
            self.processes.resume(member.name)
        else:
            cut = {"cut-in": Direction.IN, "cut-out": Direction.OUT}.get(
                planned.kind, Direction.BOTH
            )
            for proxy in self._proxies[member.name]:
                proxy.set_cut(cut)
            await asyncio.sleep(planned.lasts_s)
            for proxy in self._proxies[member.name]:
                proxy.set_cut(Direction.NONE)


def _proxy_host(member: Member) -> str:
    """An address of its own on loopback, for each member."""
    return f"127.0.{1 + list(Role).index(member.role)}.{member.number}"


def _put(url: str) -> None:
    httpx.put(url, json={}, timeout=30).raise_for_status()

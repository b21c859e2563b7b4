"""Runs the product's own `EtcdLease` over a simulated etcd member, to test how it counts time.

The calls of `EtcdClient` travel as the other requests of a process do (`metadata.MetadataClient`),
so they are delayed, cut off and lost. The simulated store holds the table of leases.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import LEASE_GRANT, LEASE_REVOKE, RANGE
from magnetar.metadata.etcd.client import EtcdClient, Token
from magnetar.metadata.etcd.endpoints import Method
from magnetar.metadata.etcd.errors import Outcome, PassingFault
from magnetar.metadata.etcd.leases import EtcdLease, grant
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import LeaseLost, MetadataUnavailable

if TYPE_CHECKING:
    from tests.sim.metadata import MetadataClient


class SimEndpoint:
    """The one member of the simulated etcd, as `EtcdClient` uses a connection."""

    connected = True

    def __init__(self, client: "MetadataClient") -> None:
        self._client = client

    def __len__(self) -> int:
        return 1

    @property
    def current(self) -> "SimEndpoint":
        return self

    def failed(self, endpoint: "SimEndpoint") -> None:
        """There is no other member."""

    async def close(self) -> None:
        """The connection is the simulated network's."""

    async def call(self, work: Callable[[MemoryStore], Awaitable[Any]], timeout_s: float) -> Any:
        client = self._client
        try:
            return await client.answer(client.send(work), timeout_s)
        except MetadataUnavailable as error:
            raise PassingFault(Outcome.UNKNOWN, str(error)) from None

    async def unary(
        self, method: Method[Any, Any], request: Any, timeout_s: float, headers: object
    ) -> Any:
        if method is RANGE:
            revision = await self.call(lambda store: store.revision(), timeout_s)
            return pb.RangeResponse(header=pb.ResponseHeader(revision=revision))
        if method is LEASE_GRANT:
            lease = await self.call(lambda store: store.grant_lease(request.TTL), timeout_s)
            return pb.LeaseGrantResponse(ID=lease.id, TTL=request.TTL)
        assert method is LEASE_REVOKE
        await self.call(lambda store: store.revoke_lease(request.ID), timeout_s)
        return pb.LeaseRevokeResponse()

    def stream(self, method: Method[Any, Any], headers: object, timeout_s: float) -> "SimKeepAlive":
        return SimKeepAlive(self, timeout_s)


class SimKeepAlive:
    """A stream of keep-alives that takes one request."""

    def __init__(self, endpoint: SimEndpoint, timeout_s: float) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._lease_id = 0

    async def write(self, request: pb.LeaseKeepAliveRequest) -> None:
        self._lease_id = request.ID

    async def read(self) -> pb.LeaseKeepAliveResponse:
        lease_id = self._lease_id

        async def renew(store: MemoryStore) -> float:
            store._check_open()
            lease = store._leases._leases.get(lease_id)
            if lease is None:
                return 0.0
            with suppress(LeaseLost):
                await lease.keep_alive()
                return lease.ttl_s
            return 0.0

        ttl_s = await self._endpoint.call(renew, self._timeout_s)
        return pb.LeaseKeepAliveResponse(ID=lease_id, TTL=int(ttl_s))

    def cancel(self) -> None:
        """The answer that is still on its way is not awaited."""


class SimEtcdClient(EtcdClient):
    """The product's client, without the channels that its constructor opens."""

    def __init__(self, endpoint: SimEndpoint, random: Random) -> None:
        self.settings = EtcdSettings(endpoints=["metadata:2379"])
        self.random = random
        self.endpoints = endpoint  # type: ignore[assignment]  # has what is asked of it
        self.token = Token("", "")
        self.revision = 0
        self.closed = False
        self.probe_request = pb.RangeRequest()


async def grant_etcd_lease(client: "MetadataClient", ttl_s: float) -> EtcdLease:
    """A lease of the product's etcd client."""
    if client.etcd is None:
        client.etcd = SimEtcdClient(SimEndpoint(client), Random(client.server.calls))
    return await grant(client.etcd, client.clock, ttl_s)

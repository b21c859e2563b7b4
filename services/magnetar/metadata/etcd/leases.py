"""Leases in etcd, with validity by the holder's own monotonic clock.

etcd counts whole seconds, so the requested time is rounded up; `ttl_s` is the granted time (a
server's minimum is about one and a half election timeouts). The holder counts from before it sends
a renewal and etcd from when it receives it, so the holder stops first.

A renewal is two calls to one member: a linearizable read, then the keep-alive. The leader alone
handles leases, without a quorum, so a leader that was paused or cut off would renew a lease that
its successor ended long ago. Such a leader cannot answer the read, and a leader elected after the
read restarts the time of every lease. Counted from before the read, the lease is therefore alive at
the current leader.
"""

import asyncio
import math
from contextlib import suppress
from typing import Final

import grpc
import grpc.aio

from magnetar.core.clock import Clock
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, RANGE
from magnetar.metadata.etcd.client import EtcdClient
from magnetar.metadata.etcd.endpoints import Endpoint, Headers
from magnetar.metadata.etcd.errors import Outcome, PassingFault, by_peer, translate
from magnetar.metadata.store import InvalidOperation, LeaseLost, StoreClosed

TTL_S_MAX: Final = 9_000_000_000
"""etcd's own bound."""
RENEWAL_TRIES: Final = 4
"""The share of the lease's time that a renewal waits for one member: one in this many."""


class EtcdLease:
    """A `Lease` in etcd."""

    def __init__(self, client: EtcdClient, clock: Clock, answer: pb.LeaseGrantResponse) -> None:
        self._client = client
        self._clock = clock
        self.id = answer.ID
        self.ttl_s = float(answer.TTL)
        self.deadline = -math.inf
        self.lost = False
        self._gone = False
        """Whether etcd reported that it has no such lease."""

    @property
    def valid(self) -> bool:
        return not self.lost and self._clock.monotonic() < self.deadline

    def renewed(self, since: float, ttl_s: float) -> None:
        """Extends the deadline: the lease was alive after `since`."""
        self.deadline = max(self.deadline, since + ttl_s)

    def end(self) -> None:
        """Marks the lease as ended in etcd."""
        self.lost = self._gone = True

    async def keep_alive(self) -> None:
        if self._client.closed:
            raise StoreClosed("the metadata store is closed")
        if self.lost:
            raise LeaseLost(f"lease {self.id} has expired or was revoked")
        loop = asyncio.get_running_loop()
        most_s = min(self.ttl_s, self._client.settings.operation_timeout_s)
        await self._client.run(
            self._renew,
            repeat=True,
            deadline=loop.time() + most_s,
            attempt_timeout_s=min(
                self.ttl_s / RENEWAL_TRIES, self._client.settings.attempt_timeout_s
            ),
        )

    async def _renew(self, endpoint: Endpoint, timeout_s: float, headers: Headers) -> None:
        since, known = self._clock.monotonic(), self._client.revision
        began = asyncio.get_running_loop().time()
        read = await endpoint.unary(RANGE, self._client.probe_request, timeout_s, headers)
        self._client.note_read(read.header, known)
        left_s = began + timeout_s - asyncio.get_running_loop().time()
        ttl_s = await self._send(endpoint, max(left_s, 0.0), headers)
        if ttl_s <= 0:
            self.end()
            raise LeaseLost(f"lease {self.id} has expired or was revoked")
        if self.lost:
            raise LeaseLost(f"lease {self.id} was revoked during its renewal")
        self.renewed(since, ttl_s)

    async def _send(self, endpoint: Endpoint, timeout_s: float, headers: Headers) -> int:
        """Sends one keep-alive; returns the time to live in seconds, 0 if the lease has ended."""
        call = endpoint.stream(LEASE_KEEP_ALIVE, headers, timeout_s)
        try:
            await call.write(pb.LeaseKeepAliveRequest(ID=self.id))
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        except asyncio.InvalidStateError:
            # The stream ended before the request was written.
            raise PassingFault(Outcome.UNKNOWN, "the stream of keep-alives ended") from None
        except asyncio.CancelledError:
            if by_peer():
                raise PassingFault(Outcome.UNKNOWN, "the connection was closed") from None
            raise
        finally:
            call.cancel()
        if not isinstance(answer, pb.LeaseKeepAliveResponse):
            raise PassingFault(Outcome.UNKNOWN, "the stream of keep-alives ended")
        return answer.TTL

    async def revoke(self) -> None:
        if self._client.closed:
            raise StoreClosed("the metadata store is closed")
        self.lost = True
        await self.revoke_in_etcd()

    async def revoke_in_etcd(self) -> None:
        """Revokes the lease in etcd, unless etcd has ended it."""
        if self._gone:
            return
        await revoke(self._client, self.id)
        self._gone = True


async def grant(client: EtcdClient, clock: Clock, ttl_s: float) -> EtcdLease:
    """Returns a new lease of at least `ttl_s`, rounded up to whole seconds."""
    if not 0 < ttl_s <= TTL_S_MAX:
        raise InvalidOperation(f"a lease lasts a positive time up to {TTL_S_MAX} s, not {ttl_s} s")

    async def attempt(endpoint: Endpoint, timeout_s: float, headers: Headers) -> EtcdLease:
        since = clock.monotonic()
        request = pb.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        answer = await endpoint.unary(LEASE_GRANT, request, timeout_s, headers)
        client.note(answer.header)
        lease = EtcdLease(client, clock, answer)
        lease.renewed(since, lease.ttl_s)
        return lease

    # A grant whose answer was lost leaves a lease that expires unused.
    return await client.run(attempt, repeat=True)


async def revoke(client: EtcdClient, lease_id: int) -> None:
    """Ends a lease and deletes its keys; no effect if it has ended."""
    with suppress(LeaseLost):
        await client.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease_id), repeat=True)

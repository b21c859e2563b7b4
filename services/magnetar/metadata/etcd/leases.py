"""Leases in etcd, judged by the holder's own monotonic clock.

etcd counts in whole seconds, so what was asked is rounded up; `ttl_s` is what was granted (a
server's least is about one and a half election timeouts). A lease counts as valid from before its
renewal was sent, etcd's own count begins when it arrives: the holder gives up first.

A renewal is two calls to one member: a linearizable read, then the keep-alive. Leases are the
leader's business and no quorum is asked, so a leader that was paused or cut off would renew a lease
that its successor ended long ago. The read cannot be answered by such a leader; and a leader
elected after it begins every lease's time anew. So, counted from before the read, the lease is
alive at whoever leads.
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
"""A renewal gives one member so much of the lease's time, then it is the next one's turn."""


class EtcdLease:
    """See `store.Lease`."""

    def __init__(self, client: EtcdClient, clock: Clock, answer: pb.LeaseGrantResponse) -> None:
        self._client = client
        self._clock = clock
        self.id = answer.ID
        self.ttl_s = float(answer.TTL)
        self.deadline = -math.inf
        self.lost = False
        self._gone = False
        """etcd itself said that it has no such lease."""

    @property
    def valid(self) -> bool:
        return not self.lost and self._clock.monotonic() < self.deadline

    def renewed(self, since: float, ttl_s: float) -> None:
        """It was alive after `since`."""
        self.deadline = max(self.deadline, since + ttl_s)

    def end(self) -> None:
        """etcd has it no more."""
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
            raise LeaseLost(f"lease {self.id} was revoked meanwhile")
        self.renewed(since, ttl_s)

    async def _send(self, endpoint: Endpoint, timeout_s: float, headers: Headers) -> int:
        """The keep-alive as one question and one answer; 0 means that the lease is gone."""
        call = endpoint.stream(LEASE_KEEP_ALIVE, headers, timeout_s)
        try:
            await call.write(pb.LeaseKeepAliveRequest(ID=self.id))
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        except asyncio.InvalidStateError:
            # The stream ended before the question was written.
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
        await self.give_back()

    async def give_back(self) -> None:
        """Ends it in etcd, where etcd may have it still."""
        if self._gone:
            return
        await revoke(self._client, self.id)
        self._gone = True


async def grant(client: EtcdClient, clock: Clock, ttl_s: float) -> EtcdLease:
    """A new lease of at least `ttl_s`, rounded up to whole seconds."""
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
    """Ends a lease and deletes its keys; one that is gone is no error."""
    with suppress(LeaseLost):
        await client.call(LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease_id), repeat=True)

"""Elects the one operator that acts: the holder of a Lease (coordination.k8s.io).

The holder writes the Lease every RENEW_INTERVAL_S. By its own monotonic clock, it may act until
HOLD_S after its last successful write *began*. Another operator takes the Lease only after it has
itself observed the Lease unchanged for LEASE_S, which exceeds HOLD_S by more than the rates of
clocks differ. A holder that was paused, or cut off from the API server, has therefore stopped
acting before another operator begins, and no two clocks need to agree on the time. `check` runs
before every write.

Why kopf's peering does not do this: a peer counts as alive until a time that it wrote by its own
wall clock, an operator whose process was paused continues when it wakes up, and no write checks
(`test_lease.py`, `test_operator_process.py`). Peering would also need a CRD of its own.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from typing import Final

from magnetar_operator.kube.client import Conflict, KubeClient, KubeError
from magnetar_operator.kube.kinds import LEASE, Object

LEASE_S: Final = 15.0
HOLD_S: Final = 10.0
RENEW_INTERVAL_S: Final = 3.0
POLL_INTERVAL_S: Final = 2.0

log = logging.getLogger(__name__)


class NotLeading(KubeError):
    """Another operator may hold the lease now, so this one must not write."""

    def __init__(self) -> None:
        super().__init__(0, "NotLeading", "another operator may hold the lease now")


class Leadership:
    """Holds the Lease for this process: `take` it, `keep` it until it is lost, or `release` it."""

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._monotonic = monotonic
        self._until = float("-inf")
        self._seen = ""
        self._seen_at = 0.0
        self._version = ""
        self._transitions = 0

    @property
    def held(self) -> bool:
        """Whether this process may act now."""
        return self._monotonic() < self._until

    def check(self) -> None:
        """Raises NotLeading if this process may not act now."""
        if not self.held:
            raise NotLeading

    async def take(self) -> None:
        """Waits until this process holds the Lease."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        log.info("leading as %s", self._identity)

    async def keep(self) -> None:
        """Renews the Lease; returns when it is lost."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            try:
                async with asyncio.timeout(max(0.0, self._until - self._monotonic())):
                    if not await self._write():
                        break
            except (KubeError, TimeoutError) as error:
                log.warning("lease not renewed: %s", error)
                if not self.held:
                    break
        self._until = float("-inf")
        log.warning("no longer leading")

    async def release(self) -> None:
        """Frees the Lease for the next operator. Call it only after all writers have ended."""
        was_held, self._until = self.held, float("-inf")
        if was_held:
            try:
                await self._kube.replace(self._lease(""))
            except KubeError as error:
                log.info("lease not released: %s", error)

    async def _try(self) -> bool:
        """Tries to take the Lease once, and tracks how long its holder has not renewed it."""
        try:
            lease = await self._kube.find(LEASE, self._name, self._namespace)
            if lease is None:
                return await self._write(create=True)
            spec = lease.get("spec", {})
            version = lease["metadata"]["resourceVersion"]
            if version != self._seen:
                self._seen, self._seen_at = version, self._monotonic()
            free = not spec.get("holderIdentity")
            expired = self._monotonic() - self._seen_at >= LEASE_S
            if not free and not expired:
                return False
            self._version = version
            self._transitions = int(spec.get("leaseTransitions") or 0) + 1
            return await self._write()
        except KubeError as error:
            log.warning("lease not taken: %s", error)
            return False

    async def _write(self, *, create: bool = False) -> bool:
        """Writes the Lease; False if another operator wrote it first."""
        began = self._monotonic()
        lease = self._lease(self._identity)
        try:
            if create:
                del lease["metadata"]["resourceVersion"]
                stored = await self._kube.create(lease)
            else:
                stored = await self._kube.replace(lease)
        except Conflict:
            return False
        self._version = stored["metadata"]["resourceVersion"]
        self._until = began + HOLD_S
        return self.held

    def _lease(self, holder: str) -> Object:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "resourceVersion": self._version,
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": int(LEASE_S),
                "renewTime": now,
                "leaseTransitions": self._transitions,
            },
        }

"""Which of several operators acts: the one that holds a Lease (coordination.k8s.io).

The holder writes the Lease every RENEW_INTERVAL_S. It may act until HOLD_S after the moment at
which its last successful write *began*, by its own monotonic clock; another takes the Lease only
after it has itself watched it unchanged for LEASE_S, which is longer by more than clocks' rates
differ. So a holder that was paused, or cut off from the API server, has stopped acting before
another begins, and no two clocks need agree on the time. `check` is asked before every write.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from typing import Final

from magnetar_operator.api_kinds import LEASE, Object
from magnetar_operator.kube import Conflict, KubeClient, KubeError

LEASE_S: Final = 15.0
HOLD_S: Final = 10.0
RENEW_INTERVAL_S: Final = 3.0
LOOK_INTERVAL_S: Final = 2.0

log = logging.getLogger(__name__)


class NotLeading(KubeError):
    """Another operator may be acting now: nothing is written."""

    def __init__(self) -> None:
        super().__init__(0, "NotLeading", "another operator may hold the lease now")


class Leadership:
    """See the module's text. `take`, then `keep` until it returns, or `release`."""

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
        """Raises NotLeading."""
        if not self.held:
            raise NotLeading

    async def take(self) -> None:
        """Waits until it is ours."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(LOOK_INTERVAL_S)
        log.info("leading as %s", self._identity)

    async def keep(self) -> None:
        """Renews it; returns when it is lost."""
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
        """Lets the next one begin at once. Only after everything that acts has ended."""
        was, self._until = self.held, float("-inf")
        if was:
            try:
                await self._kube.replace(self._lease(""))
            except KubeError as error:
                log.info("lease not released: %s", error)

    async def _try(self) -> bool:
        """One attempt; also watches how long another's lease has not changed."""
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
        """False where another was first."""
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

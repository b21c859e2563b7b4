"""The key that marks a job as running: `/offload-jobs/{job}`, under a lease that the driver renews.

If the lease is lost because the driver was stopped for longer than its TTL, other jobs may have
claimed this job's attempts. Committing those fails; the job continues under a new lease.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import Lease, LeaseLost, MetadataStore
from magnetar.offload.records import job_key

LEASE_S: Final = 15.0
RENEWALS_PER_LEASE: Final = 3

log = get_logger("magnetar.offload")


@asynccontextmanager
async def job_lease(store: MetadataStore, job: str) -> AsyncIterator[None]:
    """Holds the job's key until the context ends, or the process dies."""
    holder = _Holder(store, job, await _granted(store, job))
    tasks = TaskSet("offload job")
    tasks.start(holder.renew(), "renew the job's lease")
    try:
        yield
    finally:
        await tasks.stop()
        with suppress(MetadataError, TimeoutError):
            await holder.lease.revoke()


async def _granted(store: MetadataStore, job: str) -> Lease:
    lease = await store.grant_lease(LEASE_S)
    await store.put(job_key(job), b"{}", lease_id=lease.id)
    return lease


class _Holder:
    def __init__(self, store: MetadataStore, job: str, lease: Lease) -> None:
        self._store = store
        self._job = job
        self.lease = lease

    async def renew(self) -> None:
        """Renews the lease until cancelled."""
        while True:
            await asyncio.sleep(self.lease.ttl_s / RENEWALS_PER_LEASE)
            try:
                async with asyncio.timeout(self.lease.ttl_s):
                    await self.lease.keep_alive()
            except LeaseLost:
                with suppress(MetadataError, TimeoutError):
                    self.lease = await _granted(self._store, self._job)
            except (MetadataError, TimeoutError) as error:
                log.warning("the job's lease was not renewed; trying again", error=str(error))

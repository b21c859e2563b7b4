"""Reads the Secrets of a cluster and writes what a plan issues.

Every Secret is read by its name: the operator has no right to list Secrets. Every write is a create
or a replacement of the version that was read, so two writers never overwrite each other's keys.
"""

import asyncio
import datetime
from collections.abc import Callable, Mapping

from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.kinds import SECRET, Object
from magnetar_operator.security.issue import manifest
from magnetar_operator.security.plan import Issue
from magnetar_operator.security.wanted import Wanted

Secrets = Mapping[str, Object | None]


class SecretIssuer:
    """Issues the Secrets of clusters."""

    def __init__(self, kube: KubeClient, now: Callable[[], datetime.datetime]) -> None:
        self._kube = kube
        self._now = now

    async def read(self, wanted: Wanted) -> dict[str, Object | None]:
        """All Secrets of a cluster by name; None: it does not exist. Raises KubeError."""
        names = wanted.secrets
        stored = await asyncio.gather(
            *(self._kube.find(SECRET, name, wanted.namespace) for name in names)
        )
        return dict(zip(names, stored, strict=True))

    async def carry_out(self, action: Issue, wanted: Wanted, secrets: Secrets) -> None:
        """Writes one Secret. Raises Conflict if another writer changed it since it was read."""
        built = await asyncio.to_thread(manifest, action, wanted, secrets, self._now())
        if action.before is None:
            await self._kube.create(built)
        else:
            await self._kube.replace(built)

"""The backlog job's results for the namespaces of a cluster, read from its brokers and cached.

Each namespace is read at most once per FRESH_S, for all its resources together. No reconcile fails
because of it: if the cluster has no such route, or no analysis, there is no record. If no answer
arrives within ANSWER_S_MAX, the last record stays; its reader checks its age. Memory: one record
per namespace that has resources.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import msgspec

from magnetar.documents.backlog import BacklogRecord
from magnetar_operator.admin.client import AdminClient, AdminError, NotFound
from magnetar_operator.admin.target import ADMIN

FRESH_S: Final = 60.0
ANSWER_S_MAX: Final = 2.0
"""How long reconciles of a namespace wait for the answer, once per FRESH_S."""


class Analyses:
    """Caches the last backlog analysis of each namespace."""

    def __init__(
        self, client: AdminClient, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._records: dict[str, tuple[float, BacklogRecord | None]] = {}
        """The time until which each record is fresh, and the record."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, namespace: str) -> BacklogRecord | None:
        """The record of `tenant/namespace`; None if there is none."""
        async with self._locks[namespace]:
            cached = self._records.get(namespace)
            if cached is None or self._monotonic() >= cached[0]:
                try:
                    record = await self._request(namespace)
                except (AdminError, TimeoutError):
                    record = None if cached is None else cached[1]
                cached = self._records[namespace] = self._monotonic() + FRESH_S, record
            return cached[1]

    async def _request(self, namespace: str) -> BacklogRecord | None:
        """Reads a record; None if it does not exist or cannot be decoded."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                record = await self._client.get(f"{ADMIN}/magnetar/analytics/backlog/{namespace}")
            return msgspec.convert(record, BacklogRecord)
        except (NotFound, msgspec.ValidationError):
            return None

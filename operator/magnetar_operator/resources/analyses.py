"""What the backlog job found of a cluster's namespaces, asked of its brokers now and then.

A namespace is asked about once in FRESH_S (the resync interval), whatever resources it has and
whatever comes of it. No look fails by it: a cluster without such a route, or without an analysis,
has none; where there is no answer within ANSWER_S_MAX, what was known stays (who reads it goes by
its age). Memory: one record for each namespace that has resources.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar_operator.resources.admin_client import AdminClient, AdminError, NotFound
from magnetar_operator.resources.targets import ADMIN

FRESH_S: Final = 60.0
ANSWER_S_MAX: Final = 2.0
"""Looks of the namespace wait for so long, once in FRESH_S."""


class Analyses:
    """See the module's text."""

    def __init__(
        self, client: AdminClient, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Mapping[str, Any]]] = {}
        """Until when, and the record."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, namespace: str) -> Mapping[str, Any]:
        """The record of `tenant/namespace`; empty where none is known."""
        async with self._locks[namespace]:
            known = self._known.get(namespace)
            if known is None or self._monotonic() >= known[0]:
                found = await self._ask(namespace)
                if found is None:
                    found = known[1] if known is not None else {}
                known = self._known[namespace] = self._monotonic() + FRESH_S, found
            return known[1]

    async def _ask(self, namespace: str) -> Mapping[str, Any] | None:
        """None where nothing was learnt."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                found = await self._client.get(f"{ADMIN}/magnetar/analytics/backlog/{namespace}")
        except NotFound:
            return {}
        except (AdminError, TimeoutError):
            return None
        return found if isinstance(found, dict) else {}

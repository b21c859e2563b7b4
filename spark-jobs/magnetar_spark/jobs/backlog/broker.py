"""What only brokers know, asked of their admin REST where an URL is given.

Stats of topics (who holds what is unacknowledged) and the settings that are policies' defaults. A
topic that no broker answers for is left without it, and the report says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import httpx

from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar_spark.jobs.backlog.holes import Consumer
from magnetar_spark.jobs.backlog.policies import Keeping, retention_of

TIMEOUT_S: Final = 10.0
REDIRECTS_MAX: Final = 4
_MINUTES: Final = "defaultRetentionTimeInMinutes"
_MEBIBYTES: Final = "defaultRetentionSizeInMB"
_TTL: Final = "ttlDurationDefaultInSeconds"


@dataclass(frozen=True, slots=True)
class SubscriptionSeen:
    """A subscription as its broker has it."""

    kind: str = ""
    unacked_messages: int = 0
    consumers: tuple[Consumer, ...] = ()
    sticky: bool = False
    """Key_Shared whose consumers named their ranges."""


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic as its broker has it."""

    subscriptions: Mapping[str, SubscriptionSeen] = field(default_factory=dict)
    publishers: int = 0


class Brokers:
    """The admin REST of any broker of the cluster. A context manager."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            timeout=TIMEOUT_S, follow_redirects=True, max_redirects=REDIRECTS_MAX
        )

    async def __aenter__(self) -> "Brokers":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def topic(self, topic: TopicName) -> TopicSeen:
        """Raises ServiceNotReady where nobody answers for it."""
        name = f"{topic.namespace}/{quote(topic.local, safe='')}"
        stats = await self._get(f"/admin/v2/persistent/{name}/stats")
        subscriptions = stats.get("subscriptions", {})
        return TopicSeen(
            {name: _subscription(each) for name, each in subscriptions.items()},
            len(stats.get("publishers", ())),
        )

    async def defaults(self) -> Keeping:
        """What holds where neither topic nor namespace say anything. Raises ServiceNotReady."""
        path = "/admin/v2/brokers/configuration/runtime"
        found = await self._get(path)
        try:
            retention = retention_of(
                {
                    "retentionTimeInMinutes": found[_MINUTES],
                    "retentionSizeInMB": found[_MEBIBYTES],
                }
            )
            return Keeping(retention, int(found.get(_TTL, 0)))
        except (KeyError, ValueError) as error:
            raise ServiceNotReady(f"{self._url}{path} does not say {error}") from error

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = await self._client.get(self._url + path)
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ServiceNotReady(f"--admin-url {self._url}{path}: {error!r}") from error
        return found


def _subscription(stats: Mapping[str, Any]) -> SubscriptionSeen:
    return SubscriptionSeen(
        str(stats.get("type", "")),
        int(stats.get("unackedMessages", 0)),
        tuple(Consumer.of(each) for each in stats.get("consumers", ())),
        stats.get("keySharedMode") == "STICKY",
    )

"""Reads the state that only brokers have from their admin REST, if its URL is set.

That is topics' stats, with the holders of unacknowledged messages, and the settings that are the
policies' defaults. If no broker answers for a topic, its stats are left out, and the report says
so.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.documents.stats import SubscriptionSummary, TopicSummary
from magnetar_spark.jobs.backlog.analyse.holes import Consumer
from magnetar_spark.jobs.backlog.gather.policies import Keeping, retention_of
from magnetar_spark.log import admin_rest

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
_MINUTES: Final = "defaultRetentionTimeInMinutes"
_MEBIBYTES: Final = "defaultRetentionSizeInMB"
_TTL: Final = "ttlDurationDefaultInSeconds"


@dataclass(frozen=True, slots=True)
class SubscriptionSeen:
    """A subscription, by its broker's stats."""

    kind: str = ""
    unacked_messages: int = 0
    consumers: tuple[Consumer, ...] = ()
    sticky: bool = False
    """Whether it is Key_Shared, with ranges set by its consumers."""


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic, by its broker's stats."""

    subscriptions: Mapping[str, SubscriptionSeen] = field(default_factory=dict)
    publishers: int = 0


class Brokers:
    """The admin REST of any broker of the cluster. A context manager."""

    def __init__(
        self,
        url: str,
        verify: ssl.SSLContext | bool = True,
        headers: admin_rest.Headers = dict,
    ) -> None:
        """`headers` returns the credentials of a request."""
        self._url = url.rstrip("/")
        self._headers = headers
        self._client = httpx.AsyncClient(
            timeout=TIMEOUT_S,
            verify=verify,
        )

    async def __aenter__(self) -> "Brokers":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def topic(self, topic: TopicName) -> TopicSeen:
        """The stats of a topic. Raises ServiceNotReady if no broker answers."""
        name = f"{topic.namespace}/{quote(topic.local, safe='')}"
        stats = await self._get(f"/admin/v2/persistent/{name}/stats", TopicSummary)
        return TopicSeen(
            {name: _subscription(value) for name, value in stats.subscriptions.items()},
            len(stats.publishers),
        )

    async def defaults(self) -> Keeping:
        """The limits if neither topic nor namespace set any. Raises ServiceNotReady."""
        path = "/admin/v2/brokers/configuration/runtime"
        settings = await self._get(path, dict[str, str])
        try:
            retention = retention_of(
                {
                    "retentionTimeInMinutes": settings[_MINUTES],
                    "retentionSizeInMB": settings[_MEBIBYTES],
                }
            )
            return Keeping(retention, int(settings.get(_TTL, 0)))
        except (KeyError, ValueError) as error:
            raise ServiceNotReady(f"{self._url}{path} does not say {error}") from error

    async def _get(self, path: str, kind: type[T]) -> T:
        try:
            answer = await admin_rest.get(self._client, self._url + path, self._headers)
            return msgspec.json.decode(answer.content, type=kind)
        except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError, ValueError) as error:
            raise ServiceNotReady(f"--admin-url {self._url}{path}: {error!r}") from error


def _subscription(stats: SubscriptionSummary) -> SubscriptionSeen:
    return SubscriptionSeen(
        stats.type or "",
        stats.unacked_messages,
        tuple(Consumer.of(consumer) for consumer in stats.consumers or ()),
        stats.key_shared_mode == "STICKY",
    )

"""Requests of the broker that writes a topic's newest ledger, through any broker's admin REST."""

from typing import Final
from urllib.parse import quote

from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar_spark.log.settings import LogSettings

ADMIN_TIMEOUT_S: Final = 10.0


class Admin:
    """The admin REST of any broker of the cluster."""

    def __init__(self, settings: LogSettings) -> None:
        self._url = settings.admin_url.rstrip("/")
        self._verify = settings.admin_context()
        self._headers = settings.admin_headers

    async def confirmed(self, topic: TopicName, ledger_id: int) -> int:
        """The last entry that the broker may serve; -1 if the ledger is not its newest."""
        # httpx is a third of the import time of this package, in each of Spark's processes.
        import httpx

        from magnetar_spark.log import admin_rest

        url = self._topic_url(topic, "internalStats")
        try:
            async with httpx.AsyncClient(timeout=ADMIN_TIMEOUT_S, verify=self._verify) as client:
                answer = await admin_rest.get(client, url, self._headers)
            ledger, _, entry = str(answer.json()["lastConfirmedEntry"]).partition(":")
            return int(entry) if int(ledger) == ledger_id else -1
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError) as error:
            raise ServiceNotReady(f"admin.url {self._url}: {url}: {error!r}") from error

    async def close_ledger(self, topic: TopicName) -> None:
        """Has the topic's newest ledger closed. Raises ServiceNotReady."""
        import httpx

        from magnetar_spark.log import admin_rest

        url = self._topic_url(topic, "closeLedger")
        try:
            async with httpx.AsyncClient(timeout=ADMIN_TIMEOUT_S, verify=self._verify) as client:
                await admin_rest.post(client, url, self._headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceNotReady(f"admin.url {self._url}: {url}: {error!r}") from error

    def _topic_url(self, topic: TopicName, action: str) -> str:
        name = f"{topic.namespace}/{quote(topic.local, safe='')}"
        return f"{self._url}/admin/v2/persistent/{name}/{action}"

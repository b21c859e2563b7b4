"""Lookups over HTTP, for `http://` and `https://` service URLs: Pulsar's admin REST.

A broker that does not serve a topic redirects the client. Brokers are then used over the binary
protocol, with TLS if the service URL is https.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from magnetar.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    ClientError,
    LookupFailed,
    ServerFailed,
    ServiceNotReady,
    TooManyRequests,
    TopicNotFound,
    UnsupportedVersion,
)
from magnetar.client.network.access import supplied
from magnetar.client.network.connection import Connection
from magnetar.client.network.http import HttpAnswer, request
from magnetar.client.network.lookup import REDIRECTS_MAX, LookupSettings, TopicList
from magnetar.client.network.pool import ConnectionPool
from magnetar.client.network.retry import retrying
from magnetar.client.network.service_urls import ServiceUrls, broker_address
from magnetar.core.names import parse_topic
from magnetar.schemas import key_value_text
from magnetar.schemas.model import SchemaInfo, SchemaType, version_from_bytes

MODES: Final = {0: "PERSISTENT", 1: "NON_PERSISTENT", 2: "ALL"}
T = TypeVar("T")

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_NO_RIGHT: Final = "Unauthorized to"
"""How the text of a 401 begins if the role is known but lacks a right."""
_ERRORS: Final[Mapping[int, type[ClientError]]] = {
    401: AuthenticationFailed,
    403: AuthorizationFailed,
    404: TopicNotFound,
    429: TooManyRequests,
    503: ServiceNotReady,
}


class HttpLookup:
    """Lookups by HTTP."""

    def __init__(
        self,
        urls: ServiceUrls,
        pool: ConnectionPool,
        settings: LookupSettings,
    ) -> None:
        self._urls = urls
        self._pool = pool
        self._settings = settings

    async def any_connection(self) -> Connection:
        raise UnsupportedVersion("HTTP service URLs have no watches: topics are polled")

    async def connection(self, topic: str) -> Connection:
        query = {"authoritative": "false"}
        if self._settings.listener:
            query["listenerName"] = self._settings.listener

        async def once() -> Connection:
            path = f"/lookup/v2/topic/{_path(topic)}?{urlencode(query)}"
            cluster, tls = self._urls.cluster(), self._urls.first.tls
            document = await self._get(path, topic)
            self._urls.check_cluster(cluster)
            url = document.get("brokerUrlTls" if tls else "brokerUrl")
            if not url or not isinstance(url, str):
                raise LookupFailed(
                    f"The broker of the topic has no {'TLS' if tls else 'plain'} address",
                    topic=topic,
                )
            return await self._pool.get(broker_address(url, topic, str(self._urls.first)))

        return await self._retried(once, "The lookup", topic)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        flag = "true" if create else "false"

        async def once() -> int:
            document = await self._get(
                f"/admin/v2/{_path(topic)}/partitions?checkAllowAutoCreation={flag}", topic
            )
            return int(document.get("partitions", 0))

        return await self._retried(once, "The request for partitions", topic)

    async def topics(self, namespace: str, mode: int, pattern: str = "") -> TopicList:
        async def once() -> TopicList:
            answer = await self._answered(
                f"/admin/v2/namespaces/{quote(namespace)}/topics?mode={MODES[mode]}", ""
            )
            return TopicList(msgspec.json.decode(answer.body, type=list[str]))

        return await self._retried(once, f"The list of topics of {namespace}", "")

    async def schema(self, topic: str, version: bytes | None) -> SchemaInfo:
        name = parse_topic(topic).base
        path = f"/admin/v2/schemas/{name.tenant}/{name.namespace_local}/{name.encoded_local}/schema"
        if version and (number := version_from_bytes(version)) is not None:
            path += f"/{number}"

        async def once() -> SchemaInfo:
            document = await self._get(path, topic)
            kind = SchemaType[str(document.get("type", "NONE"))]
            text = str(document.get("data", ""))
            data = key_value_text.encode(text) if kind is SchemaType.KEY_VALUE else text.encode()
            return SchemaInfo(kind, data, document.get("properties") or {}, name.local)

        return await self._retried(once, "The request for a schema", topic)

    async def _retried(self, once: Callable[[], Awaitable[T]], what: str, topic: str) -> T:
        settings = self._settings

        async def read() -> T:
            try:
                return await once()
            except (LookupError, TypeError, ValueError) as error:  # another document than expected
                if isinstance(error, ClientError):
                    raise
                raise LookupFailed(f"{what} has another answer: {error!r}", topic=topic) from error

        return await retrying(
            read, what=what, timeout_s=settings.timeout_s, random=settings.random, topic=topic,
            backoff_max_s=settings.backoff_max_s,
        )  # fmt: skip

    async def _get(self, path: str, topic: str) -> dict[str, Any]:
        answer = await self._answered(path, topic)
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise LookupFailed(f"The answer is not JSON: {error}", topic=topic) from error

    async def _answered(self, path: str, topic: str) -> HttpAnswer:
        """Returns a successful answer, of the broker to which others redirect."""
        # Both before any await: a failover may change them.
        service, access = self._urls.take(), self._pool.access
        url = f"{service}{path}"
        headers = await supplied(access.auth.http_headers())
        if access.auth.method != "none":
            headers["X-Pulsar-Auth-Method-Name"] = access.auth.method
        tls = access.tls.context(access.auth.certificate) if service.tls else None
        for _ in range(REDIRECTS_MAX):
            answer = await request(
                "GET", url, headers=headers, tls=tls, timeout_s=self._settings.timeout_s
            )
            if answer.status not in _REDIRECTS:
                break
            url = urljoin(url, answer.headers.get("location", ""))
            if service.tls and urlsplit(url).scheme != "https":
                raise LookupFailed(
                    "A broker redirects to an address without TLS", topic=topic, broker=str(service)
                )
        else:
            raise LookupFailed(f"More than {REDIRECTS_MAX} redirects", topic=topic)
        if answer.status != 200:
            raise _error(answer, topic, str(service))
        return answer


def _path(topic: str) -> str:
    name = parse_topic(topic)
    return f"{name.domain}/{name.tenant}/{name.namespace_local}/{name.encoded_local}"


def _error(answer: HttpAnswer, topic: str, broker: str) -> ClientError:
    try:
        document = msgspec.json.decode(answer.body)
        reason = str(document["reason"])
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        reason = ""
    kind = _ERRORS.get(answer.status)
    if answer.status == 401 and reason.startswith(_NO_RIGHT):
        kind = AuthorizationFailed
    if kind is None:
        kind = LookupFailed if answer.status >= 500 else ServerFailed
    return kind(reason or f"The broker answered {answer.status}", topic=topic, broker=broker)

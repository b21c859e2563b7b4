"""The two admin requests that the demo makes, over the standard library's HTTP client."""

import asyncio
import http.client
import json
from typing import Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 10.0
NAMESPACE: Final = "public/default"


class AdminFailed(Exception):
    """The server answered something else than success, or nothing."""


async def create_partitioned_topic(http_url: str, topic: str, partitions: int) -> None:
    """Makes the topic; one that exists already is an error."""
    path = f"/admin/v2/persistent/{NAMESPACE}/{topic}/partitions"
    await asyncio.to_thread(_request, http_url, "PUT", path, json.dumps(partitions))


async def backlog(http_url: str, topic: str, subscription: str) -> int:
    """Entries of the topic, over all partitions, that the subscription has not acked."""
    path = f"/admin/v2/persistent/{NAMESPACE}/{topic}/partitioned-stats?perPartition=false"
    stats = json.loads(await asyncio.to_thread(_request, http_url, "GET", path, None))
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def _request(http_url: str, method: str, path: str, body: str | None) -> bytes:
    address = urlsplit(http_url)
    connection = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port, timeout=TIMEOUT_S
    )
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except OSError as error:
        raise AdminFailed(f"{method} {http_url}{path}: {error}") from error
    finally:
        connection.close()
    if response.status >= 300:
        text = answer[:500].decode(errors="replace")
        raise AdminFailed(f"{method} {http_url}{path}: {response.status} {text}")
    return answer

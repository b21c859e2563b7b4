"""The two admin requests of the demo, by the standard library's HTTP client."""

import asyncio
import http.client
import json
from typing import Final
from urllib.parse import urlsplit

import msgspec

from magnetar.documents.stats import TopicSummary

TIMEOUT_S: Final = 10.0
NAMESPACE: Final = "public/default"


class AdminFailed(Exception):
    """The server answered with an error, or not at all."""


async def create_partitioned_topic(http_url: str, topic: str, partitions: int) -> None:
    """Creates the topic; raises AdminFailed if it exists."""
    path = f"/admin/v2/persistent/{NAMESPACE}/{topic}/partitions"
    await asyncio.to_thread(_request, http_url, "PUT", path, json.dumps(partitions))


async def backlog(http_url: str, topic: str, subscription: str) -> int:
    """The subscription's backlog in entries, over all partitions of the topic."""
    path = f"/admin/v2/persistent/{NAMESPACE}/{topic}/partitioned-stats?perPartition=false"
    answer = await asyncio.to_thread(_request, http_url, "GET", path, None)
    stats = msgspec.json.decode(answer, type=TopicSummary)
    return stats.subscriptions[subscription].msg_backlog


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

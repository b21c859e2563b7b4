"""Requests to the admin REST, with credentials that follow redirects between brokers.

httpx drops credentials at a redirect to another host. Brokers redirect to the broker that owns the
topic, which has another host and asks for the same credentials. They are sent on, but never from
https to http. Bound: REDIRECTS_MAX.
"""

from collections.abc import Callable
from typing import Final

import httpx

REDIRECTS_MAX: Final = 4

Headers = Callable[[], dict[str, str]]
"""Returns the credentials of a request."""


async def get(client: httpx.AsyncClient, address: str, headers: Headers) -> httpx.Response:
    """Reads a document. Raises httpx.HTTPError, also for an answer that is no success."""
    return await _request(client, "GET", address, headers)


async def post(client: httpx.AsyncClient, address: str, headers: Headers) -> httpx.Response:
    """Requests an action without a body. Raises as `get`."""
    return await _request(client, "POST", address, headers)


async def _request(
    client: httpx.AsyncClient, method: str, address: str, headers: Headers
) -> httpx.Response:
    url = httpx.URL(address)
    for _ in range(REDIRECTS_MAX + 1):
        answer = await client.request(method, url, headers=headers(), follow_redirects=False)
        if not answer.has_redirect_location:
            return answer.raise_for_status()
        target = url.join(answer.headers["location"])
        if url.scheme == "https" and target.scheme != "https":
            raise httpx.UnsupportedProtocol(
                f"{url} redirects to {target.scheme}", request=answer.request
            )
        url = target
    raise httpx.TooManyRedirects(f"more than {REDIRECTS_MAX} redirects", request=answer.request)

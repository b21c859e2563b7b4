"""Requests of commands to a cluster's admin REST.

Redirects to the broker that owns a topic are followed. Credentials go to the first address and to
brokers that it redirects to, and never from TLS to plain HTTP.
"""

import argparse
import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from magnetar.cli.messages import connection
from magnetar.cli.messages.errors import UsageFailed
from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    from magnetar.client.options import ClientKeywords

ADMIN_URL_DEFAULT: Final = "http://localhost:8080"
TIMEOUT_S: Final = 60.0
REDIRECTS_MAX: Final = 5
ANSWER_BYTES_MAX: Final = 64 << 20
REASON_CHARACTERS_MAX: Final = 1_000
_REDIRECTS: Final = frozenset({302, 307, 308})
_DONE: Final = frozenset({200, 201, 204})
CONFLICT: Final = 409
NOT_FOUND: Final = 404


class AdminFailed(MagnetarError):
    """The cluster could not be reached or has refused the request."""

    def __init__(self, message: str, status: int = 0) -> None:
        """`status` is that of the answer, 0 without one."""
        super().__init__(message)
        self.status = status


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that locate the cluster, authenticate, and configure TLS."""
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        default=url_default(),
        help=f"the cluster's admin REST (MAGNETAR_ADMIN_URL; {ADMIN_URL_DEFAULT})",
    )
    connection.add_access_flags(parser)


def url_default() -> str:
    """Returns the address of the environment, or that of this machine."""
    return os.environ.get("MAGNETAR_ADMIN_URL", ADMIN_URL_DEFAULT)


def get_json(args: argparse.Namespace, path: str) -> Any:
    """Returns the JSON document of the answer; raises AdminFailed."""
    body = get(args, path)
    try:
        return json.loads(body)
    except ValueError:
        raise AdminFailed(f"{args.admin_url}{path} answered no JSON") from None


def get(args: argparse.Namespace, path: str) -> bytes:
    """Returns the body of the answer; raises AdminFailed with the cluster's reason."""
    return send(args, "GET", path)


class Answer(NamedTuple):
    """The body and the headers of an answer; names of headers are in lower case."""

    body: bytes
    headers: Mapping[str, str]


def send(args: argparse.Namespace, method: str, path: str, content: bytes | None = None) -> bytes:
    """Sends a request with a JSON document or without a body; as `get`."""
    return exchange(args, method, path, content).body


def exchange(
    args: argparse.Namespace, method: str, path: str, content: bytes | None = None
) -> Answer:
    """Sends a request as `send`; returns the whole answer."""
    url = args.admin_url.rstrip("/") + path
    secure = urlsplit(url).scheme == "https"
    credentials, context = _access(args, secure=secure)
    for _ in range(REDIRECTS_MAX + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AdminFailed(f"{url} is not an address such as {ADMIN_URL_DEFAULT}")
        if secure and parts.scheme != "https":
            raise AdminFailed(f"the cluster redirects to {url}, which is not encrypted")
        status, headers, body = _request(method, url, content, credentials, context)
        if status in _DONE:
            return Answer(body, headers)
        location = headers.get("location", "")
        if status not in _REDIRECTS or not location:
            raise AdminFailed(f"{parts.netloc}: {_reason(body) or f'status {status}'}", status)
        url = urljoin(url, location)
    raise AdminFailed(f"{args.admin_url} redirects more than {REDIRECTS_MAX} times")


def _access(
    args: argparse.Namespace, *, secure: bool
) -> tuple[Mapping[str, str], ssl.SSLContext | None]:
    """Returns the headers that authenticate, and the context of TLS; raises AdminFailed."""
    from magnetar.client.errors import ClientError
    from magnetar.client.network.tls import Tls

    try:
        # Kept: the token of OAuth 2.0 serves all requests of a command.
        if not hasattr(args, "access"):
            args.access = connection.access_of(args, os.environ)
        access: ClientKeywords = args.access
        auth, tls = access.get("auth"), access.get("tls")
        certificate = None if auth is None else auth.certificate
        context = None
        # Reading the authorities takes longer than a request, so only if something needs them.
        if secure or tls is not None or certificate is not None:
            context = (tls or Tls()).context(certificate)
        if auth is None:
            return {}, context
        headers = asyncio.run(auth.http_headers())
        return {**headers, "x-pulsar-auth-method-name": auth.method}, context
    except (ClientError, UsageFailed) as error:
        raise AdminFailed(str(error)) from None


def _request(
    method: str,
    url: str,
    content: bytes | None,
    credentials: Mapping[str, str],
    context: ssl.SSLContext | None,
) -> tuple[int, Mapping[str, str], bytes]:
    parts = urlsplit(url)
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    headers = {"accept": "application/json", **credentials}
    if content is not None:
        headers["content-type"] = "application/json"
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, target, content, headers)
        response: HTTPResponse = connection.getresponse()
        body = response.read(ANSWER_BYTES_MAX)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, body
    except (OSError, HTTPException) as error:
        raise AdminFailed(f"{parts.netloc}: {error or type(error).__name__}") from None
    finally:
        connection.close()


def _reason(body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    reason = document.get("reason", "") if isinstance(document, dict) else ""
    return str(reason)[:REASON_CHARACTERS_MAX]

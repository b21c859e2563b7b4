"""Requests of commands to a cluster's admin REST.

Redirects to the broker that owns a topic are followed. The token goes to the first address and to
brokers that it redirects to, and never from TLS to plain HTTP.
"""

import argparse
import json
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from magnetar.core.errors import MagnetarError
from magnetar.core.header_text import NO_HEADER_TEXT, is_header_text

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
    """Adds the flags that locate the cluster and give it a token."""
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        default=url_default(),
        help=f"the cluster's admin REST (MAGNETAR_ADMIN_URL; {ADMIN_URL_DEFAULT})",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default=os.environ.get("MAGNETAR_TOKEN_FILE"),
        help="a file with the token to send (MAGNETAR_TOKEN_FILE)",
    )
    parser.add_argument(
        "--ca-file", metavar="FILE", help="the authorities that sign the cluster's certificates"
    )


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
    try:
        token = Path(args.token_file).read_text().strip() if args.token_file else ""
        # Reading the authorities takes longer than a request, so only for TLS.
        tls = urlsplit(url).scheme == "https" or args.ca_file
        context = ssl.create_default_context(cafile=args.ca_file) if tls else None
    except (OSError, ValueError) as error:
        raise AdminFailed(str(error)) from None
    if not is_header_text(token):
        raise AdminFailed(f"{args.token_file}: {NO_HEADER_TEXT}")
    secure = urlsplit(url).scheme == "https"
    for _ in range(REDIRECTS_MAX + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AdminFailed(f"{url} is not an address such as {ADMIN_URL_DEFAULT}")
        if secure and parts.scheme != "https":
            raise AdminFailed(f"the cluster redirects to {url}, which is not encrypted")
        status, headers, body = _request(method, url, content, token, context)
        if status in _DONE:
            return Answer(body, headers)
        location = headers.get("location", "")
        if status not in _REDIRECTS or not location:
            raise AdminFailed(f"{parts.netloc}: {_reason(body) or f'status {status}'}", status)
        url = urljoin(url, location)
    raise AdminFailed(f"{args.admin_url} redirects more than {REDIRECTS_MAX} times")


def _request(
    method: str, url: str, content: bytes | None, token: str, context: ssl.SSLContext | None
) -> tuple[int, Mapping[str, str], bytes]:
    parts = urlsplit(url)
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    headers = {"accept": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
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

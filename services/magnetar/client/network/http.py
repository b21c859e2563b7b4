"""HTTP/1.1 requests of the client: lookups, and tokens of OAuth 2.0. One connection per request.

Certificates and host names are verified as `Tls` says. Answers are bounded. Redirects are returned,
not followed: the caller decides what it sends elsewhere.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from magnetar.client.errors import ClientError, InvalidConfiguration, OperationTimeout
from magnetar.client.network.tls import connect_failed

ANSWER_BYTES_MAX: Final = 64 << 20
"""Of a body: a namespace may have a million topics."""
HEAD_BYTES_MAX: Final = 64 << 10
_CHUNK_LINE_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer with its whole body."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


async def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes = b"",
    tls: ssl.SSLContext | None,
    timeout_s: float,
) -> HttpAnswer:
    """Sends a request and returns its answer; raises ConnectFailed, OperationTimeout.

    `tls` is the context for an https URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidConfiguration(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidConfiguration(f"{url!r} is not an http or https URL")
    head = _head(method, parts.netloc, f"{parts.path or '/'}{parts.query and '?'}{parts.query}")
    all_headers = {**headers, "Content-Length": str(len(body))} if body else headers
    head += "".join(_header(name, value) for name, value in all_headers.items())
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                parts.hostname,
                port,
                ssl=tls if parts.scheme == "https" else None,
                limit=HEAD_BYTES_MAX,
            )
            writer.write(f"{head}\r\n".encode() + body)
            return await _answer(reader)
    except TimeoutError as error:
        if isinstance(error, ClientError):
            raise
        raise OperationTimeout(f"{_shown(url)} did not answer in {timeout_s:g} s") from None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise connect_failed(error, _shown(url)) from error
    finally:
        if writer is not None:
            writer.transport.abort()


def _shown(url: str) -> str:
    return url.partition("?")[0]


def _head(method: str, host: str, target: str) -> str:
    if any(character <= " " for character in target + host):
        raise InvalidConfiguration(f"{target!r} is not the path of a URL")
    host = host.rpartition("@")[2]
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        "Accept: application/json\r\n"
    )


def _header(name: str, value: str) -> str:
    if any(character in "\r\n\0" for character in name + value):
        raise InvalidConfiguration(f"The header {name} has a line break: check the credentials")
    return f"{name}: {value}\r\n"


async def _answer(reader: asyncio.StreamReader) -> HttpAnswer:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError("the answer is not HTTP/1.1")
        status = int(rest[:3])
        if status >= 200:  # not `100 Continue`
            break
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return HttpAnswer(status, headers, await _body(reader, status, headers))


async def _body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> bytes:
    if status in (204, 304):
        return b""
    if headers.get("transfer-encoding", "").lower().endswith("chunked"):
        return await _chunked(reader)
    if "content-length" in headers:
        size = int(headers["content-length"])
        if not 0 <= size <= ANSWER_BYTES_MAX:
            raise ValueError(f"the answer claims {size} bytes")
        return await reader.readexactly(size)
    body = bytearray()
    while part := await reader.read(HEAD_BYTES_MAX):
        _extend(body, part)
    return bytes(body)


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        if len(line) > _CHUNK_LINE_BYTES_MAX:
            raise ValueError("the size of a chunk is too long")
        size = int(line.partition(b";")[0], 16)
        if not 0 <= size <= ANSWER_BYTES_MAX:
            raise ValueError(f"a chunk claims {size} bytes")
        if not size:
            return bytes(body)
        _extend(body, await reader.readexactly(size))
        await reader.readexactly(2)


def _extend(body: bytearray, part: bytes) -> None:
    body += part
    if len(body) > ANSWER_BYTES_MAX:
        raise ValueError(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")

"""Requests that try to be read differently by a proxy and the broker, or by its parts."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from tests.fuzz.test_requests import HOST, closed_port
from tests.security.rest import PROXY, SUPER, SUPER_PROXY, WRONG, token

WAIT_S = 60.0
CLUSTERS = b"/admin/v2/clusters"
TOPICS = b"/admin/v2/persistent/t1/n1"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"
"""What the broker would answer if it took the rest of a body for a request."""
CLOSE = b"Connection: close"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with closed_port() as number:
        yield number


def bearer(role: str) -> bytes:
    return b"Authorization: Bearer " + (role if role == WRONG else token(role)).encode()


def request(method: bytes, target: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    lines = [method + b" " + target + b" HTTP/" + version, b"Host: b", *headers, b"", b""]
    return b"\r\n".join(lines)


async def exchange(port: int, data: bytes) -> list[int]:
    """The statuses of all answers until the server closes the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    received = b""
    try:
        async with asyncio.timeout(WAIT_S):
            writer.write(data)
            while part := await reader.read(1 << 16):
                received += part
    except ConnectionError:
        pass  # it closed the connection before it had read everything
    finally:
        writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@pytest.mark.parametrize(
    "headers",
    [
        (bearer(SUPER), bearer(WRONG)),
        (bearer(WRONG), bearer(SUPER)),
        (bearer(SUPER_PROXY), b"X-Original-Principal: cons", b"X-Original-Principal: admin"),
        (bearer(SUPER_PROXY), b"x-original-principal: admin", b"X-Original-Principal: cons"),
        (bearer(SUPER), b"X-Pulsar-Auth-Method-Name: token", b"X-Pulsar-Auth-Method-Name: tls"),
        (bearer(SUPER), b"X-Magnetar-Role: admin", b"X-Magnetar-Role: cons"),
        (bearer(SUPER), b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    ],
    ids=["credentials", "credentials-last", "client", "client-first", "method", "role", "length"],
)
async def test_a_header_with_two_values_is_refused(port: int, headers: tuple[bytes, ...]) -> None:
    data = request(b"GET", TOPICS, *headers, CLOSE)
    assert await exchange(port, data) == [400]


async def test_the_same_value_twice_is_one(port: int) -> None:
    data = request(b"GET", CLUSTERS, bearer(SUPER), bearer(SUPER), CLOSE)
    assert await exchange(port, data) == [200]


@pytest.mark.parametrize(
    ("version", "framing", "body"),
    [
        (b"1.1", (b"Content-Length: 4", b"Transfer-Encoding: chunked"), b"0\r\n\r\n"),
        (b"1.1", (b"Transfer-Encoding: chunked", b"Content-Length: 5"), b"0\r\n\r\n"),
        (b"1.1", (b"Content-Length: 0", b"Content-Length: 5"), b"abcde"),
        (b"1.1", (b"Content-Length: +5",), b"abcde"),
        (b"1.1", (b"Content-Length: 5, 6",), b"abcde"),
        (b"1.1", (b"Transfer-Encoding: xchunked",), b"0\r\n\r\n"),
        (b"1.1", (b"Transfer-Encoding: chunked, identity",), b"0\r\n\r\n"),
        (b"1.1", (b"Transfer-Encoding : chunked",), b"0\r\n\r\n"),
        (b"1.0", (b"Transfer-Encoding: chunked",), b"0\r\n\r\n"),
        (b"1.1", (b"Transfer-Encoding: chunked",), b"0 \r\r\n\r\n"),
        (b"1.1", (b"Transfer-Encoding: chunked",), b"-1\r\n\r\n"),
    ],
)
async def test_a_body_whose_length_is_in_doubt_is_the_last_of_its_connection(
    port: int, version: bytes, framing: tuple[bytes, ...], body: bytes
) -> None:
    headers = (bearer(SUPER), b"Content-Type: application/json", *framing)
    head = request(b"PUT", b"/admin/v2/tenants/new", *headers, version=version)
    statuses = await exchange(port, head + body + NEXT)
    assert 200 not in statuses, "the rest of a body was served as a request"
    assert set(statuses) <= {400}


@pytest.mark.parametrize(
    "target",
    [
        b"http://elsewhere/admin/v2/clusters",
        b"/admin%2fv2/clusters",
        b"/admin/v2%2Fclusters",
        b"//admin/v2/clusters",
        b"/./admin/v2/clusters",
        b"/healthz/../admin/v2/clusters",
        b"/healthz/%2e%2e/admin/v2/clusters",
        b"/healthz;/admin/v2/clusters",
        b"/healthz%00/admin/v2/clusters",
        b"/healthz%3f/admin/v2/clusters",
        b"*",
    ],
)
async def test_another_spelling_of_a_path_is_no_way_around_the_guard(
    port: int, target: bytes
) -> None:
    assert await exchange(port, request(b"GET", target, CLOSE)) == [401]
    known = await exchange(port, request(b"GET", target, bearer("nobody"), CLOSE))
    assert known == [404]


@pytest.mark.parametrize(
    "headers",
    [
        (b"X-Original-URL: /healthz",),
        (b"X-Rewrite-URL: /healthz",),
        (b"X-HTTP-Method-Override: GET",),
        (b"X-Forwarded-For: 127.0.0.1", b"Forwarded: for=127.0.0.1"),
        (b"X_Original_Principal: admin", bearer(PROXY)),
        (b"X-Original-Principal: admin", bearer("nobody")),
    ],
)
async def test_no_other_header_changes_the_request_or_its_sender(
    port: int, headers: tuple[bytes, ...]
) -> None:
    assert await exchange(port, request(b"GET", TOPICS, *headers, CLOSE)) == [401]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: b\r\nX: " + b"x" * (1 << 17),
        b"GET /" + b"x" * (1 << 17),
        b"x" * (1 << 17),
        b"".join([b"GET /healthz HTTP/1.1\r\nHost: b\r\n", *[b"A: b\r\n" for _ in range(1 << 15)]]),
    ],
    ids=["header", "path", "method", "headers"],
)
async def test_a_large_head_ends_its_connection(port: int, head: bytes) -> None:
    """The head is never completed: the server ends the connection for its size."""
    assert set(await exchange(port, head)) <= {400}

"""Requests of jobs to brokers: credentials follow redirects to other brokers, never to http."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from magnetar.core.errors import PreconditionFailed
from magnetar_spark.log import admin_rest
from magnetar_spark.log.settings import LogSettings

FIRST = "https://broker:8443/admin/v2/persistent/a/b/c/stats"
OWNER = "https://10-0-0-2.ns.pod:8443/admin/v2/persistent/a/b/c/stats"


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def settings(tmp_path: Path, token: str = "one") -> LogSettings:  # noqa: S107  of no broker
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    return LogSettings("etcd:http://x:1", token_file=str(file))


async def test_the_owner_of_a_topic_gets_the_token_too(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), request.headers.get("authorization", "")))
        if str(request.url) == FIRST:
            return httpx.Response(307, headers={"location": OWNER})
        return httpx.Response(200, json={})

    async with client(answer) as http:
        found = await admin_rest.get(http, FIRST, settings(tmp_path).admin_headers)
    assert found.json() == {}
    assert asked == [(FIRST, "Bearer one"), (OWNER, "Bearer one")]


async def test_a_token_never_goes_from_tls_to_http(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"location": "http://broker:8080/"})

    async with client(answer) as http:
        with pytest.raises(httpx.HTTPError, match="redirects to http"):
            await admin_rest.get(http, FIRST, settings(tmp_path).admin_headers)
    assert asked == [FIRST]


async def test_redirects_are_bounded(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"location": OWNER})

    async with client(answer) as http:
        with pytest.raises(httpx.TooManyRedirects):
            await admin_rest.get(http, FIRST, settings(tmp_path).admin_headers)
    assert len(asked) == admin_rest.REDIRECTS_MAX + 1


async def test_a_refusal_is_an_error(tmp_path: Path) -> None:
    async with client(lambda _: httpx.Response(401)) as http:
        with pytest.raises(httpx.HTTPStatusError):
            await admin_rest.get(http, FIRST, settings(tmp_path).admin_headers)


def test_a_renewed_token_is_presented(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    assert chosen.admin_headers() == {"authorization": "Bearer one"}
    settings(tmp_path, "two")
    assert chosen.admin_headers() == {"authorization": "Bearer two"}
    assert LogSettings("etcd:http://x:1").admin_headers() == {}


def test_a_token_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = LogSettings("etcd:http://x:1", token_file=str(tmp_path / "missing"))
    with pytest.raises(PreconditionFailed, match=r"missing: .*No such file"):
        missing.admin_headers()

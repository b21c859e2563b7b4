"""The client of the admin REST: retries, redirects and errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from magnetar_operator.admin.client import (
    ATTEMPTS_MAX,
    DOWN_S,
    AdminClient,
    AdminClients,
    Exists,
    NotFound,
    Purpose,
    Refused,
    Unreachable,
)
from magnetar_operator.admin.target import NAMESPACE, TOPIC, Target
from magnetar_operator.admin.view import FRESH_S, ClusterView, inhabitants

Answer = tuple[int, str, dict[str, str]]
Handler = Callable[[str, str], Answer | Awaitable[Answer]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A minimal HTTP server: `handler(method, path)` returns status, body and headers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode().split():
                length = 0
                while header := (await reader.readline()).strip().decode().lower():
                    if header.startswith("content-length:"):
                        length = int(header.partition(":")[2])
                await reader.readexactly(length)
                found = handler(line[0], line[1])
                status, body, headers = found if isinstance(found, tuple) else await found
                if status == 0:
                    break
                lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_recovered_broker_gets_requests_again() -> None:
    answers: list[tuple[int, str, dict[str, str]]] = [(503, "", {}), (0, "", {}), (200, "[1]", {})]
    async with serving(lambda _method, _path: answers.pop(0)) as url:
        client = AdminClient(url)
        assert await client.get("/x") == [1]
        assert client.requests["GET"] == ATTEMPTS_MAX
        await client.close()


async def test_redirects_keep_method_and_query() -> None:
    seen: list[tuple[str, str]] = []

    def handler(method: str, path: str) -> Answer:
        seen.append((method, path))
        if len(seen) == 1:
            return 307, "", {"location": f"{path}&authoritative=true"}
        return 204, "", {}

    async with serving(handler) as url:
        client = AdminClient(url)
        assert await client.call("PUT", "/x", {"a": 1}, {"q": "1"}) is None
        await client.close()
    assert seen == [("PUT", "/x?q=1"), ("PUT", "/x?q=1&authoritative=true")]


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (409, Exists), (412, Refused)])
async def test_refusals_are_typed_and_not_retried(status: int, kind: type[Refused]) -> None:
    asked = 0

    def handler(_method: str, _path: str) -> Answer:
        nonlocal asked
        asked += 1
        return status, '{"reason": "because"}', {}

    async with serving(handler) as url:
        client = AdminClient(url)
        with pytest.raises(kind) as raised:
            await client.call("PUT", "/x", 1)
        assert (raised.value.status, raised.value.reason) == (status, "because")
        assert asked == 1
        await client.close()


@pytest.mark.parametrize("body", ["<html>signed out</html>", '{"reason": ', "\x00"])
async def test_an_answer_that_is_no_json_is_a_refusal_that_names_the_request(body: str) -> None:
    """A proxy in between answers 200 with a page of its own: nothing is known of the cluster."""
    async with serving(lambda _method, _path: (200, body, {})) as url:
        client = AdminClient(url)
        with pytest.raises(Refused, match="the answer is no JSON: ") as raised:
            await client.get("/x")
        assert raised.value.status == 200
        assert "/x" in str(raised.value)
        await client.close()


async def test_a_broker_that_is_down_gets_no_requests_for_a_while() -> None:
    time = Time()
    client = AdminClient("http://127.0.0.1:9", time)
    with pytest.raises(Unreachable, match="cannot be reached"):
        await client.get("/x")
    sent = client.requests["GET"]
    with pytest.raises(Unreachable, match="cannot be reached"):
        await client.get("/y")
    assert client.requests["GET"] == sent
    time.now += DOWN_S
    with pytest.raises(Unreachable):
        await client.get("/y")
    assert client.requests["GET"] == 2 * sent
    await client.close()


async def test_a_cancelled_caller_does_not_cancel_the_request() -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_method: str, _path: str) -> Answer:
        begun.set()
        await go_on.wait()
        done.set()
        return 200, "1", {}

    async with serving(slow) as url:
        client = AdminClient(url)
        caller = asyncio.ensure_future(client.get("/x"))
        await begun.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()
        await client.close()
        assert done.is_set()


async def test_a_list_is_read_once_while_it_is_fresh() -> None:
    time = Time()
    lists = {
        "/admin/v2/persistent/a/b": '["persistent://a/b/x", "persistent://a/b/p-partition-0",'
        ' "persistent://a/b/__change_events"]',
        "/admin/v2/persistent/a/b/partitioned": '["persistent://a/b/p"]',
        "/admin/v2/non-persistent/a/b": "[]",
        "/admin/v2/non-persistent/a/b/partitioned": "[]",
    }
    async with serving(lambda _method, path: (200, lists[path], {})) as url:
        view = ClusterView(AdminClient(url), time)
        names = ["x", "p", "new"]
        targets = [Target(TOPIC, f"persistent://a/b/{name}") for name in names]
        answers = await asyncio.gather(*(view.exists(item) for item in targets * 20))
        assert answers == [True, True, False] * 20
        assert view.client.requests["GET"] == 2
        view.created(targets[2])
        view.deleted(targets[0])
        assert [await view.exists(target) for target in targets] == [False, True, True]
        assert view.client.requests["GET"] == 2
        time.now += FRESH_S
        assert [await view.exists(target) for target in targets] == [True, True, False]
        assert view.client.requests["GET"] == 4
        view.forget(Target(NAMESPACE, "a/b"))
        assert await inhabitants(view, "a/b") == ["persistent://a/b/p", "persistent://a/b/x"]
        await view.client.close()


async def test_each_cluster_has_a_client_for_each_purpose() -> None:
    clients = AdminClients()
    first = clients.at("http://a", Purpose.CLUSTERS)
    assert clients.at("http://a/", Purpose.CLUSTERS) is first
    assert clients.at("http://a", Purpose.CATALOG) is not first
    assert clients.at("http://b", Purpose.CLUSTERS) is not first


async def test_the_least_recently_used_idle_client_closes_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar_operator.admin.client.CONNECTED_MAX", 1)
    is_sent, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "slow":
            is_sent.set()
            await may_answer.wait()
        return httpx.Response(200, json=1)

    clients = AdminClients(transport=httpx.MockTransport(answer))
    slow, idle = (clients.at(f"http://{name}", Purpose.CATALOG) for name in ("slow", "idle"))
    request = asyncio.create_task(slow.get("/x"))
    await is_sent.wait()
    assert await idle.get("/x") == 1
    https = [slow._http, idle._http]
    clients.at("http://new", Purpose.CATALOG)
    assert (slow.connected, idle.connected) == (True, True), "a request is running; the newest"
    may_answer.set()
    assert await request == 1
    clients.at("http://new", Purpose.CATALOG)
    assert (slow.connected, idle.connected) == (False, True)
    assert await slow.get("/x") == 1, "it opens its connections again"
    clients.at("http://new", Purpose.CATALOG)
    assert slow.connected != idle.connected
    assert clients.requests() == {"GET": 3}
    await clients.close()
    assert all(http is not None and http.is_closed for http in https)
    assert not slow.connected
    assert not idle.connected

"""The examples of docs/use/examples against the server under test."""

import asyncio
import importlib.util
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from magnetar.client import Client, Consumer, InitialPosition, Message
from magnetar.client import sync as blocking

from .client_rig import DEADLINE_S, take, values
from .support import Names, ServerAddress, numbered

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "use" / "examples"


def example(name: str) -> ModuleType:
    """Imports an example from its file."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


async def from_start(client: Client, topic: str, subscription: str) -> Consumer[bytes]:
    return await client.consumer(topic, subscription, initial_position=InitialPosition.EARLIEST)


async def test_fastapi_publishes_and_streams(
    server: ServerAddress, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_URL", server.service_url)
    app = example("fastapi_orders").app
    app.state.topic = topic
    async with (
        asyncio.timeout(DEADLINE_S),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        opened = asyncio.Event()
        create_reader = app.state.client.reader

        def reader(*arguments: object, **options: object) -> object:
            async def open_reader() -> object:
                result = await create_reader(*arguments, **options)
                opened.set()
                return result

            return open_reader()

        monkeypatch.setattr(app.state.client, "reader", reader)
        listener = asyncio.create_task(http.get("/orders", params={"limit": 2}))
        await opened.wait()
        for item in ("tea", "milk"):
            answer = await http.post("/orders", json={"item": item, "count": 1})
            assert answer.status_code == httpx.codes.CREATED, answer.text
        assert (await http.post("/orders", json={"item": "tea"})).status_code == 422
        events = (await listener).text
    assert events.count("\n\n") == 2
    assert events.index("tea") < events.index("milk")


async def test_a_worker_retries_and_gives_up(
    own: Client, server: ServerAddress, topic: str
) -> None:
    worker = example("worker")
    attempts: Counter[bytes] = Counter()

    async def handle(message: Message[bytes]) -> None:
        attempts[message.value] += 1
        if message.value == b"useless":
            raise worker.GiveUp("of no use")
        if message.value == b"hopeless" or attempts[message.value] < 2:
            raise ConnectionError("try later")

    running = asyncio.create_task(worker.work(server.service_url, topic, handle, pause_s=0.1))
    try:
        async with own.producer(topic) as producer:
            for body in (b"useless", b"hopeless", b"late"):
                await producer.send(body)
        async with await from_start(own, f"{topic}-worker-DLQ", "dlq") as dead:
            assert values(await take(dead, 1, ack=True)) == [b"hopeless"]
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert attempts == {b"useless": 1, b"hopeless": worker.ATTEMPTS + 1, b"late": 2}


async def test_processing_exactly_once(own: Client, server: ServerAddress, names: Names) -> None:
    source, sink = names.topic("source"), names.topic("sink")
    failed: list[bytes] = []

    def split(body: bytes) -> list[bytes]:
        if body == b"m-1" and not failed:
            failed.append(body)
            raise ValueError("only once")
        return [body + b"-a", body + b"-b"]

    async with own.producer(source) as producer:
        for body in numbered(3):
            await producer.send(body)
    async with asyncio.timeout(DEADLINE_S):
        await example("exactly_once").process(server.service_url, source, sink, split, limit=3)
    async with await from_start(own, sink, "check") as consumer:
        results = values(await take(consumer, 6))
    assert sorted(results) == sorted(body + part for body in numbered(3) for part in (b"-a", b"-b"))
    assert failed == [b"m-1"]


def test_a_table_view_as_a_cache(server: ServerAddress, topic: str) -> None:
    prices = example("price_cache").Prices
    with blocking.Client(server.service_url) as client:
        writer, reader = prices(client, topic), prices(client, topic)
        heard: list[tuple[str, float | None]] = []
        reader.watch(lambda item, price: heard.append((item, price)))
        writer.set("tea", 2.5)
        writer.set("milk", 1.0)
        writer.remove("milk")
        reader.refresh()
        assert (reader.get("tea"), reader.get("milk")) == (2.5, None)
        assert heard == [("tea", 2.5), ("milk", 1.0), ("milk", None)]
        writer.close()
        reader.close()


async def test_request_and_reply(own: Client, topic: str) -> None:
    module = example("request_reply")

    async def answer(request: bytes) -> bytes:
        if request == b"slow":
            await asyncio.Event().wait()
        return request[::-1]

    servers = [asyncio.create_task(module.serve(own, topic, answer)) for _ in range(2)]
    try:
        async with module.Caller(own, topic) as caller:
            replies = await asyncio.gather(
                *(caller.call(b"%03d" % i, timeout_s=DEADLINE_S) for i in range(50))
            )
            assert replies == [(b"%03d" % i)[::-1] for i in range(50)]
            with pytest.raises(TimeoutError):
                await caller.call(b"slow", timeout_s=0.1)
    finally:
        for task in servers:
            task.cancel()
        await asyncio.wait(servers)

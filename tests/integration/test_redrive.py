"""A redrive moves dead letters once each: by filter and rate, over a stop, and over kill -9."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.support.server_process import ServerProcess

from magnetar.client import Client, InitialPosition, SubscriptionType
from magnetar.client.schema import StringSchema

ORIGINS = [f"persistent://public/default/{name}" for name in ("orders", "bills")]
LETTERS = "persistent://public/default/orders-worker-DLQ"
PATH = f"/admin/v2/{LETTERS.replace('://', '/')}/subscription/dlq/redrive"
TRANSACTIONS = {"MAGNETAR_TRANSACTIONS": "true"}
COUNT = 200
RATE = 2
"""So low that a stop or a kill comes before the end, however late the test is."""
PATIENCE_S = 120.0
POLL_S = 0.05
TEST_TIMEOUT_S = 300

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


async def until(
    admin: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool], path: str = PATH
) -> dict[str, Any]:
    """Returns the redrive's progress as soon as it fulfills the condition, or has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            progress: dict[str, Any] = (await admin.get(path)).raise_for_status().json()
            if holds(progress) or progress["state"] not in ("running", "stopping"):
                return progress
            await asyncio.sleep(POLL_S)


async def start(admin: httpx.AsyncClient, **order: Any) -> dict[str, Any]:
    started = await admin.post(PATH, json=order)
    assert started.status_code == httpx.codes.OK, started.text
    document: dict[str, Any] = started.json()
    return document


async def bury(client: Client) -> None:
    """Stores the letters: half of them in batches, from two regions and two topics."""
    async with client.producer(LETTERS) as producer:
        for number in range(COUNT):
            properties = {
                "region": "eu" if number % 4 < 2 else "us",
                "REAL_TOPIC": ORIGINS[number % 2],
                "RECONSUMETIMES": "3",
            }
            sending = producer.send_nowait(
                b"%03d" % number, key=f"k{number}", properties=properties, event_time_ms=number + 1
            )
            if number < COUNT // 2:
                await producer.flush()
                await sending
        await producer.flush()


async def received(client: Client, topic: str, count: int) -> list[bytes]:
    bodies = []
    async with client.consumer(
        topic, "check", type=SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST
    ) as consumer:
        for _ in range(count):
            message = await consumer.receive(PATIENCE_S)
            number = int(message.data)
            assert message.key == f"k{number}"
            assert message.event_time_ms == number + 1
            assert message.properties["REDRIVES"] == "1"
            assert not {"REAL_TOPIC", "RECONSUMETIMES"} & set(message.properties)
            bodies.append(message.data)
    return bodies


async def entries(admin: httpx.AsyncClient, topic: str) -> int:
    """How many messages without an ack the subscription of the reader has."""
    path = f"/admin/v2/{topic.replace('://', '/')}/subscription/check/analyzeBacklog"
    return int((await admin.post(path)).raise_for_status().json()["messages"])


async def test_each_letter_is_moved_once_over_stops_and_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, environment=TRANSACTIONS) as server:
        async with (
            httpx.AsyncClient(base_url=server.http_url, timeout=PATIENCE_S) as admin,
            Client(server.service_url) as client,
        ):
            for topic in ORIGINS:
                async with client.consumer(topic, "check"):
                    pass  # the subscription keeps what is moved there
            await bury(client)
            dry = await start(admin, filter="region = 'eu'", dryRun=True)
            dry = await until(admin, lambda _: False)
            assert (dry["state"], dry["examined"], dry["matched"], dry["moved"]) == (
                *("finished", COUNT, COUNT // 2),
                0,
            )
            await start(admin, filter="region = 'eu'", rate=RATE)
            twice = await admin.post(PATH, json={})
            assert twice.status_code == httpx.codes.CONFLICT
            await until(admin, lambda progress: progress["moved"] > 0)
            (await admin.delete(PATH)).raise_for_status()
            stopped = await until(admin, lambda _: False)
            assert stopped["state"] == "stopped", stopped
            assert 0 < stopped["moved"] < COUNT // 2
            await start(admin, filter="region = 'eu'")
            finished = await until(admin, lambda _: False)
            assert (finished["state"], finished["error"]) == ("finished", ""), finished
            assert stopped["moved"] + finished["moved"] == COUNT // 2
            await start(admin, rate=RATE)
            await until(admin, lambda progress: progress["moved"] > 0)
            server.kill()
            server.start()
            await start(admin)
            resumed = await until(admin, lambda _: False)
            assert (resumed["state"], resumed["error"]) == ("finished", ""), resumed
            assert 0 < resumed["moved"] < COUNT // 2
            assert [await entries(admin, topic) for topic in ORIGINS] == [COUNT // 2] * 2
            for index, topic in enumerate(ORIGINS):
                bodies = await received(client, topic, COUNT // 2)
                assert sorted(bodies) == [b"%03d" % n for n in range(index, COUNT, 2)]
            await start(admin)
            assert (await until(admin, lambda _: False))["examined"] == 0


# -- what stays, and why


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("s"), environment=TRANSACTIONS) as running:
        yield running


@pytest.fixture
async def admin(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.http_url, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.service_url) as connected:
        yield connected


@pytest.fixture
def name() -> str:
    return f"persistent://public/default/{uuid4().hex}"


def path_of(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def redrive_of(name: str) -> str:
    return f"{path_of(name)}-DLQ/subscription/dlq/redrive"


async def redriven(admin: httpx.AsyncClient, name: str, **order: Any) -> dict[str, Any]:
    """The result of a redrive of NAME-DLQ."""
    (await admin.post(redrive_of(name), json=order)).raise_for_status()
    return await until(admin, lambda _: False, redrive_of(name))


async def test_a_letter_in_an_open_transaction_is_moved_after_its_abort(
    client: Client, admin: httpx.AsyncClient, name: str
) -> None:
    """A crash leaves such letters, until the transaction's timeout."""
    async with client.producer(name), client.producer(f"{name}-DLQ") as dead:
        await dead.send(b"x", properties={"REAL_TOPIC": name})
    async with client.consumer(f"{name}-DLQ", "dlq", type=SubscriptionType.SHARED) as consumer:
        message = await consumer.receive(PATIENCE_S)
        left_open = await client.transaction(timeout_s=3)
        await consumer.ack(message, transaction=left_open)
    result = await redriven(admin, name)
    assert (result["state"], result["moved"], result["skipped"]) == ("finished", 1, {})


async def test_a_part_of_a_batch_is_moved_with_its_schema(
    client: Client, admin: httpx.AsyncClient, name: str
) -> None:
    schema = StringSchema()
    async with client.consumer(name, "check", schema=schema, type=SubscriptionType.SHARED) as check:
        async with client.producer(f"{name}-DLQ", schema=schema) as dead:
            for number in range(4):
                dead.send_nowait(
                    None if number == 1 else f"{number}",
                    key_bytes=b"\xff",
                    ordering_key=b"o",
                    properties={"REAL_TOPIC": name, "n": str(number)},
                )
            await dead.flush()
        result = await redriven(admin, name, filter="n BETWEEN 1 AND 2", limit=2)
        assert (result["examined"], result["moved"]) == (3, 2), result
        messages = [await check.receive(PATIENCE_S) for _ in range(2)]
        assert [message.is_null for message in messages] == [True, False]
        assert messages[1].value == "2"
        assert {(m.key_bytes, m.ordering_key) for m in messages} == {(b"\xff", b"o")}
        assert all(message.schema_version for message in messages)
        result = await redriven(admin, name)
        assert (result["examined"], result["moved"]) == (2, 2)
        rest = [(await check.receive(PATIENCE_S)).value for _ in range(2)]
        assert rest == ["0", "3"]


async def test_letters_that_their_target_refuses_stay(
    client: Client, admin: httpx.AsyncClient, name: str
) -> None:
    ended, open_topic = f"{name}-ended", f"{name}-open"
    for topic in (ended, open_topic):
        async with client.consumer(topic, "check"):
            pass
    async with client.producer(f"{name}-DLQ") as dead:
        for topic in (ended, open_topic, ended):
            await dead.send(b"x", properties={"REAL_TOPIC": topic})
    (await admin.post(f"{path_of(ended)}/terminate")).raise_for_status()
    result = await redriven(admin, name)
    assert (result["state"], result["moved"]) == ("finished", 1), result
    assert result["skipped"] == {"refused_by_target": 2}
    result = await redriven(admin, name, to=open_topic)
    assert (result["moved"], result["skipped"]) == (2, {})


@pytest.mark.parametrize(
    ("order", "status", "text"),
    [
        ({"rat": 1}, 400, "rat"),
        ({"rate": 0}, 412, "rate is 0"),
        ({"limit": 0}, 412, "limit is 0"),
        ({"filter": "a ="}, 412, "filter cannot be parsed"),
        ({"to": "a://b"}, 412, "to is not a topic's name"),
        ({"to": "persistent://public/default/nowhere"}, 404, "nowhere not found"),
        ({"to": "non-persistent://public/default/t"}, 412, "persistent topic"),
    ],
)
async def test_an_order_that_cannot_be_honored_is_refused(
    client: Client, admin: httpx.AsyncClient, order: dict[str, Any], status: int, text: str
) -> None:
    name = "persistent://public/default/refused"
    async with client.producer(f"{name}-DLQ"):
        pass
    answer = await admin.post(redrive_of(name), json=order)
    assert (answer.status_code, text in answer.json()["reason"]) == (status, True), answer.text
    itself = await admin.post(redrive_of(name), json={"to": f"{name}-DLQ"})
    assert itself.status_code == httpx.codes.PRECONDITION_FAILED


# -- the command


async def magnetar(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar.cli.main", "redrive", *arguments]
    return await asyncio.to_thread(
        subprocess.run,
        [*command, "--admin-url", server.http_url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


async def test_the_command_moves_all_partitions(
    server: ServerProcess, client: Client, admin: httpx.AsyncClient, name: str
) -> None:
    dead_topic = f"{name}-DLQ"
    (await admin.put(f"{path_of(dead_topic)}/partitions", json=2)).raise_for_status()
    async with client.consumer(name, "check"):
        pass
    async with client.producer(dead_topic, batching=None) as dead:
        for number in range(6):
            origin = {"REAL_TOPIC": name} if number else {}
            await dead.send(b"x", properties={"n": str(number), **origin})
    dry = await magnetar(server, dead_topic, "--dry-run")
    assert (dry.returncode, dry.stdout) == (
        3, "6 examined, 6 matched, 5 would move; stay: 1 no_origin\n",
    )  # fmt: skip
    some = await magnetar(server, dead_topic, "--limit", "3", "--filter", "n > 0", "--json")
    assert some.returncode == 0, some.stderr
    document = json.loads(some.stdout)
    assert (document["moved"], document["skipped"]) == (3, {})
    assert all(part["state"] == "finished" for part in document["partitions"])
    rest = await magnetar(server, dead_topic, "--to", name)
    assert (rest.returncode, rest.stdout) == (0, "3 examined, 3 matched, 3 moved\n")
    assert await entries(admin, name) == 6
    missing = await magnetar(server, f"{name}-nowhere")
    assert missing.returncode == 1
    assert "not found" in missing.stderr


async def test_ctrl_c_stops_the_redrive(
    server: ServerProcess, client: Client, admin: httpx.AsyncClient, name: str
) -> None:
    async with client.consumer(name, "check"):
        pass
    async with client.producer(f"{name}-DLQ") as dead:
        for _ in range(COUNT):
            dead.send_nowait(b"x", properties={"REAL_TOPIC": name})
        await dead.flush()
    command = [sys.executable, "-m", "magnetar.cli.main", "redrive", f"{name}-DLQ",
               "--rate", str(RATE), "--admin-url", server.http_url]  # fmt: skip
    # Children inherit that Ctrl-C is ignored, as by tests that a shell runs in the background.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, former)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await admin.get(redrive_of(name))).status_code == httpx.codes.OK:
                break
            await asyncio.sleep(POLL_S)
        await until(admin, lambda progress: progress["moved"] > 0, redrive_of(name))
        process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()
    assert process.returncode == 130, output
    assert (await admin.get(redrive_of(name))).json()["state"] == "stopped"

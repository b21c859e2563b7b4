"""A redrive in a cluster: letters and origin on different brokers, which move and die meanwhile."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.client import Client, InitialPosition, SubscriptionType
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Member

NAMESPACE = "persistent://public/default"
BUNDLES = 7
COUNT = 240
RATE = 2
"""So low that topics move and a broker dies before the end, however late the test is."""
PATIENCE_S = 120.0
POLL_S = 0.05
TEST_TIMEOUT_S = 300

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path, bookies=2, brokers=2, transactions=True, session_timeout_ms=2_000,
        default_namespace_bundles=BUNDLES,
    ) as running:  # fmt: skip
        yield running


@asynccontextmanager
async def admin_of(member: Member) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=member.http_url, timeout=PATIENCE_S, follow_redirects=True
    ) as admin:
        yield admin


def path_of(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


async def owner_of(cluster: LocalCluster, admin: httpx.AsyncClient, topic: str) -> Member:
    """Returns the broker that owns the topic, or claims it now."""
    found = (await admin.get(f"/lookup/v2/topic/{topic.replace('://', '/')}")).raise_for_status()
    url = found.json()["httpUrl"]
    return next(member for member in brokers(cluster) if member.http_url == url)


async def move(cluster: LocalCluster, admin: httpx.AsyncClient, topic: str, to: Member) -> None:
    """Moves the topic's bundle to a broker."""
    bundle = (await admin.get(f"/lookup/v2/topic/{topic.replace('://', '/')}/bundle")).text
    destination = to.http_url.removeprefix("http://")
    (
        await admin.put(
            f"/admin/v2/namespaces/public/default/{bundle}/unload",
            params={"destinationBroker": destination},
        )
    ).raise_for_status()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await owner_of(cluster, admin, topic) == to:
                return
            await asyncio.sleep(POLL_S)


async def moved_by(admin: httpx.AsyncClient, path: str, count: int) -> dict[str, Any]:
    """Returns the progress once a redrive that runs has moved so many letters.

    An earlier one of that broker, which has lost the topic meanwhile, does not count.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await admin.get(path)
            if answer.status_code == httpx.codes.OK:
                progress: dict[str, Any] = answer.json()
                if progress["state"] == "running" and progress["moved"] >= count:
                    return progress
            await asyncio.sleep(POLL_S)


async def left(admin: httpx.AsyncClient, topic: str, subscription: str = "dlq") -> int:
    """The messages that a subscription has not acknowledged."""
    path = f"{path_of(topic)}/subscription/{subscription}/analyzeBacklog"
    return int((await admin.post(path)).raise_for_status().json()["messages"])


async def received(client: Client, topic: str) -> list[bytes]:
    async with client.consumer(
        topic, "check", type=SubscriptionType.SHARED, initial_position=InitialPosition.EARLIEST
    ) as consumer:
        return [(await consumer.receive(PATIENCE_S)).data for _ in range(COUNT)]


async def redrive(member: Member, topic: str, *flags: str) -> asyncio.subprocess.Process:
    """Starts the command with the address of a broker."""
    words = ("-m", "magnetar.cli.main", "redrive", topic, *flags, "--admin-url", member.http_url)
    # Children inherit that Ctrl-C is ignored, as by tests that a shell runs in the background.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    finally:
        signal.signal(signal.SIGINT, former)


async def test_letters_and_origin_on_two_brokers_that_move_and_die(cluster: LocalCluster) -> None:
    one, two = brokers(cluster)
    origin = f"{NAMESPACE}/orders"
    letters = f"{NAMESPACE}/orders-worker-DLQ"
    path = f"{path_of(letters)}/subscription/dlq/redrive"
    async with (
        admin_of(one) as at_one,
        admin_of(two) as at_two,
        Client(f"pulsar://{one.host}:{one.ports['port']},{two.host}:{two.ports['port']}") as client,
    ):
        bundles = (await at_one.get("/admin/v2/namespaces/public/default/bundles")).json()
        assert bundles["numBundles"] == BUNDLES, "as the settings say"
        async with client.consumer(origin, "check"):
            pass
        async with client.producer(letters, batching=None) as producer:
            for number in range(COUNT):
                producer.send_nowait(b"%03d" % number, properties={"REAL_TOPIC": origin})
            await producer.flush()
        await move(cluster, at_one, letters, one)
        await move(cluster, at_one, origin, two)

        order = {"rate": RATE}
        away = await at_two.post(path, json=order, follow_redirects=False)
        assert away.status_code == httpx.codes.TEMPORARY_REDIRECT
        assert away.headers["location"].startswith(one.http_url)
        started = await at_two.post(path, json=order)
        assert started.status_code == httpx.codes.OK, started.text
        assert (await at_one.post(path, json=order)).status_code == httpx.codes.CONFLICT
        before = await moved_by(at_two, path, 1)

        await move(cluster, at_one, origin, one)
        on_one = await moved_by(at_two, path, before["moved"] + 1)
        await move(cluster, at_one, origin, two)
        await moved_by(at_two, path, on_one["moved"] + 1)

        await move(cluster, at_one, letters, two)
        lost = await at_one.get(path)
        assert lost.status_code == httpx.codes.NOT_FOUND, lost.text
        assert await left(at_two, letters) < COUNT

        command = await redrive(one, letters, "--rate", str(RATE))
        await moved_by(at_two, path, 1)
        await asyncio.to_thread(cluster.kill, "broker-2")
        assert command.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            said = await command.stderr.readline()
        assert said.endswith(b"(started again)\n"), said
        await moved_by(at_one, path, 1)
        command.send_signal(signal.SIGINT)
        output, _ = await command.communicate()
        assert command.returncode == 130, output
        assert (await at_one.get(path)).json()["state"] == "stopped"
        some = await left(at_one, letters)
        assert 0 < some < COUNT

        command = await redrive(one, letters, "--json")
        output, _ = await command.communicate()
        result = json.loads(output)
        assert (command.returncode, result["moved"], result["skipped"]) == (0, some, {}), output
        assert await left(at_one, letters) == 0
        assert await left(at_one, origin, "check") == COUNT
        assert sorted(await received(client, origin)) == [b"%03d" % n for n in range(COUNT)]

"""Deduplication over REST: its levels, its status, the ids of producers, and switching in use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.unit.broker.topic.dedup_stage import attach, ids, run_of_entries, send, stored
from tests.unit.broker.topic.stage import ProducerSink
from tests.unit.ledger.stage import turns

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.topic.deduplication.snapshots import CURSOR
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

from .support import Admin, start_service, stop_service

NAMESPACE = "~/namespaces/t1/n1/deduplication"
TOPIC = "~/persistent/t1/n1/a"
ENABLED = TOPIC + "/deduplicationEnabled"
DUPLICATE = (-1, -1)
"""The message id of a receipt for a message that is stored already."""


@asynccontextmanager
async def rest(**settings: Any) -> AsyncIterator[Admin]:
    service = await start_service(compose(BrokerSettings, **settings))
    page = MetricsPage(service)
    transport = httpx.ASGITransport(create_app(service, page))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        yield Admin(service, page, http)
    await stop_service(service)


async def status(admin: Admin) -> str:
    return str((await admin.done("GET", TOPIC + "/stats")).json()["deduplicationStatus"])


async def reaches(admin: Admin, wanted: str) -> None:
    """Waits for a status; the timeout of the test bounds it."""
    while await status(admin) != wanted:
        await turns(1)


async def last_ids(admin: Admin) -> dict[str, int] | None:
    """The ids by producer, as `topics stats-internal` shows them; None without a cursor."""
    cursors = (await admin.done("GET", TOPIC + "/internalStats")).json()["cursors"]
    return None if CURSOR not in cursors else dict(cursors[CURSOR]["properties"])


def positions(sink: ProducerSink) -> list[tuple[list[int], tuple[int, int]]]:
    return [(numbers, (ledger, first)) for numbers, ledger, first in sink.receipts]


LEVELS = [
    # broker, namespace, topic -> in force
    (False, None, None, False),
    (True, None, None, True),
    (False, True, None, True),
    (True, False, None, False),
    (False, False, True, True),
    (True, True, False, False),
    (False, None, True, True),
    (True, None, False, False),
]


@pytest.mark.parametrize(("broker", "namespace", "topic", "on"), LEVELS)
async def test_the_nearest_level_decides_what_is_stored(
    broker: bool, namespace: bool | None, topic: bool | None, on: bool
) -> None:
    async with rest(deduplication=broker) as admin:
        opened = await admin.topic()
        if namespace is not None:
            await admin.done("POST", NAMESPACE, namespace)
        if topic is not None:
            await admin.done("POST", ENABLED, topic)
        for path, value in ((NAMESPACE, namespace), (ENABLED, topic)):
            answer = await admin.done("GET", path)
            assert answer.text == ("" if value is None else str(value).lower())
        assert (await admin.done("GET", ENABLED + "?applied=true")).json() is on
        await reaches(admin, "Enabled" if on else "Disabled")
        producer, sink = await attach(opened, "a")
        await send(opened, producer, *ids("a", 0, 1))
        await send(opened, producer, *ids("a", 1))
        assert len(await stored(opened)) == (2 if on else 3)
        assert (positions(sink)[-1][1] == DUPLICATE) is on
        assert await last_ids(admin) == ({"a": 1} if on else None)


async def test_removing_a_level_uncovers_the_next_one() -> None:
    async with rest(deduplication=True) as admin:
        await admin.topic()
        await admin.done("POST", NAMESPACE, False)
        await reaches(admin, "Disabled")
        await admin.done("POST", ENABLED, True)
        await reaches(admin, "Enabled")
        await admin.done("DELETE", ENABLED)
        await reaches(admin, "Disabled")
        await admin.done("DELETE", NAMESPACE)
        await reaches(admin, "Enabled")


async def test_switched_on_under_a_connected_producer_what_it_sends_from_then_on_counts() -> None:
    async with rest() as admin:
        topic = await admin.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        await admin.done("POST", ENABLED, True)
        await reaches(admin, "Enabled")
        assert await last_ids(admin) == {}
        await send(topic, producer, *ids("a", 1, 2))
        assert await last_ids(admin) == {"a": 2}
        await send(topic, producer, *ids("a", 1, 2))
        assert positions(sink)[-1] == ([1, 2], DUPLICATE)
        # Ids before the switch are not known: such a message counts as stored if a later one is.
        await send(topic, producer, *ids("a", 0))
        assert positions(sink)[-1] == ([0], DUPLICATE)
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2]
        topic.remove_producer(producer)
        again, _ = await attach(topic, "a")
        assert again.last_sequence_id == 2


async def test_switched_off_with_messages_in_flight_every_one_gets_its_receipt_once() -> None:
    async with rest(deduplication=True) as admin:
        topic = await admin.topic()
        producer, sink = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        topic.publish(producer, run_of_entries(producer, ids("a", 1, 2)))
        topic.publish(producer, run_of_entries(producer, ids("a", 0)))
        await admin.done("POST", ENABLED, False)
        while producer.pending_runs:
            await turns(1)
        await reaches(admin, "Disabled")
        assert [numbers for numbers, _ in positions(sink)] == [[0], [1, 2], [0]]
        assert positions(sink)[-1][1] == DUPLICATE
        assert not sink.errors
        assert await last_ids(admin) is None
        await send(topic, producer, *ids("a", 2))
        assert positions(sink)[-1][1] != DUPLICATE
        assert [number for _, number, _ in await stored(topic)] == [0, 1, 2, 2]
        # On again, the ids of before are forgotten: what was not sent since gets no receipt yet.
        await admin.done("POST", ENABLED, True)
        await reaches(admin, "Enabled")
        assert await last_ids(admin) == {}
        await send(topic, producer, *ids("a", 2, 3))
        assert positions(sink)[-1][1] != DUPLICATE
        assert await last_ids(admin) == {"a": 3}


async def swept(admin: Admin, topic: PersistentTopic) -> bool:
    """Whether a sweep stores the ids now."""
    assert topic.deduplication is not None
    snapshots = topic.deduplication.snapshots
    assert snapshots.entries_since
    await admin.service.upkeep.sweep_deduplication()
    await turns(100)
    return not snapshots.entries_since


@pytest.mark.parametrize("path", ["~/namespaces/t1/n1", TOPIC])
async def test_the_snapshot_interval_of_each_level_acts_and_is_shown(path: str) -> None:
    """0 is "by entries only"; the broker's value here is never reached."""
    path += "/deduplicationSnapshotInterval"
    async with rest(deduplication=True, deduplication_snapshot_interval_s=86_400) as admin:
        topic = await admin.topic()
        producer, _ = await attach(topic, "a")
        await send(topic, producer, *ids("a", 0))
        assert not await swept(admin, topic)
        await admin.done("POST", path, 0)
        assert (await admin.done("GET", path)).json() == 0
        assert not await swept(admin, topic)
        await admin.done("POST", path, 1)
        assert (await admin.done("GET", path)).json() == 1
        assert topic.deduplication is not None
        topic.deduplication.snapshots.taken_s -= 2
        assert await swept(admin, topic)
        await admin.done("DELETE", path)
        assert (await admin.done("GET", path)).text in ("", "null")
        topic.deduplication.snapshots.taken_s -= 2
        await send(topic, producer, *ids("a", 1))
        assert not await swept(admin, topic)


async def test_the_ids_of_all_producers_are_shown_and_survive_an_unload() -> None:
    async with rest(deduplication=True) as admin:
        topic = await admin.topic()
        for name, numbers in (("a", (0, 1)), ("b", (7,))):
            producer, _ = await attach(topic, name)
            await send(topic, producer, *ids(name, *numbers))
            topic.remove_producer(producer)
        assert await last_ids(admin) == {"a": 1, "b": 7}
        await admin.done("PUT", TOPIC + "/unload")
        topic = await admin.topic()
        assert await status(admin) == "Enabled"
        assert await last_ids(admin) == {"a": 1, "b": 7}
        producer, sink = await attach(topic, "b")
        assert producer.last_sequence_id == 7
        await send(topic, producer, *ids("b", 7))
        assert positions(sink) == [([7], DUPLICATE)]

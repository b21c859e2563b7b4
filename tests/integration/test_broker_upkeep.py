"""What runs beside the sessions goes on, whatever fails; and what ends, ends in time."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused

from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MetadataError, ServerError
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

WAIT_S = 20.0


async def test_one_topic_that_cannot_be_deleted_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_broker() as (service, _):
        names = [parse_topic(f"persistent://public/default/{local}") for local in "abc"]
        for name in names:
            topic = await service.topics.get_or_open(name, create=True)
            topic.last_active_ms = 0
        delete = service.topics.delete_if

        async def failing(topic: Topic, holds: Callable[[Topic], bool]) -> None:
            if topic.name == names[0]:
                raise MetadataError("its record cannot be written")
            await delete(topic, holds)

        monkeypatch.setattr(service.topics, "delete_if", failing)
        await service.upkeep.delete_unused()
        assert [topic.name for topic in service.topics] == names[:1]


async def test_periodic_work_survives_an_error_of_ours() -> None:
    async with running_broker() as (service, _):
        done = asyncio.Event()
        runs = 0

        async def work() -> None:
            nonlocal runs
            runs += 1
            if runs > 1:
                done.set()
            raise KeyError("a bug")

        service._every(0.001, work, "work")
        await asyncio.wait_for(done.wait(), WAIT_S)


async def test_a_topic_that_cannot_be_closed_does_not_keep_the_broker_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(_: PersistentTopic) -> None:
        raise RuntimeError("a bug")

    async with running_broker() as (service, port):
        client = await RawClient.connect(HOST, port)
        await client.producer("persistent://public/default/t")
        monkeypatch.setattr(PersistentTopic, "close", failing)
        await service.stop()
        await asyncio.wait_for(client.lost.wait(), WAIT_S)


async def test_a_watch_that_was_refused_watches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker() as (service, port):

        async def failing(*_: object) -> list[object]:
            raise MetadataError("cannot be read")

        monkeypatch.setattr(service.topics, "names", failing)
        client = await RawClient.connect(HOST, port)
        watch = pb.CommandWatchTopicList(
            watcher_id=1, namespace="public/default", topics_pattern=".*"
        )
        with pytest.raises(Refused):
            await client.request(CommandType.WATCH_TOPIC_LIST, watch)
        assert len(service.topics.news) == 0
        await client.close()


async def test_a_request_that_meets_a_bug_is_answered_and_the_others_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise KeyError("a bug")

    async with running_broker() as (_, port):
        monkeypatch.setattr("magnetar.broker.session.discovery.parse_topic", failing)
        client = await RawClient.connect(HOST, port)
        with pytest.raises(Refused) as refused:
            await client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic="t"))
        assert refused.value.code == ServerError.UNKNOWN_ERROR
        await client.producer("persistent://public/default/t")
        await client.close()


def test_a_server_that_cannot_drain_ends_in_time_all_the_same(tmp_path: Path) -> None:
    """As with a disk that hangs: what is being closed does not even hear that it is cancelled."""
    program = """
import asyncio, os, signal, sys
import magnetar.standalone.server
from magnetar.cli.main import main

class Stuck:
    service_url = http_url = "x://127.0.0.1:1"
    async def stop(self):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

async def start(settings):
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
    return Stuck()

magnetar.standalone.server.start = start
sys.argv = ["magnetar", "standalone", "--port", "0", "--http-port", "0", "--data-dir", sys.argv[1]]
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        env={"MAGNETAR_SHUTDOWN_TIMEOUT_MS": "200"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert "did not drain within 200 ms" in done.stderr

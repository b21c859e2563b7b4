"""A stopped bookie, service or client leaves no task, thread, timer or open file."""

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest
from tests.unit.bookie.conftest import SMALL, add, collect_garbage, read_all
from tests.unit.bookie.net.client_rig import ClientRig, turns
from tests.unit.bookie.net.peers import HOST, IDENTITY, Adding, connected, serving, until
from tests.unit.bookie.net.test_service import running
from tests.unit.bookie.test_journal import threaded

from magnetar.bookie.api import BookieReadOnly, BookieUnavailable
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal import journal as journal_module
from magnetar.bookie.journal.journal import QueuedRecord
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.net import server as server_module
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.settings import RemoteSettings
from magnetar.disk.files import DataDirLocked
from magnetar.disk.os_files import OsFiles
from magnetar.metadata.memory import MemoryStore


def files_open(folder: Path) -> list[str]:
    """Files of this process below a folder."""
    result = []
    for item in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(item)
        except FileNotFoundError:
            continue  # that of the listing
        if target.startswith(str(folder)):
            result.append(target)
    return result


def threads() -> set[str]:
    return {item.name for item in threading.enumerate() if item.name.startswith("bookie-")}


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_bookie_leaves_no_resources(tmp_path: Path, end: str) -> None:
    before = asyncio.all_tasks()
    others = threads()
    data = tmp_path / "data"
    bookie = await LocalBookie.open(data, "b1", settings=SMALL)
    for first in range(0, 60, 3):
        await add(bookie, 1, range(first, first + 3), size=3000)
    await bookie.flush()
    await bookie.drop_copies([9])
    assert await read_all(bookie, 1, size=3000) == list(range(60))
    await bookie.delete_ledger(1)
    await collect_garbage(bookie)
    await add(bookie, 2, range(3))
    assert threads() - others >= {"bookie-journal"}
    assert asyncio.all_tasks() - before
    with pytest.raises(DataDirLocked):
        OsFiles().lock(data / "lock")
    await getattr(bookie, end)()
    await turns()
    assert asyncio.all_tasks() == before
    assert threads() == others
    assert files_open(data) == []
    again = await LocalBookie.open(data, "b1", settings=SMALL)
    assert await read_all(again, 2) == [0, 1, 2]
    await again.close()


async def test_bookie_that_fails_to_open_leaves_no_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, others = asyncio.all_tasks(), threads()
    data = tmp_path / "data"

    def no_room(**_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("magnetar.bookie.local.JournalWriter", no_room)
        with pytest.raises(OSError, match="No space"):
            await LocalBookie.open(data, "b1", settings=SMALL)
    await turns()
    assert files_open(data) == []
    assert asyncio.all_tasks() == before
    assert threads() == others
    bookie = await LocalBookie.open(data, "b1", settings=SMALL)
    await bookie.close()


@pytest.mark.parametrize("held", [True, False])
async def test_an_aborted_journal_ends_its_thread_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """Also while it is held, as nothing would ever release it."""
    monkeypatch.setattr(journal_module, "CLOSE_TIMEOUT_S", 1e-3 if held else 20.0)
    done: asyncio.Queue[QueuedRecord] = asyncio.Queue()
    journal = threaded(tmp_path, OsFiles(), lambda _: None)
    journal.append(codec.KIND_FENCE, 1, done.put_nowait)
    assert (await asyncio.wait_for(done.get(), 20)).error is None
    thread = journal._thread
    assert thread is not None
    if held:
        journal.hold()
        journal.append(codec.KIND_FENCE, 2, done.put_nowait)
    journal.abort()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    assert files_open(tmp_path) == []
    await turns()
    assert done.empty()


async def test_closed_journal_has_committed_its_queue_and_holds_no_file(tmp_path: Path) -> None:
    done: asyncio.Queue[QueuedRecord] = asyncio.Queue()
    journal = threaded(tmp_path, OsFiles(), lambda _: None)
    journal.hold()
    for number in range(3):
        journal.append(codec.KIND_FENCE, number, done.put_nowait)
    thread = journal._thread
    assert thread is not None
    await journal.close()
    assert not thread.is_alive()
    assert files_open(tmp_path) == []
    assert [(await asyncio.wait_for(done.get(), 20)).error for _ in range(3)] == [None] * 3


async def test_service_leaves_no_resources(tmp_path: Path) -> None:
    before, others = asyncio.all_tasks(), threads()
    async with running(MemoryStore(), tmp_path / "data", refresh_s=0.001) as service:
        port = service.server.port
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        assert {name for name in names if "refresh registration" in name}
        assert {name for name in names if "compare ledgers" in name}
        async with connected(service.server, hello=False):
            await until(lambda: bool(service.server.connections))
            await service.stop()
            assert not service.server.connections
        assert isinstance(service.server.add_refusal, BookieReadOnly)
        assert not service.registered
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)
    await turns()
    assert asyncio.all_tasks() == before
    assert threads() == others
    assert files_open(tmp_path) == []


async def test_stopped_server_does_not_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = []
    sweep = server_module.BookieServer._sweep

    def counted(server: server_module.BookieServer) -> None:
        sweeps.append(server)
        sweep(server)

    monkeypatch.setattr(server_module.BookieServer, "_sweep", counted)
    async with serving(sweep_s=0.001) as server:
        await until(lambda: len(sweeps) > 2)
    timer = server._sweeper
    assert timer is not None
    assert timer.cancelled()


async def test_client_leaves_no_resources() -> None:
    before = asyncio.all_tasks()
    async with serving() as server:
        bookie = RemoteBookie(IDENTITY, HOST, server.port)
        adding = Adding(bookie)
        adding.add(0)
        link = bookie._connection
        assert link is not None
        await bookie.close()
        assert await adding.count(1) == [(0, None)]
        assert not bookie.connected
        assert bookie._connection is None
        assert link._timer is not None
        assert link._timer.cancelled()
        await until(lambda: not server.connections)
    await turns()
    assert asyncio.all_tasks() == before


async def test_connecting_client_leaves_no_resources() -> None:
    before = asyncio.all_tasks()
    silent = socket.create_server((HOST, 0))
    port = silent.getsockname()[1]
    bookie = RemoteBookie(IDENTITY, HOST, port, settings=RemoteSettings(connect_timeout_s=60.0))
    asking = asyncio.ensure_future(bookie.ping())
    await turns()
    await bookie.close()
    silent.close()
    with pytest.raises(BookieUnavailable, match="not used any more"):
        await asking
    await turns()
    assert asyncio.all_tasks() == before
    with pytest.raises(BookieUnavailable, match="not used any more"):
        await bookie.ping()


async def test_closing_client_refuses_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    rig.add(0)
    closing = asyncio.ensure_future(rig.owner.close())
    await turns()
    assert not closing.done()
    assert not rig.wire.aborted
    rig.connection.connection_lost(None)
    await closing
    rig.add(1)
    await turns()
    assert rig.kinds() == [(0, BookieUnavailable), (1, BookieUnavailable)]
    assert rig.owner._connection is None, "no new connection is opened"
    await rig.owner.close()


async def test_an_ended_connection_keeps_and_sends_nothing_of_what_was_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bookie may have closed with megabytes queued while the connection is still referenced."""
    rig = ClientRig(monkeypatch)
    rig.open()
    sent = bytes(range(256)) * 4
    rig.add(0, sent)
    connection = rig.connection
    assert any(sent in part for part in connection._out)
    connection.close(BookieUnavailable("it is gone"))
    assert rig.kinds() == [(0, BookieUnavailable)]
    assert (connection._out, connection.pending_bytes) == ([], 0)
    await turns()
    assert rig.wire.aborted
    assert not any(sent in data for data in rig.wire.writes)


async def test_a_late_tick_of_an_ended_connection_arms_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ClientRig(monkeypatch)
    rig.open()
    rig.add(0)
    assert rig.timers.live()
    rig.connection.close(BookieUnavailable("it is gone"))
    assert rig.timers.live() == []
    rig.connection._ticked()
    assert rig.timers.live() == []

"""The probe of a broker's binary port shows whether it is alive."""

import asyncio
import errno
import socket
from collections.abc import Iterator

import pytest

from magnetar.broker.ownership.prober import Presence, Prober
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.core.tasks import TaskSet

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for a moment makes no answer late, and none old."""
    monkeypatch.setattr("magnetar.broker.ownership.prober.PROBE_TIMEOUT_S", 30.0)
    monkeypatch.setattr("magnetar.broker.ownership.prober.PROBE_FRESH_S", 60.0)


def broker(port: int, host: str = HOST, start: int = 1) -> BrokerRecord:
    return BrokerRecord("b:1", start, host, port, Urls("pulsar://b:6650", "http://b:1"))


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as server:
        yield server


async def test_who_takes_connections_is_there(listening: socket.socket) -> None:
    prober = Prober(TaskSet("test"))
    assert await prober.probe(broker(listening.getsockname()[1])) is Presence.ALIVE


async def test_who_refuses_them_twice_is_not() -> None:
    with socket.create_server((HOST, 0)) as gone:
        port = gone.getsockname()[1]
    prober = Prober(TaskSet("test"))
    assert await prober.probe(broker(port)) is Presence.REFUSED
    assert await prober.probe(broker(port, "localhost", start=2)) is Presence.REFUSED


async def test_who_listens_again_by_the_second_time_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server((HOST, 0)) as gone:
        port = gone.getsockname()[1]
    servers: list[socket.socket] = []
    sleep = asyncio.sleep

    async def listen_again(delay: float) -> None:
        servers.append(socket.create_server((HOST, port)))
        await sleep(delay)

    monkeypatch.setattr("magnetar.broker.ownership.prober.asyncio.sleep", listen_again)
    assert await Prober(TaskSet("test")).probe(broker(port)) is Presence.ALIVE
    servers[0].close()


async def test_what_says_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.ownership.prober.PROBE_TIMEOUT_S", 0.05)
    asked = asyncio.Event()

    async def silent(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", silent)
    prober = Prober(TaskSet("test"))
    assert await prober.probe(broker(1)) is Presence.UNSURE
    assert asked.is_set()
    monkeypatch.undo()
    # A name that cannot be resolved is no refusal either.
    assert await prober.probe(broker(1, "nosuch.invalid", start=2)) is Presence.UNSURE


REFUSED = "[Errno 111] Connect call failed ('127.0.0.1', 1)"
NO_ROUTE = "[Errno 113] Connect call failed ('192.0.2.1', 1)"


@pytest.mark.parametrize(
    ("error", "presence"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Presence.REFUSED),
        (OSError(f"Multiple exceptions: {REFUSED}, {REFUSED}"), Presence.REFUSED),
        (OSError(f"Multiple exceptions: {REFUSED}, {NO_ROUTE}"), Presence.UNSURE),
        (OSError(f"Multiple exceptions: {NO_ROUTE}, {NO_ROUTE}"), Presence.UNSURE),
        (OSError("Multiple exceptions: "), Presence.UNSURE),
        (OSError(errno.EHOSTUNREACH, "no route"), Presence.UNSURE),
        (OSError(errno.ENETUNREACH, f"behind it: {REFUSED}"), Presence.UNSURE),
    ],
    ids=str,
)
async def test_a_name_with_several_addresses_is_dead_only_if_all_of_them_refuse(
    monkeypatch: pytest.MonkeyPatch, error: OSError, presence: Presence
) -> None:
    """The process may listen at an address that this machine has no route to."""

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    assert await Prober(TaskSet("test")).probe(broker(1)) is presence


async def test_all_who_ask_share_one_probe(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    connect, connections = loop.create_connection, []

    async def counting(*arguments: object) -> object:
        connections.append(arguments)
        return await connect(*arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(loop, "create_connection", counting)
    prober = Prober(TaskSet("test"))
    one = broker(listening.getsockname()[1])
    assert set(await asyncio.gather(*(prober.probe(one) for _ in range(50)))) == {Presence.ALIVE}
    assert await prober.probe(one) is Presence.ALIVE
    assert len(connections) == 1

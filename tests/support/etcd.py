"""A real etcd on loopback for tests: one member or a cluster, started, killed, paused.

Elections and heartbeats are quick (so that a lease may last one second), pings may be frequent.
Ports are found free and taken a moment later: a start that loses that race is tried again. They
are none that outgoing connections are given, so that a member that was killed finds its own again.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc.aio
from google.protobuf.message import Message

from magnetar.cluster.local.ports import choose
from magnetar.core.clock import SystemClock
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.endpoints import Method
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.etcd.store import EtcdStore, open_etcd

ETCD: Final = shutil.which("etcd") or "etcd"
START_TRIES: Final = 3
STARTED_S_MAX: Final = 30.0
RPC_TIMEOUT_S: Final = 5.0
ATTEMPT_TIMEOUT_S: Final = 20.0
OPERATION_TIMEOUT_S: Final = 40.0
FLAGS: Final = {
    "heartbeat-interval": "50",
    "election-timeout": "500",
    "grpc-keepalive-min-time": "100ms",
    "log-level": "error",
    "logger": "zap",
}

COMPACT: Final = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
STATUS: Final = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

roots = count()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    found: list[int] = []
    for _ in range(count):
        found.append(choose("free", "etcd", "client", 1, "127.0.0.1", found))
    return found


@dataclass(eq=False)
class EtcdMember:
    """One etcd process and its data directory, which outlives it."""

    directory: Path
    port: int
    peer_port: int
    name: str = "default"
    initial_cluster: str = ""
    scheme: str = "http"
    flags: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"etcd:{self.scheme}://{self.address}"

    def spawn(self) -> None:
        """Starts the process; `wait` says when it listens."""
        client = f"{self.scheme}://{self.address}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = {
            **FLAGS,
            "name": self.name,
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": self.initial_cluster or f"{self.name}={peer}",
            **self.flags,
        }
        arguments = [f"--{key}={value}" for key, value in flags.items()]
        # Its flags from here only: it refuses to hear one from both sides.
        environment = {key: value for key, value in os.environ.items() if "ETCD_" not in key}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [ETCD, *arguments], stdout=log, stderr=log, env=environment
            )

    def listening(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wait(self) -> bool:
        """Whether it listens; False where it ended instead."""
        end = time.monotonic() + STARTED_S_MAX
        while time.monotonic() < end:
            if self.process is None or self.process.poll() is not None:
                return False
            if self.listening():
                return True
            time.sleep(0.01)
        return False

    def start(self) -> None:
        self.spawn()
        if not self.wait():
            self.stop()
            raise OSError(f"etcd did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """kill -9, paused or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def start_etcd(directory: Path, *, scheme: str = "http", **flags: str) -> EtcdMember:
    """One member that answers; flags are etcd's, with _ for -."""
    named = {key.replace("_", "-"): value for key, value in flags.items()}
    for attempt in range(START_TRIES):
        port, peer_port = free_ports(2)
        member = EtcdMember(
            directory / f"etcd-{attempt}", port, peer_port, scheme=scheme, flags=named
        )
        try:
            member.start()
        except OSError:
            if attempt == START_TRIES - 1:
                raise
        else:
            return member
    raise AssertionError("unreachable")


def start_cluster(directory: Path, size: int = 3) -> list[EtcdMember]:
    """Members that form one cluster; all listen."""
    ports = free_ports(2 * size)
    names = [f"m{i}" for i in range(size)]
    peers = ",".join(f"{name}=http://127.0.0.1:{ports[size + i]}" for i, name in enumerate(names))
    members = [
        EtcdMember(directory / name, ports[i], ports[size + i], name, peers)
        for i, name in enumerate(names)
    ]
    for member in members:
        member.spawn()
    for member in members:
        if not member.wait():
            stop_all(members)
            raise OSError(f"{member.name}: {(member.directory / 'log').read_text()[-2000:]}")
    return members


def stop_all(members: Sequence[EtcdMember]) -> None:
    for member in members:
        member.stop()


class Proxy:
    """A TCP relay to one port, that can be cut: nothing passes, and new connections are not made.

    Connections stay open, as with a broken switch, unless `reset` ends them.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._relays: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._flows.clear()

    async def reset(self) -> None:
        """Ends all connections."""
        relays = list(self._relays)
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    def heal(self) -> None:
        self._flows.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        # Also where it was cancelled before it began.
        task.add_done_callback(lambda _: writer.close())

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            return
        there = asyncio.ensure_future(self._pump(reader, far_writer))
        back = asyncio.ensure_future(self._pump(far_reader, writer))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.close()
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.reset()
        await self._server.wait_closed()


async def compact(member: EtcdMember, revision: int) -> None:
    """Has etcd forget everything before `revision`."""
    request = COMPACT.request(revision=revision, physical=True)
    assert await call_once(member, COMPACT, request) is not None


def new_settings(endpoints: Sequence[str], **more: Any) -> EtcdSettings:
    """With a root that nobody else uses, and patient: an etcd that is slow to answer fails no test.

    Who tests what becomes of an etcd that is away sets shorter times.
    """
    patient: dict[str, Any] = {
        "root": f"/magnetar/test-{next(roots)}",
        "attempt_timeout_s": ATTEMPT_TIMEOUT_S,
        "operation_timeout_s": OPERATION_TIMEOUT_S,
        "keepalive_interval_s": 1.0,
        "keepalive_timeout_s": ATTEMPT_TIMEOUT_S,
    }
    return EtcdSettings(endpoints=endpoints, **(patient | more))


async def open_on(*members: EtcdMember, **more: Any) -> EtcdStore:
    """A store of its own on these members."""
    settings = new_settings([member.address for member in members], **more)
    return await open_etcd(settings, SystemClock())


async def leader_of(members: Sequence[EtcdMember]) -> EtcdMember:
    """Whoever leads; waits until somebody does."""
    async with asyncio.timeout(STARTED_S_MAX):
        while True:
            for member in members:
                if member.process is not None:
                    status = await call_once(member, STATUS, STATUS.request())
                    if status is not None and status.leader == status.header.member_id:
                        return member
            await asyncio.sleep(0.05)


async def call_once(
    member: EtcdMember, method: Method[Request, Response], request: Request
) -> Response | None:
    """The answer of this very member, or None."""
    async with grpc.aio.insecure_channel(member.address) as channel:
        call: Callable[..., Awaitable[Response]] = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            return await call(request, timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None

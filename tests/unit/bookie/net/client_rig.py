"""One end of the bookie protocol without sockets: a transport that records writes, and timers that
the test runs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.client_connection import ClientConnection
from magnetar.bookie.net.protocol_v1 import AnyFrame, FrameDecoder
from magnetar.bookie.net.settings import RemoteSettings

from .peers import HOST, IDENTITY


class Wire(asyncio.Transport):
    """A transport that records writes; `unsent_bytes` is the size of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unsent_bytes = 0
        self.aborted = self.closed = False
        self.reading = True
        self.limits: tuple[int | None, int | None] = (None, None)
        self._decoder = FrameDecoder()

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high, low

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return "the peer" if name == "peername" else default

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def frames(self) -> list[AnyFrame]:
        """Returns the frames written since the last call."""
        data, self.writes = b"".join(self.writes), []
        result: list[AnyFrame] = []
        for start in range(0, len(data), 1 << 12):
            piece = data[start : start + (1 << 12)]
            while piece:
                free = self._decoder.get_buffer()
                count = min(len(free), len(piece))
                free[:count] = piece[:count]
                self._decoder.received(count)
                piece = piece[count:]
                while (frame := self._decoder.take()) is not None:
                    result.append(frame)
        return result


@dataclass(slots=True)
class Timer:
    """A call that is due at a time of the test's clock."""

    due: float
    call: Callable[..., object]
    arguments: tuple[object, ...]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(slots=True)
class Timers:
    """Replaces the loop's `call_later`."""

    now: float = 0.0
    waiting: list[Timer] = field(default_factory=list)

    def call_later(self, delay: float, call: Callable[..., object], *arguments: object) -> Timer:
        timer = Timer(self.now + delay, call, arguments)
        self.waiting.append(timer)
        return timer

    def live(self) -> list[float]:
        """Returns the delays of the timers that are not cancelled."""
        return sorted(item.due - self.now for item in self.waiting if not item.cancelled)

    def pass_(self, seconds: float) -> None:
        """Runs the due timers, in order."""
        until = self.now + seconds + 1e-9
        while due := [item for item in self.waiting if not item.cancelled and item.due <= until]:
            first = min(due, key=lambda item: item.due)
            self.waiting.remove(first)
            self.now = max(self.now, first.due)
            first.call(*first.arguments)
        self.now = until - 1e-9


def feed(protocol_: asyncio.BufferedProtocol, *parts: bytes) -> None:
    """Feeds bytes to a protocol like a transport."""
    data = b"".join(parts)
    while data:
        free = memoryview(protocol_.get_buffer(-1))
        count = min(len(free), len(data))
        free[:count] = data[:count]
        protocol_.buffer_updated(count)
        data = data[count:]


def welcome(cluster: str = "", version: int = 1) -> bytes:
    output = messages.Welcome(IDENTITY, protocol.BODY_BYTES_MAX, cluster, version=version)
    return protocol.encode_frame(protocol.WELCOME, 0, 0, messages.encode_welcome(output))


class ClientRig:
    """A client connection on a recording transport, and the answers to its adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: float) -> None:
        self.timers = Timers()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self.timers.call_later)
        remote = RemoteSettings(**settings)
        self.owner = RemoteBookie(IDENTITY, HOST, 1, cluster="ours", client="me", settings=remote)
        self.connection = ClientConnection(self.owner)
        self.owner._connection = self.connection
        self.wire = Wire()
        self.answers: list[tuple[int, BaseException | None]] = []

    def open(self) -> None:
        """Connects and feeds the welcome."""
        self.connection.connection_made(self.wire)
        feed(self.connection, welcome())
        self.wire.frames()

    def add(self, entry_id: int, data: bytes = b"x") -> None:
        self.owner.add_entries(
            1,
            range(entry_id, entry_id + 1),
            [data],
            last_add_confirmed=entry_id - 1,
            on_added=lambda error: self.answers.append((entry_id, error)),
        )

    def kinds(self) -> list[tuple[int, type[BaseException] | None]]:
        return [(id_, None if error is None else type(error)) for id_, error in self.answers]


async def turns(count: int = 3) -> None:
    """Runs a few turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)

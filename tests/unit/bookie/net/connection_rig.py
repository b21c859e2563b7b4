"""A bookie's end of one connection without sockets, and a bookie that the test controls."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import (
    EntryProof,
    EntryProofs,
    LedgerEnd,
    OnAdded,
    ProofKind,
    StoredEntry,
)
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.connection import BookieConnection
from magnetar.bookie.net.protocol_v1 import AnyFrame, Entries, Frame
from magnetar.bookie.net.server import BookieServer
from magnetar.bookie.net.settings import ServerSettings
from magnetar.bookie.packed import pack

from .client_rig import Timers, Wire, feed, turns
from .peers import IDENTITY


class ScriptedBookie(MemoryBookie):
    """A bookie that records requests and completes them on the test's command."""

    def __init__(self) -> None:
        super().__init__(*IDENTITY)
        self.adds: list[OnAdded] = []
        self.recoveries: list[bool] = []
        self.begun: list[tuple[str, Any]] = []
        self.gates: list[asyncio.Event] = []
        self.open = True
        self.takes_adds = True
        self.pending_bytes = 0
        self.low: list[Callable[[], None]] = []
        self.fault: Exception | None = None
        self.ledgers = [1, 2, 3, 4, 5]

    @property
    def writable(self) -> bool:
        return self.takes_adds

    def notify_low(self, callback: Callable[[], None]) -> None:
        self.low.append(callback)

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        if self.fault is not None:
            raise self.fault
        self.pending_bytes += sum(map(len, entries))
        self.adds.append(on_added)
        self.recoveries.append(recovery)

    async def _gate(self, *asked: Any) -> None:
        self.begun.append((asked[0], asked[1:]))
        if self.fault is not None:
            raise self.fault
        if not self.open:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        await self._gate("read", ledger_id, first, last, bytes_max, fence)
        return [StoredEntry(first, b"x")]

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        await self._gate("end", ledger_id, fence)
        return LedgerEnd(3, 4, fence, 5)

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        await self._gate("prove", ledger_id, first, last, count_max)
        end = min(last, first + count_max - 1)
        proofs = [EntryProof(item, ProofKind.PRESENT, 1, 2) for item in range(first, end + 1)]
        return EntryProofs(proofs, end + 1)

    async def list_ledgers(self) -> list[int]:
        await self._gate("list")
        return list(self.ledgers)

    async def delete_ledger(self, ledger_id: int) -> None:
        await self._gate("delete", ledger_id)

    async def note_confirmed(self, confirmed: Sequence[tuple[int, int]]) -> None:
        await self._gate("confirm", list(confirmed))


class Rig:
    """A server without a listener, and one of its connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: float) -> None:
        loop = asyncio.get_running_loop()
        self.timers = Timers(now=100.0)
        monkeypatch.setattr(loop, "call_later", self.timers.call_later)
        monkeypatch.setattr(loop, "time", lambda: self.timers.now)
        self.bookie = ScriptedBookie()
        self.server = BookieServer(
            self.bookie,
            cluster="ours",
            pressure=self.bookie,
            settings=ServerSettings(**settings),  # type: ignore[arg-type]
        )
        self.connection, self.wire = self.connect()

    def connect(self) -> tuple[BookieConnection, Wire]:
        connection, wire = BookieConnection(self.server), Wire()
        connection.connection_made(wire)
        return connection, wire

    async def hello(self) -> None:
        hello = messages.encode_hello(messages.Hello(IDENTITY, "ours"))
        self.say(protocol.HELLO, 0, hello)
        (welcome,) = await self.said()
        assert isinstance(welcome, Frame)
        assert welcome.kind == protocol.WELCOME

    def say(self, kind: int, id_: int = 1, payload: bytes = b"", flags: int = 0) -> None:
        feed(self.connection, protocol.encode_frame(kind, flags, id_, payload))

    def add(self, number: int, data: bytes = b"x", *, recovery: bool = False) -> None:
        group = pack([data])
        ids = range(number, number + 1)
        head = protocol.encode_add(number, 1, -1, ids, group, recovery=recovery)
        feed(self.connection, head, *group.body)

    def read(self, id_: int, bytes_max: int = 10, flags: int = 0) -> None:
        self.say(protocol.READ, id_, messages.encode_read(1, id_, id_, bytes_max), flags)

    async def said(self) -> list[AnyFrame]:
        await turns(5)
        return self.wire.frames()

    async def ids(self) -> list[int]:
        return [frame.id for frame in await self.said() if isinstance(frame, Frame | Entries)]

    async def farewell(self) -> str:
        """Returns the reason of the last CLOSING frame."""
        frame = (await self.said())[-1]
        assert isinstance(frame, Frame)
        assert frame.kind == protocol.CLOSING
        return messages.decode_failure(frame.payload).message

    def check_deadlines(self) -> None:
        self.connection.check_deadlines(self.timers.now)

    @property
    def ended(self) -> bool:
        return self.wire.closed or self.wire.aborted

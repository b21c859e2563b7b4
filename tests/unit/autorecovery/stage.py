"""The fixture of autorecovery's tests: virtual time, a store, and bookies that fail on demand."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from tests.support.memory_bookie import MemoryBookie
from tests.unit.ledger.cluster import new_event_loop

from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import RECORDS_PREFIX, UnderReplicated
from magnetar.autorecovery.records import decode as decode_record
from magnetar.autorecovery.service import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.shape import holders
from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieReadOnly,
    BookieUnavailable,
    EntryCorrupt,
    EntryProof,
    EntryProofs,
    OnAdded,
    ProofKind,
    StoredEntry,
)
from magnetar.ledger.bookies import BookieInfo, BookieLost
from magnetar.ledger.metadata import (
    LEDGER_ID_KEY,
    Ensemble,
    LedgerMetadata,
    LedgerState,
    decode,
    ledger_key,
)
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession

T = TypeVar("T")

LEASE_S = 5.0


class LoopClock:
    """The loop's time, which may be virtual; the wall clock is `ahead_ms` ahead."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self._ahead_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the test in virtual time, on a new loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


class TroubledBookie(MemoryBookie):
    """A bookie that can have corrupt copies, be full, and stop answering."""

    def __init__(self, bookie_id: str, incarnation: str) -> None:
        super().__init__(bookie_id, incarnation)
        self.corrupt: set[tuple[int, int]] = set()
        self.silent = False
        self.full = False
        self.adds = 0
        self.added = asyncio.Event()

    @property
    def writable(self) -> bool:
        return not self.full

    def holds(self, ledger_id: int) -> dict[int, bytes]:
        ledger = self._ledgers.get(ledger_id)
        return {} if ledger is None else ledger.entries

    def drop(self, ledger_id: int, entry_id: int) -> None:
        del self._ledgers[ledger_id].entries[entry_id]

    def put(self, ledger_id: int, entry_id: int, data: bytes, confirmed: int) -> None:
        """Stores an entry, as if it had been added long ago."""
        super().add_entries(
            ledger_id, [entry_id], [data], last_add_confirmed=confirmed, on_added=lambda _: None
        )

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
        error: BookieError | None = None
        if self.silent:
            error = BookieUnavailable("silent")
        elif self.full:
            error = BookieReadOnly("full")
        if error is not None:
            asyncio.get_running_loop().call_soon(on_added, error)
            return
        self.adds += 1
        self.added.set()
        self.corrupt -= {(ledger_id, entry_id) for entry_id in entry_ids}
        super().add_entries(
            ledger_id,
            entry_ids,
            entries,
            last_add_confirmed=last_add_confirmed,
            on_added=on_added,
            recovery=recovery,
        )

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        self._answer()
        bad = [
            entry_id
            for ledger, entry_id in self.corrupt
            if ledger == ledger_id and first <= entry_id <= last
        ]
        if first in bad:
            raise EntryCorrupt("corrupt", "memory", 0)
        last = min([last, *(entry_id - 1 for entry_id in bad)])
        return await super().read_entries(ledger_id, first, last, bytes_max=bytes_max, fence=fence)

    async def prove_entries(
        self, ledger_id: int, first: int, last: int, *, count_max: int
    ) -> EntryProofs:
        self._answer()
        answer = await super().prove_entries(ledger_id, first, last, count_max=count_max)
        proofs = [
            EntryProof(proof.entry_id, ProofKind.CORRUPT)
            if (ledger_id, proof.entry_id) in self.corrupt
            else proof
            for proof in answer.proofs
        ]
        return EntryProofs(proofs, answer.next_entry)

    def _answer(self) -> None:
        if self.silent:
            raise BookieUnavailable("silent")


class Bookies:
    """A `BookieSet` whose bookies the test adds, loses and drains."""

    def __init__(self) -> None:
        self._all: dict[BookieIdentity, TroubledBookie] = {}
        self._up: dict[BookieIdentity, BookieInfo] = {}
        self._listeners: list[BookieLost] = []
        self.groups: dict[str, str] = {}

    def add(self, name: str, *, incarnation: str = "1", rack: str = "/r/a") -> TroubledBookie:
        bookie = TroubledBookie(name, incarnation)
        self._all[bookie.identity] = bookie
        self._up[bookie.identity] = BookieInfo(bookie.identity, rack=rack)
        return bookie

    def lose(self, bookie: TroubledBookie) -> None:
        """Unregisters the bookie; its disks stay unchanged."""
        self._up.pop(bookie.identity, None)
        for listener in self._listeners:
            listener(bookie.identity)

    def back(self, bookie: TroubledBookie) -> None:
        self._up[bookie.identity] = BookieInfo(bookie.identity)

    def drain(self, bookie: TroubledBookie, *, draining: bool = True) -> None:
        self._up[bookie.identity] = BookieInfo(bookie.identity, draining=draining)

    def up(self) -> list[TroubledBookie]:
        return [self._all[identity] for identity in sorted(self._up)]

    def get(self, identity: BookieIdentity) -> TroubledBookie | None:
        return self._all[identity] if identity in self._up else None

    def living(self) -> list[BookieInfo]:
        return [
            BookieInfo(
                info.identity,
                rack=info.rack,
                writable=self._all[identity].writable,
                draining=info.draining,
                group=self.groups.get(identity.bookie_id, "default"),
            )
            for identity, info in sorted(self._up.items())
        ]

    def failed(self, identity: BookieIdentity, error: BookieError) -> None:
        """Ignores the failure: this set has no quarantine."""

    def add_listener(self, on_lost: BookieLost) -> None:
        self._listeners.append(on_lost)

    def remove_listener(self, on_lost: BookieLost) -> None:
        self._listeners.remove(on_lost)


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d " % (ledger_id, entry_id) * (1 + entry_id % 7)


class Stage:
    """A store, bookies, and the autorecovery nodes that a test starts."""

    def __init__(self, *names: str, settings: AutorecoverySettings | None = None) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookies = Bookies()
        self.settings = settings if settings is not None else AutorecoverySettings()
        self.by_name = {name: self.bookies.add(name) for name in names}
        self.nodes: list[Autorecovery] = []
        self.sessions: list[MetadataSession] = []

    async def ledger(
        self,
        ledger_id: int,
        *ensembles: tuple[int, str],
        last: int = -1,
        write_quorum: int = 2,
        state: LedgerState = LedgerState.CLOSED,
        changes: dict[str, Any] | None = None,
    ) -> LedgerMetadata:
        """Creates a ledger with all its copies.

        An ensemble is (first entry, "a b c"); the entries end at `last`.
        """
        parts = tuple(
            Ensemble(first, tuple(self.by_name[name].identity for name in names.split()))
            for first, names in ensembles
        )
        closed = state is LedgerState.CLOSED
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensembles=parts,
            created_ms=self.clock.now_ms(),
            ensemble_size=len(parts[0].bookies),
            write_quorum=write_quorum,
            ack_quorum=write_quorum,
            state=state,
            last_entry=last if closed else -1,
            **(changes or {}),
        )
        for entry_id in range(last + 1):
            ensemble = [part for part in parts if part.first_entry <= entry_id][-1]
            for identity in holders(
                ensemble.bookies, write_quorum, metadata.stripe_entries, entry_id
            ):
                bookie = self.bookies._all[identity]
                bookie.put(ledger_id, entry_id, data_of(ledger_id, entry_id), entry_id)
        await self.store.put(ledger_key(ledger_id), encode(metadata))
        await self.store.put(LEDGER_ID_KEY, b"%d" % ledger_id)
        return metadata

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        record = await self.store.get(ledger_key(ledger_id))
        assert record is not None
        return decode(record.key, record.value)

    async def node(
        self, seed: int = 0, *, ahead_ms: int = 0, lease_s: float = LEASE_S
    ) -> Autorecovery:
        """Starts another autorecovery node, whose wall clock may be ahead."""
        clock = LoopClock(ahead_ms)
        session = MetadataSession(self.store, lease_s, self.clock, f"node-{seed}")
        await session.start()
        node = Autorecovery(
            self.store,
            self.bookies,
            session,
            clock,
            self.settings,
            name=f"node-{seed}",
            rng=Random(seed),
        )
        await node.start()
        self.nodes.append(node)
        self.sessions.append(session)
        return node

    async def listed(self) -> dict[int, UnderReplicated]:
        records = await self.store.list(RECORDS_PREFIX)
        decoded = [decode_record(record.key, record.value) for record in records]
        return {record.ledger_id: record for record in decoded}

    async def check(self, ledger_id: int) -> LedgerReport:
        prover = Prover(self.bookies, ByteRate(0, self.clock), 30.0)
        checker = LedgerChecker(self.bookies, prover, None, 30.0)
        return await checker.check(await self.metadata(ledger_id))

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()
        for session in self.sessions:
            await session.stop()
        await self.store.close()


def names_of(metadata: LedgerMetadata) -> list[tuple[int, str]]:
    """Returns the ensembles as (first entry, names of the bookies)."""
    return [
        (ensemble.first_entry, " ".join(identity.bookie_id for identity in ensemble.bookies))
        for ensemble in metadata.ensembles
    ]

"""What each bookie has promised: entries that it said to have stored, ledgers that it fenced.

The rest of the system gets over a bookie that forgets, so that nobody would see it: copies are
made again from others, and compare-and-swap stops a writer whose fence was forgotten. So what a
bookie answered is noted here as it answers, and held against what it has in the end. A bookie
whose disk was harmed for good by a fault (`plan.LOSSY`) has not promised anything.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.bookie.api import (
    BookieError,
    BookieUnavailable,
    LedgerEnd,
    OnAdded,
    ProofKind,
)
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.local import LocalBookie
from magnetar.ledger.metadata import LedgerMetadata

if TYPE_CHECKING:
    from tests.sim.nodes import Node
    from tests.sim.world import World

PROOFS_MAX: Final = 100_000


class Promises:
    """Of one bookie's disk."""

    def __init__(self) -> None:
        self.entries: dict[int, set[int]] = {}
        self.fences: dict[int, None] = {}
        self._asked: dict[int, set[int]] = {}
        """Entries that reached the bookie in its current life."""
        self._former: dict[int, set[int]] = {}
        """Entries that reached it in former lives: a journal may hold them without an answer."""
        self.broken: list[str] = []
        """Violations that were seen immediately."""
        self.on_fence: Callable[[], None] = lambda: None
        """Called when a bookie answers that it has fenced a ledger."""
        self.on_added: Callable[[int, Sequence[int]], None] = lambda *_: None
        """Called when a bookie answers that it has stored entries of a ledger."""
        self.unreadable: frozenset[int] = frozenset()
        """Ledgers whose entries the bookie reads late (`late_s`), or not at all."""
        self.late_s = 0.0

    def may_hold(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the bookie has answered for the entry, or may have replayed it."""
        return any(entry_id in of.get(ledger_id, ()) for of in (self.entries, self._former))

    def watch(self, bookie: LocalBookie) -> None:
        """Notes what the bookie answers from now on."""
        for ledger_id, asked in self._asked.items():
            self._former.setdefault(ledger_id, set()).update(asked)
        self._asked.clear()
        add, end, read = bookie.add_entries, bookie.ledger_end, bookie.read_entries
        drop = bookie.drop_copies

        def add_entries(
            ledger_id: int,
            entry_ids: Sequence[int],
            entries: Sequence[bytes],
            *,
            last_add_confirmed: int,
            on_added: OnAdded,
            recovery: bool = False,
        ) -> None:
            self._asked.setdefault(ledger_id, set()).update(entry_ids)
            late = ledger_id in self.fences and not recovery

            def added(error: BookieError | None) -> None:
                if error is None:
                    if late:
                        self.broken.append(f"took entries of ledger {ledger_id} after its fence")
                    self.entries.setdefault(ledger_id, set()).update(entry_ids)
                    self.on_added(ledger_id, entry_ids)
                on_added(error)

            add(
                ledger_id,
                entry_ids,
                entries,
                last_add_confirmed=last_add_confirmed,
                on_added=added,
                recovery=recovery,
            )

        async def ledger_end(ledger_id: int, *, fence: bool = False) -> LedgerEnd:
            answer = await end(ledger_id, fence=fence)
            if fence:
                self.fences[ledger_id] = None
                self.on_fence()
            return answer

        async def read_entries(ledger_id: int, *args: int, fence: bool = False, **more: Any) -> Any:
            if ledger_id in self.unreadable:
                if not self.late_s:
                    raise BookieUnavailable(f"the disk does not read ledger {ledger_id} now")
                await asyncio.sleep(self.late_s)
            answer = await read(ledger_id, *args, fence=fence, **more)
            if fence:
                self.fences[ledger_id] = None
            return answer

        async def drop_copies(ledger_ids: Sequence[int]) -> list[int]:
            # From now on it promises nothing; of those that it leaves alone it has promised all.
            before = {one: self.entries.pop(one, set()) for one in ledger_ids}
            gone = await drop(ledger_ids)
            for one in before.keys() - set(gone):
                self.entries.setdefault(one, set()).update(before[one])
            return gone

        self._watch_tombstones(bookie._ledgers)
        bookie.__dict__.update(
            add_entries=add_entries,
            ledger_end=ledger_end,
            read_entries=read_entries,
            drop_copies=drop_copies,
        )

    def _watch_tombstones(self, ledgers: Ledgers) -> None:
        """A deleted ledger is fenced only as long as its tombstone is kept."""
        forget = ledgers.forget

        def forgotten(ledger_ids: Iterable[int]) -> None:
            for one in ledger_ids:
                self.fences.pop(one, None)
            forget(ledger_ids)

        ledgers.forget = forgotten  # type: ignore[method-assign]


async def broken_promises(world: "World", ledgers: dict[int, LedgerMetadata]) -> list[str]:
    """Compares every bookie with its answers, for ledgers that still exist."""
    found = []
    for node in world.bookies:
        if node.process is None or not node.alive or node.service is None or node.harmed:
            continue
        broken = await node.process.start(_broken(node, ledgers), "check promises")
        if broken:
            found.append(f"{node.name} {broken}")
    return found


async def _broken(node: "Node", ledgers: dict[int, LedgerMetadata]) -> str:
    bookie, promises = node.service.bookie, node.promises
    if promises.broken:
        return promises.broken[0]
    for ledger_id, entry_ids in sorted(promises.entries.items()):
        if ledger_id not in ledgers or not entry_ids:
            continue
        try:
            answer = await bookie.prove_entries(
                ledger_id, min(entry_ids), max(entry_ids), count_max=PROOFS_MAX
            )
        except BookieError as error:
            return f"said that it stored entries of ledger {ledger_id}: {error!r}"
        there = {one.entry_id for one in answer.proofs if one.kind is ProofKind.PRESENT}
        if missing := sorted(entry_ids - there):
            return f"said that it stored {missing[:5]} of ledger {ledger_id}, and has them not"
    emptied = set(await bookie.list_emptied())
    for ledger_id in promises.fences:
        if ledger_id in emptied:
            continue  # that is a fence without entries
        if ledger_id in ledgers and not (await bookie.ledger_end(ledger_id)).fenced:
            return f"said that it fenced ledger {ledger_id}, and does not know it any more"
    return ""

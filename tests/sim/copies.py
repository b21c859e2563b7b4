"""Whether every ledger has all its copies again, each proved from its bookie's disk.

Asked of the bookies themselves, past the network: what the system believes of its copies is not
taken for granted. Closed ledgers must have every entry on every bookie of its write set, with one
CRC; ledgers that are still open must at least be on living bookies, as many as an entry is to have.
And no bookie may keep a ledger that is in no record, or whose record names other bookies only.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from tests.sim.nodes import Node
from tests.sim.promises import broken_promises

from magnetar.autorecovery.repair.former_copies import is_former
from magnetar.bookie.api import BookieError, BookieIdentity, EntryProof, ProofKind
from magnetar.ledger.metadata import LEDGERS_PREFIX, LedgerMetadata, LedgerState, decode
from magnetar.ledger.quorum import write_set
from magnetar.offload.records import OFFLOADS_PREFIX, decode_offload, parse_offload_key

if TYPE_CHECKING:
    from tests.sim.world import World

REPAIR_S_MAX: Final = 240.0
LOOK_S: Final = 2.0
PROOFS_MAX: Final = 100_000
DELETION_S_MAX: Final = 10.0
DELETION_POLL_S: Final = 0.25

Proofs = dict[int, EntryProof]


async def check_copies(world: "World") -> None:
    """Waits until all copies are complete and leftovers deleted; reports those that are not."""
    deadline = world.loop.now + REPAIR_S_MAX
    begun = world.loop.now
    while True:
        ledgers = _ledgers(world)
        kept = _kept(world, ledgers)
        missing = await _missing(world, kept) or await _leftovers(world, ledgers)
        if not missing:
            world.tell(f"copies are whole {world.loop.now - begun:.2f} s later")
            break
        if world.loop.now > deadline:
            world.history.violated(f"after {REPAIR_S_MAX:.0f} s of repair: {missing}")
            break
        await asyncio.sleep(LOOK_S)
    if await broken_promises(world, _kept(world, _ledgers(world))):
        await asyncio.sleep(LOOK_S)  # a ledger may have been deleted in the meantime
        for broken in await broken_promises(world, _kept(world, _ledgers(world))):
            world.history.violated(broken)


def _ledgers(world: "World") -> dict[int, LedgerMetadata]:
    records = world.metadata.store._records
    found = [
        decode(key, one.value) for key, one in records.items() if key.startswith(LEDGERS_PREFIX)
    ]
    return {metadata.ledger_id: metadata for metadata in found}


def _kept(world: "World", ledgers: dict[int, LedgerMetadata]) -> dict[int, LedgerMetadata]:
    """Without ledgers whose file is released: a job's next run deletes what one has begun on."""
    released = {
        parse_offload_key(key)[1]
        for key, one in world.metadata.store._records.items()
        if key.startswith(OFFLOADS_PREFIX) and decode_offload(key, one.value).released_ms
    }
    return {number: one for number, one in ledgers.items() if number not in released}


def _nodes(world: "World") -> dict[BookieIdentity, Node]:
    return {
        node.service.bookie.identity: node
        for node in world.bookies
        if node.alive and node.service is not None
    }


async def _missing(world: "World", ledgers: dict[int, LedgerMetadata]) -> str:
    nodes = _nodes(world)
    for metadata in ledgers.values():
        if lack := _badly_placed(metadata, nodes) or await _unproved(metadata, nodes):
            return f"ledger {metadata.ledger_id} ({metadata.state}): {lack}"
    return ""


def _badly_placed(metadata: LedgerMetadata, nodes: dict[BookieIdentity, Node]) -> str:
    closed = metadata.state is LedgerState.CLOSED
    for ensemble in metadata.ensembles:
        empty = closed and ensemble.first_entry > metadata.last_entry
        if len(ensemble.bookies) < metadata.write_quorum and not empty:
            return f"the ensemble at {ensemble.first_entry} has only {ensemble.bookies}"
    if closed:
        return ""
    for identity in metadata.ensembles[-1].bookies:
        if identity not in nodes:
            return f"{identity}, which is to hold its next entries, is gone"
    return ""


def _last_known(metadata: LedgerMetadata) -> int:
    """Returns the last certain entry: of an open ledger, the one before its last ensemble."""
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry
    return metadata.ensembles[-1].first_entry - 1


async def _unproved(metadata: LedgerMetadata, nodes: dict[BookieIdentity, Node]) -> str:
    last = _last_known(metadata)
    proofs: dict[BookieIdentity, Proofs] = {}
    for entry_id in range(last + 1):
        crcs = set()
        for identity in write_set(metadata, entry_id):
            if identity not in nodes:
                return f"{identity}, which had entry {entry_id}, is gone"
            if identity not in proofs:
                proofs[identity] = await _proofs(nodes[identity], metadata.ledger_id, last)
            proof = proofs[identity].get(entry_id)
            if proof is None or proof.kind is not ProofKind.PRESENT:
                what = "not there" if proof is None else proof.kind
                return f"entry {entry_id} of {last} at {identity.bookie_id}: {what}"
            crcs.add((proof.crc, proof.length_bytes))
        if len(crcs) > 1:
            return f"the copies of entry {entry_id} differ"
    return ""


async def _proofs(node: Node, ledger_id: int, last: int) -> Proofs:
    """What one bookie proves of a ledger; asked in its own process."""
    assert node.process is not None
    bookie = node.service.bookie

    async def ask() -> Proofs:
        try:
            answer = await bookie.prove_entries(ledger_id, 0, last, count_max=PROOFS_MAX)
        except BookieError:
            return {}
        return {proof.entry_id: proof for proof in answer.proofs}

    return await node.process.start(ask(), "prove")


async def _leftovers(world: "World", ledgers: dict[int, LedgerMetadata]) -> str:
    if not ledgers:
        return ""  # a missing record alone deletes nothing, so bookies keep their copies
    for node in _nodes(world).values():
        assert node.process is not None
        here = await node.process.start(node.service.bookie.list_ledgers(), "list")
        if leaked := sorted(set(here) - set(ledgers)):
            return f"{node.name} keeps ledgers {leaked} that are in no record"
        known = [ledgers[ledger_id] for ledger_id in here if ledger_id in ledgers]
        identity = node.service.bookie.identity
        if former := sorted(one.ledger_id for one in known if is_former(one, identity)):
            return f"{node.name} keeps copies of ledgers {former} whose records name others"
    return ""


def closed_ledgers(world: "World") -> frozenset[int]:
    """The ledgers whose record says that they are closed."""
    return frozenset(
        number
        for number, metadata in _ledgers(world).items()
        if metadata.state is LedgerState.CLOSED
    )


async def lack_without(world: "World", leaving: Node, closed: frozenset[int]) -> str:
    """Which of these closed ledgers lacks copies once this bookie is gone."""
    nodes = {one: node for one, node in _nodes(world).items() if node is not leaving}
    for metadata in _ledgers(world).values():
        if metadata.ledger_id not in closed:
            continue
        if lack := await _unproved(metadata, nodes):
            if await _is_being_deleted(world, metadata.ledger_id):
                continue
            return f"ledger {metadata.ledger_id}: {lack}"
    return ""


async def _is_being_deleted(world: "World", ledger_id: int) -> bool:
    """Whether the ledger's record goes soon. A deletion takes the copies before the record."""
    ends_at = world.loop.now + DELETION_S_MAX
    while ledger_id in _ledgers(world):
        if world.loop.now >= ends_at:
            return False
        await asyncio.sleep(DELETION_POLL_S)
    return True

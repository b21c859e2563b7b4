"""Judges every record of a ledger as it is written: its confirmed entries are on an ack quorum.

A writer or a recovery that records a new ensemble, or the end of a ledger, vouches for the entries
before. Each of them must be on as many bookies of its write set as the ack quorum has, by what
those bookies answered (`promises.Promises`). Later repairs hide a record that came too early, so a
check at the end of a run would miss it.
"""

from typing import TYPE_CHECKING

from magnetar.ledger.metadata import LEDGERS_PREFIX, LedgerMetadata, LedgerState, decode
from magnetar.ledger.quorum import write_set
from magnetar.metadata.operations import Change

if TYPE_CHECKING:
    from tests.sim.world import World


def watch_quorums(world: "World") -> None:
    """Judges from now on; nothing more once a fault has taken a bookie's copies for good."""
    world.metadata.watching.on_change.append(lambda change: _changed(world, change))


def _changed(world: "World", change: Change) -> None:
    if change.after is None or not change.key.startswith(LEDGERS_PREFIX):
        return
    if any(node.harmed for node in world.bookies):
        return
    if change.before is not None:
        before = decode(change.key, change.before.value)
        if before.state is LedgerState.CLOSED:
            return  # repairs are judged by `copies`
    metadata = decode(change.key, change.after.value)
    if lack := _lack(world, metadata):
        world.history.violated(
            f"ledger {metadata.ledger_id} is recorded ({metadata.state}): {lack}"
        )


def _lack(world: "World", metadata: LedgerMetadata) -> str:
    """The entries of the last two ensembles that lack their ack quorum."""
    closed = metadata.state is LedgerState.CLOSED
    end = metadata.last_entry + 1 if closed else metadata.counted_entries
    for entry_id in range(metadata.ensembles[-2:][0].first_entry, end):
        copies = [one.bookie_id for one in write_set(metadata, entry_id)]
        holders = [
            name
            for name in copies
            if world.nodes[name].promises.may_hold(metadata.ledger_id, entry_id)
        ]
        if len(holders) < metadata.ack_quorum:
            return (
                f"of {copies} only {holders} have stored entry {entry_id} of {end}, "
                f"and {metadata.ack_quorum} must"
            )
    return ""

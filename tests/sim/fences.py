"""Finds topics that are fenced by their own owner, because one of their subscriptions was deleted.

Clients get over it: they are sent away and come back. So nobody would see that the deletion of a
subscription sends everybody else away.
"""

from typing import TYPE_CHECKING

from tests.sim.loop import PROCESS
from tests.sim.nodes import Node

from magnetar.broker.catalog.topic_names import topic_of_ledger
from magnetar.core.errors import MagnetarError
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import cursor_key

if TYPE_CHECKING:
    from tests.sim.world import World


def watch_fences(world: "World") -> None:
    """From now on; in the process of this run only."""
    fenced = ManagedLedger.cursor_fenced

    def told(self: ManagedLedger, error: MagnetarError) -> None:
        node = _node(world)
        if node is not None and not self.fenced and _owned(world, node, self):
            world.watching.counts["a cursor fences its topic"] += 1
            for name, cursor in self.cursors.items():
                key = cursor_key(self.name, name)
                if cursor._error is error and key not in world.metadata.store._records:
                    world.history.violated(f"{self.name} is fenced as {name} was deleted: {error}")
        fenced(self, error)

    ManagedLedger.cursor_fenced = told  # type: ignore[method-assign]


def _node(world: "World") -> Node | None:
    process = PROCESS.get(None)
    return next((node for node in world.brokers if node.process is process), None)


def _owned(world: "World", node: Node, managed_ledger: ManagedLedger) -> bool:
    """Returns whether the broker serves this instance, under the claim that it was opened under.

    An instance of a former claim may be fenced by what other owners did since.
    """
    if node.ledgers is None or node.ledgers.opened.get(managed_ledger.name) is not managed_ledger:
        return False
    ownership = node.service.cluster_ownership
    bundle = ownership.bundle_of(topic_of_ledger(managed_ledger.name))
    claim = None if bundle is None else ownership.claims.get(bundle)
    record = None if claim is None else world.metadata.store._records.get(claim.key)
    if record is None or claim is None or record.revision != claim.revision:
        return False
    return bool(claim.origin == managed_ledger.tenure._origin)

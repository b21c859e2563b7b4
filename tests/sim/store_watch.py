"""Judges every claim of a bundle as it is written, and every lease as it runs out.

Fences and compare-and-swap bound the harm of two owners of one bundle, so a check at the end of a
run would miss them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.ownership.bundles import Bundle, Ring
from magnetar.broker.ownership.records import OWNERSHIP_PREFIX, bundle_of_key, decode_ownership
from magnetar.broker.ownership.rings import namespace_key, policies_of
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.operations import Change
from magnetar.metadata.store import Record

if TYPE_CHECKING:
    from tests.sim.metadata import MetadataClient

Violated = Callable[[str], None]

LEASE_SLACK_S: Final = 1e-3
"""The store's timer wakes that much late."""


class StoreWatch:
    """Judges the changes of one store; silent until `start`."""

    def __init__(self, store: MemoryStore, clients: Sequence["MetadataClient"]) -> None:
        self._store, self._clients = store, clients
        self._violated: Violated = lambda _: None
        self.ended = 0
        """How many leases ran out while their holders lived."""
        self.on_change: list[Callable[[Change], None]] = []
        """Called with every change that was made, in order."""

    def start(self, violated: Violated) -> None:
        """Reports from now on."""
        self._violated = violated
        leases = self._store._leases
        take_due = leases.take_due

        def taken() -> list[str]:
            before = dict(leases._leases)
            keys = take_due()
            for lease_id in before.keys() - leases._leases.keys():
                self._ran_out(lease_id)
            return keys

        leases.take_due = taken  # type: ignore[method-assign]
        commit = self._store._commit

        def committed(changes: Sequence[Change]) -> None:
            commit(changes)
            for one in changes:
                for changed in self.on_change:
                    changed(one)
                if one.after is not None and one.key.startswith(OWNERSHIP_PREFIX):
                    self._owned(one, one.after)
                    if one.before is None:
                        self._claimed(one.key)

        self._store._commit = committed  # type: ignore[method-assign]

    def _owned(self, change: Change, record: Record) -> None:
        """Asserts that a claim ends with its owner's lease."""
        owner = decode_ownership(change.key, record.value)
        if owner.lease_id != change.lease_id:
            self._violated(f"{change.key} was claimed, and outlives its owner's lease")

    def outside(self) -> str:
        """Names a claim of a bundle that its namespace does not have; it blocks other claims."""
        for key, stored in self._store._records.items():
            if key.startswith(OWNERSHIP_PREFIX) and (lack := self._lack(bundle_of_key(key))):
                owner = decode_ownership(key, stored.value)
                return f"{bundle_of_key(key)} is claimed by {owner.broker_id}, and {lack}"
        return ""

    def _lack(self, bundle: Bundle) -> str:
        """Why there is no such bundle."""
        stored = self._store._records.get(namespace_key(bundle.namespace))
        if stored is None:
            return "its namespace does not exist"
        record = Record(namespace_key(bundle.namespace), stored.value, stored.revision)
        exists = bundle in Ring.of(bundle.namespace, policies_of(record))
        return "" if exists else "its namespace has no such bundle"

    def _claimed(self, key: str) -> None:
        """A claim is of a bundle that its namespace has, and overlaps no other."""
        bundle = bundle_of_key(key)
        if lack := self._lack(bundle):
            self._violated(f"{bundle} was claimed, and {lack}")
        folder = key.rpartition("/")[0] + "/"
        for other in self._store._records:
            if other.startswith(folder) and other != key and bundle_of_key(other).overlaps(bundle):
                self._violated(f"{bundle} was claimed while {bundle_of_key(other)} is")

    def _ran_out(self, lease_id: int) -> None:
        """The store ends a lease: its holder must have given it up before."""
        for client in self._clients:
            lease = client.leases.get(lease_id)
            if lease is None or not client.process.alive or lease.lost:
                continue
            self.ended += 1
            left_s = lease.deadline - client.clock.monotonic()
            if left_s > LEASE_SLACK_S:
                self._violated(
                    f"lease {lease_id} of {client.process.name} has run out in the store, and "
                    f"its holder counts on it for {left_s:.3f} s more"
                )

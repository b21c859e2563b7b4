"""Planted bugs at exact moments: a change of ensemble, a receipt, a renewal, a claim, a proof."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import (
    bookies,
    churn,
    faults,
    hazards,
    ledgers,
    many_rollovers,
    quorum,
    together,
    topics,
)

from magnetar.autorecovery.check.check_all import CheckRun
from magnetar.autorecovery.drain import decommission
from magnetar.broker.ownership.bundles import Bundle, Ring, parts_of
from magnetar.broker.ownership.claims import Claim, Claims
from magnetar.broker.ownership.records import OwnershipRecord, ownership_key
from magnetar.broker.ownership.strays import Strays
from magnetar.core.names import NamespaceName
from magnetar.core.steady_clock import SteadyClock
from magnetar.jobs.offload import file_writer as writing
from magnetar.ledger import ensemble_change
from magnetar.ledger.ensemble_change import EnsembleChange
from magnetar.ledger.records import RecordChanged, swap
from magnetar.managed_ledger.cursor import Cursor
from magnetar.metadata.etcd.leases import EtcdLease
from magnetar.metadata.records import encode
from magnetar.metadata.store import Check, Operation, Put, Record
from magnetar.offload.repository import OffloadRepository


class Unchecked:
    """A store whose transactions are held to nothing that they only check."""

    def __init__(self, store: Any) -> None:
        self._inner = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transact(self, operations: Sequence[Operation]) -> int:
        left = [one for one in operations if not isinstance(one, Check)]
        revision: int = await self._inner.transact(left)
        return revision


def the_first_piece_is_not_awaited() -> None:
    copied = EnsembleChange._copied

    async def but_the_first(self: EnsembleChange) -> bool:
        writer: Any = self._writer
        first, late = writer.layout.first_entry, writer.late
        held = [piece for piece in late if piece.first == first]
        if held and len(late) == len(held):
            return not any(replica.error is not None for replica in writer.layout.replicas)
        return await copied(self)

    plant(EnsembleChange, "_copied", but_the_first)


def the_first_entry_is_not_sent_again() -> None:
    switch = EnsembleChange._switch

    def but_the_first(self: EnsembleChange, layout: Any) -> None:
        writer: Any = self._writer
        pieces = [one for one in (*writer.late, *writer.pending) if one.first == layout.first_entry]
        before = [(one.want, one.need, one.sent) for one in pieces]
        for piece in pieces:
            for replica in layout.replicas:
                piece.sent |= replica.bit
        switch(self, layout)
        for piece, (want, need, sent) in zip(pieces, before, strict=True):
            piece.want, piece.need, piece.sent = want, need, sent

    plant(EnsembleChange, "_switch", but_the_first)


def a_change_overwrites_a_recovery() -> None:
    async def over_whatever(context: Any, wanted: Any, revision: int) -> int:
        while True:
            try:
                return await swap(context, wanted, revision)
            except RecordChanged as changed:
                revision = changed.revision

    plant(ensemble_change, "swap", over_whatever)


def acks_under_way_are_durable() -> None:
    when_durable = Cursor.when_durable

    def at_once(self: Cursor, on_durable: Callable[[Any], None]) -> None:
        if not self._dirty:
            asyncio.get_running_loop().call_soon(on_durable, self._error)
        else:
            when_durable(self, on_durable)

    plant(Cursor, "when_durable", at_once)


def a_lease_counts_from_its_answer() -> None:
    def renewed(self: EtcdLease, since: float, ttl_s: float) -> None:
        self.deadline = max(self.deadline, self._clock.monotonic() + ttl_s)

    plant(EtcdLease, "renewed", renewed)


def claims_do_not_check_the_bundles() -> None:
    acquire = Claims.acquire

    async def unchecked(self: Claims, bundle: Any) -> Any:
        store = self._store
        self._store = Unchecked(store)
        try:
            return await acquire(self, bundle)
        finally:
            self._store = store

    plant(Claims, "acquire", unchecked)


def parts_of_a_split_are_all_adopted() -> None:
    split = Claims._split

    async def landed_by_the_first(
        self: Claims, claim: Claim, positions: Sequence[int], _: OwnershipRecord
    ) -> tuple[Record | None, list[Record]]:
        own = OwnershipRecord.of(self._own())
        parts = parts_of(claim.bundle, positions)
        policies = await self._rings.read(claim.bundle.namespace)
        first = await self._store.get(ownership_key(parts[0]))
        if policies is not None and first is not None and first.value == encode(own):
            records = [Record(ownership_key(part), first.value, first.revision) for part in parts]
            return policies, records
        return await split(self, claim, positions, own)

    plant(Claims, "_split", landed_by_the_first)


def only_known_claims_are_released() -> None:
    outside = Strays._outside

    def known(self: Strays, namespace: NamespaceName, ring: Ring | None) -> list[Bundle]:
        return [one for one in outside(self, namespace, ring) if one in self._owner.claims.all]

    plant(Strays, "_outside", known)


class Unleased(Unchecked):
    """A store whose keys outlive the leases that they are to go with."""

    async def transact(self, operations: Sequence[Operation]) -> int:
        left = [replace(one, lease_id=None) if isinstance(one, Put) else one for one in operations]
        revision: int = await self._inner.transact(left)
        return revision


def claims_outlive_their_lease() -> None:
    acquire = Claims.acquire

    async def unleased(self: Claims, bundle: Any) -> Any:
        store = self._store
        self._store = Unleased(store)
        try:
            return await acquire(self, bundle)
        finally:
            self._store = store

    plant(Claims, "acquire", unleased)


def a_proof_counts_the_leaving_bookie() -> None:
    def counting(*args: Any, excluded: object, **more: Any) -> CheckRun:
        return CheckRun(*args, **more)

    plant(decommission, "CheckRun", counting)


def ages_go_by_the_wall_clock() -> None:
    plant(SteadyClock, "_counted_ms", lambda self: self._clock.now_ms())


def files_are_not_read_back() -> None:
    async def believed(*_: Any, **__: Any) -> None:
        return None

    plant(writing, "verify_file", believed)


def commits_do_not_check_the_ledger() -> None:
    once = OffloadRepository._commit_once

    async def unchecked(repository: Any, *args: Any) -> Any:
        return await once(OffloadRepository(Unchecked(repository._store)), *args)

    plant(OffloadRepository, "_commit_once", unchecked)


OFFLOADED: Final = together(topics(), many_rollovers(), hazards(offloads=True))

BUGS: Final = (
    Bug(
        "the first piece of a new ensemble is not awaited",
        "The first confirmed entry of a new ensemble has no ack quorum there when the change is "
        "recorded: a recovery that finds the record ends the ledger before it.",
        the_first_piece_is_not_awaited,
        6,
        together(ledgers(), quorum(3, 3, 2), bookies(5), faults("late quorum", count=12)),
    ),
    Bug(
        "the first entry of a new ensemble is not sent to it",
        "A change of ensemble sends what lies behind its first entry, and that one counts the "
        "acks of the former bookies.",
        the_first_entry_is_not_sent_again,
        0,
        together(ledgers(), quorum(3, 3, 2), bookies(5), faults("late quorum", count=12)),
    ),
    Bug(
        "a change of ensemble overwrites a recovery",
        "A recovery begins between a writer's read of the ledger's record and its write of the "
        "new ensemble, which takes the record back: the ledger is written and ended at once.",
        a_change_overwrites_a_recovery,
        4,
        together(
            ledgers(),
            quorum(3, 3, 2),
            bookies(5),
            faults("late quorum", "kill bookie", "pause broker", count=12),
        ),
    ),
    Bug(
        "an ack under way is receipted",
        "An ack that changes nothing is answered at once, though the write of the one before it "
        "is still under way: the broker dies, and the message comes again.",
        acks_under_way_are_durable,
        15,
        together(
            topics(), hazards(again_chance=0.4), faults("kill at a receipt", count=5, for_s=3.0)
        ),
    ),
    Bug(
        "a lease counts from its answer",
        "A renewal is answered late, and its holder counts the lease from then on: it acts on a "
        "lease that has run out.",
        a_lease_counts_from_its_answer,
        0,
        together(topics(), hazards(etcd_leases=True), faults("late renewals", count=4)),
    ),
    Bug(
        "a claim without a check of the bundles",
        "A claim lands after the bundle was split, or after its namespace was deleted: two "
        "brokers own one range, or one owns what is no more.",
        claims_do_not_check_the_bundles,
        0,
        together(topics(), faults("claims race a split", count=6)),
    ),
    Bug(
        "a claim without a lease",
        "A claim does not go with its owner's lease: nobody can take the bundle of a dead broker.",
        claims_outlive_their_lease,
        0,
        together(topics(), faults("claims race a split", "expire lease", count=4)),
    ),
    Bug(
        "a split adopts parts that were lost",
        "A split lands without an answer, and the lease ends with the claims of its parts. The "
        "broker claims the first part under its next lease, and the retry of the split takes that "
        "for its own success: it adopts every part, also those without a record.",
        parts_of_a_split_are_all_adopted,
        2,
        together(topics(), churn(reloads=True), faults("split without an answer", count=4)),
    ),
    Bug(
        "only known claims are released",
        "A namespace is deleted after a split that landed without an answer. The parts' claims are "
        "under the broker's lease, but it has not adopted them, and does not release them: a new "
        "namespace of that name cannot have its topics served.",
        only_known_claims_are_released,
        4,
        together(topics(), faults("split without an answer", count=4)),
    ),
    Bug(
        "a proof counts the leaving bookie",
        "A bookie is proven to be empty with its own copies counted in: it goes, and its ledgers "
        "have a copy less.",
        a_proof_counts_the_leaving_bookie,
        328,
        together(topics(), bookies(5), many_rollovers(), faults("decommission", count=1)),
    ),
    Bug(
        "retention goes by the wall clock",
        "All wall clocks leap ahead by hours: what is kept for an hour is trimmed at once.",
        ages_go_by_the_wall_clock,
        0,
        together(
            topics(),
            many_rollovers(),
            hazards(retention_s=3_600.0),
            faults("leap of all clocks", count=3, for_s=6.0),
        ),
    ),
    Bug(
        "an offloaded file is not read back",
        "An upload is damaged, and the file is live without having been read: the bookies' "
        "copies are deleted, and the ledger is lost.",
        files_are_not_read_back,
        34,
        together(OFFLOADED, faults("bad object store", count=6, for_s=4.0)),
    ),
    Bug(
        "a commit does not check the ledger",
        "A ledger is trimmed while a job writes its file: the file is live for ever.",
        commits_do_not_check_the_ledger,
        47,
        together(OFFLOADED, churn(hoard_chance=0.5), faults("bad object store", count=10)),
    ),
)

"""This broker's claims: the bundles that it owns, each with the revision of its record.

A broker claims a bundle by creating the bundle's record under its lease, in a transaction that
checks the namespace's policies. So the bundle exists, and two brokers cannot both claim it. Claims
of overlapping ranges are also impossible: policies change by compare-and-swap only, and before a
broker claims a new range, all records of the namespace that overlap it (left from other boundaries)
must be deleted.

A claim ends when its record is deleted, handed over to another broker's lease, or replaced by the
records of its parts; each is one transaction. If the outcome of a transaction is unknown, it is
repeated. If the outcome stays unknown, the claim is dropped, and the next request reads the store
(`confirm`): a record with this broker's id, start and lease is this broker's claim.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeVar

from magnetar.broker.ownership.bundles import Bundle, Ring, parts_of, with_split
from magnetar.broker.ownership.records import (
    BrokerRecord,
    OwnershipRecord,
    broker_key,
    bundle_of_key,
    decode_broker,
    decode_ownership,
    ownership_key,
)
from magnetar.broker.ownership.rings import Rings, namespace_key, policies_of
from magnetar.core.errors import (
    Conflict,
    MagnetarError,
    MetadataError,
    PreconditionFailed,
    ServiceNotReady,
)
from magnetar.core.log import get_logger
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    LeaseLost,
    MetadataStore,
    MetadataUnavailable,
    Operation,
    Put,
    Record,
)

ATTEMPTS_MAX: Final = 8
RETRY_S: Final = 0.2

T = TypeVar("T")

log = get_logger("magnetar.ownership")


class ClaimState(Enum):
    """The state of a bundle that this broker owns."""

    HELD = "held"
    LEAVING = "leaving"
    SPLITTING = "splitting"


@dataclass(slots=True)
class Claim:
    """A bundle of this broker. `revision` is its record's, and the epoch of the claim."""

    bundle: Bundle
    revision: int
    since_ms: int
    origin: int
    """The revision of the first claim from which this claim came by splits alone. A revision is
    used only once, so a bundle that was lost and claimed again has another origin."""
    state: ClaimState = ClaimState.HELD
    settled: "asyncio.Future[None] | None" = None
    """During a split: done when the parts have replaced the bundle, or the split has failed."""

    @property
    def key(self) -> str:
        """The key of the claim's record."""
        return ownership_key(self.bundle)


class Claims:
    """Creates, hands over, splits and ends claims; `seen` gets every record read or written."""

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        rings: Rings,
        own: Callable[[], BrokerRecord],
        now_ms: Callable[[], int],
        seen: Callable[[Record], bool],
    ) -> None:
        self._store = store
        self._session = session
        self._rings = rings
        self._own = own
        self._now_ms = now_ms
        self._seen = seen
        self._claims: dict[Bundle, Claim] = {}
        self._splitting: list[Claim] = []

    @property
    def all(self) -> Mapping[Bundle, Claim]:
        """All claims by bundle, read-only."""
        return MappingProxyType(self._claims)

    def get(self, bundle: Bundle) -> Claim | None:
        """Returns the claim of the bundle, or of the bundle whose split is creating it."""
        claim = self._claims.get(bundle)
        if claim is None and self._splitting:
            return next((c for c in self._splitting if c.bundle.overlaps(bundle)), None)
        return claim

    def is_own(self, owner: OwnershipRecord) -> bool:
        """Whether the record is a claim of this process under its current lease."""
        return owner == OwnershipRecord.of(self._own()) and owner.lease_id != 0

    def is_own_former(self, owner: OwnershipRecord) -> bool:
        """Whether the record is a claim of this process under a lease that it has lost."""
        own = self._own()
        same = owner.broker_id == own.broker_id and owner.start == own.start
        return same and owner.lease_id != own.lease_id

    async def acquire(self, bundle: Bundle) -> Claim | None:
        """Claims an unowned bundle; None if it is owned, might be, or does not exist.

        Claims nothing while the broker is not registered under its present lease: the record would
        name a lease other than the one that it ends with.
        """
        policies = await self._rings.read(bundle.namespace)
        if policies is None or bundle not in Ring.of(bundle.namespace, policies_of(policies)):
            return None
        claimed = await self._store.list(ownership_key(bundle).rpartition("/")[0] + "/")
        if any(bundle_of_key(record.key).overlaps(bundle) for record in claimed):
            for record in claimed:
                self._seen(record)
            return await self.confirm(bundle)
        own = OwnershipRecord.of(self._own())
        key, value = ownership_key(bundle), encode(own)
        try:
            if own.lease_id != self._session.lease_id:
                return None
            revision = await self._store.transact(
                [
                    Check(policies.key, policies.revision),
                    Put(key, value, ABSENT, own.lease_id),
                ]
            )
        except (BadRevision, MetadataUnavailable):
            return await self.confirm(bundle)
        except LeaseLost:
            return None
        return self.adopt(bundle, Record(key, value, revision))

    async def confirm(self, bundle: Bundle) -> Claim | None:
        """Reads the store; returns this broker's claim if its record is under the current lease."""
        if (claim := self.get(bundle)) is not None:
            return claim
        record = await self._store.get(ownership_key(bundle))
        if record is None:
            return None
        self._seen(record)
        owner = decode_ownership(record.key, record.value)
        if self.is_own_former(owner):
            # The lease is lost or will be; its record would block a new claim of this broker.
            await self._delete(record.key, record.revision)
            return None
        return self.get(bundle) or self.adopt(bundle, record)

    async def is_current(self, claim: Claim) -> bool:
        """Whether the store still has the claim, or a split is replacing it."""
        record = await self._store.get(claim.key)
        if record is not None:
            self._seen(record)
        moved = claim.state is ClaimState.SPLITTING or self._claims.get(claim.bundle) is not claim
        return moved or (record is not None and record.revision == claim.revision)

    def adopt(self, bundle: Bundle, record: Record, whole: Claim | None = None) -> Claim | None:
        """Returns the claim that a record of the store represents, None if it is not this broker's.

        `whole` is the claim whose split created the record.
        """
        claim = self._claims.get(bundle)
        if claim is not None and claim.revision == record.revision:
            return claim
        # The lease, and the record with it, may be lost by the time the answer arrives.
        owner = decode_ownership(record.key, record.value)
        if not self.is_own(owner) or not self._session.valid or not self._seen(record):
            return None
        origin = record.revision if whole is None else whole.origin
        claim = self._claims[bundle] = Claim(bundle, record.revision, self._now_ms(), origin)
        log.info("bundle claimed", bundle=str(bundle), revision=record.revision)
        return claim

    def drop(self, bundle: Bundle) -> Claim | None:
        """Forgets the claim: the store no longer has it, or its state is unknown."""
        claim = self._claims.pop(bundle, None)
        self._splitting = [other for other in self._splitting if other is not claim]
        if claim is not None and claim.settled is not None and not claim.settled.done():
            claim.settled.set_result(None)
        return claim

    def drop_all(self) -> list[Bundle]:
        """Forgets all claims, since the lease is lost; returns their bundles."""
        bundles = list(self._claims)
        for bundle in bundles:
            self.drop(bundle)
        return bundles

    async def release(self, claim: Claim, destination: BrokerRecord | None) -> BrokerRecord | None:
        """Hands the bundle to a living `destination`, else frees it; returns the new owner."""
        try:
            if destination is not None and await self._hand_over(claim, destination):
                return destination
            await self._retried(lambda: self._delete(claim.key, claim.revision))
            return None
        finally:
            # If the lease was lost meanwhile, there may be a newer claim of the bundle.
            if self._claims.get(claim.bundle) is claim:
                self.drop(claim.bundle)

    async def _hand_over(self, claim: Claim, destination: BrokerRecord) -> bool:
        key = broker_key(destination.broker_id)
        record = await self._store.get(key)
        if record is None:
            return False
        alive = decode_broker(key, record.value)
        if alive.start != destination.start or not alive.active:
            return False
        value = encode(OwnershipRecord.of(alive))

        async def write() -> bool:
            try:
                revision = await self._store.transact(
                    [
                        Check(key, record.revision),
                        Put(claim.key, value, claim.revision, alive.lease_id),
                    ]
                )
            except BadRevision:
                landed = await self._store.get(claim.key)
                return landed is not None and landed.value == value
            except LeaseLost:
                return False
            self._seen(Record(claim.key, value, revision))
            return True

        return await self._retried(write)

    async def _delete(self, key: str, revision: int) -> None:
        try:
            await self._store.delete(key, expected=revision)
        except BadRevision:
            return  # deleted already: with the lease, or by a former attempt

    async def _retried(self, write: Callable[[], Awaitable[T]]) -> T:
        """Repeats an idempotent write while its outcome is unknown, up to ATTEMPTS_MAX times."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await write()
            except MetadataUnavailable:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                await asyncio.sleep(RETRY_S)
        raise AssertionError  # the last attempt returns or raises

    async def split(self, claim: Claim, positions: Sequence[int]) -> list[Bundle]:
        """Replaces the bundle by its parts, in the policies and in the ownership at once.

        Guarded writes wait until the split is done; clients do not notice it.
        """
        if claim.state is not ClaimState.HELD:
            raise Conflict(f"{claim.bundle} is being moved or split already")
        own = OwnershipRecord.of(self._own())  # of one lease, also if an attempt is repeated
        claim.state = ClaimState.SPLITTING
        claim.settled = asyncio.get_running_loop().create_future()
        self._splitting.append(claim)
        try:
            policies, records = await self._retried(lambda: self._split(claim, positions, own))
        except MetadataUnavailable:
            self.drop(claim.bundle)
            raise
        except MagnetarError:
            if await self._is_whole(claim):
                self._held_again(claim)
            else:
                self.drop(claim.bundle)
            raise
        except BaseException:
            self._held_again(claim)
            raise
        parts = parts_of(claim.bundle, positions)
        for record in records:
            # Checked like a record from the watch: the parts may be lost with the lease.
            self.adopt(bundle_of_key(record.key), record, claim)
        if policies is not None:
            self._rings.seen(policies)
        self.drop(claim.bundle)
        log.info("bundle split", bundle=str(claim.bundle), parts=[part.range for part in parts])
        return parts

    async def _is_whole(self, claim: Claim) -> bool:
        """Whether the store has the claim after a split that failed; False if it is unknown."""
        try:
            record = await self._store.get(claim.key)
        except MetadataError:
            return False
        return record is not None and record.revision == claim.revision

    def _held_again(self, claim: Claim) -> None:
        """Ends a split that did not happen, unless the claim was lost with the lease."""
        if claim not in self._splitting or claim.settled is None:
            return
        self._splitting.remove(claim)
        claim.state = ClaimState.HELD
        claim.settled.set_result(None)
        claim.settled = None

    async def _split(
        self, claim: Claim, positions: Sequence[int], own: OwnershipRecord
    ) -> tuple[Record | None, list[Record]]:
        """Returns the namespace's new record, and the records of the parts that `own` claims.

        The first is None if the namespace was deleted after an attempt that had succeeded.
        """
        bundle, parts = claim.bundle, parts_of(claim.bundle, positions)
        key, value = namespace_key(bundle.namespace), encode(own)
        for _ in range(ATTEMPTS_MAX):
            record = await self._rings.read(bundle.namespace)
            # A former attempt with an unknown outcome may have succeeded. Since then, the lease
            # may have ended, and its claims of some parts or all of them.
            stored = [await self._store.get(ownership_key(part)) for part in parts]
            landed = [part for part in stored if part is not None and part.value == value]
            if landed:
                return record, landed
            if record is None:
                raise PreconditionFailed(f"{bundle.namespace} does not exist any more")
            document = encode(with_split(policies_of(record), bundle, positions))
            operations: list[Operation] = [
                Put(key, document, record.revision),
                Delete(claim.key, claim.revision),
                *(Put(ownership_key(part), value, ABSENT, own.lease_id) for part in parts),
            ]
            try:
                revision = await self._store.transact(operations)
            except BadRevision as error:
                if error.key == key:
                    continue  # a concurrent change of another policy
                raise ServiceNotReady(f"{bundle} is not owned here any more: {error}") from error
            claims = [Record(ownership_key(part), value, revision) for part in parts]
            return Record(key, document, revision), claims
        raise Conflict(f"the policies of {bundle.namespace} are being changed by others; try again")

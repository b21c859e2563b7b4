"""This broker's claims: which bundles are its own, by which revision of their records.

A claim is made by creating the bundle's record, under the lease, in a transaction that checks the
namespace's policies: so it is of a bundle that exists, and two brokers that want one bundle cannot
both have it. Claims of ranges that overlap cannot both be made either: policies change by
compare-and-swap only, and before a claim of a new range is made, records of the namespace that
overlap it (left from other boundaries) must have gone.

A claim ends when its record is deleted, handed over to another broker's lease, or split into those
of its parts; each is one transaction. Where the outcome of one is unknown it is repeated, and where
it stays unknown the claim is dropped: what the store says then is found by the next who asks
(`confirm`), for a record that names this broker, start and lease is this broker's claim.
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
    encode,
    ownership_key,
)
from magnetar.broker.ownership.rings import Rings, namespace_key, policies_of
from magnetar.core.errors import Conflict, PreconditionFailed, ServiceNotReady
from magnetar.core.log import get_logger
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
    """What is being done with a bundle of our own."""

    HELD = "held"
    LEAVING = "leaving"
    SPLITTING = "splitting"


@dataclass(slots=True)
class Claim:
    """One bundle of this broker; `revision` is that of its record, and the epoch of the claim."""

    bundle: Bundle
    revision: int
    since_ms: int
    origin: int
    """Revision of the claim that this one is, or came from by splits alone. A revision is used only
    once, so a bundle that was lost and claimed anew has another origin."""
    state: ClaimState = ClaimState.HELD
    settled: "asyncio.Future[None] | None" = None
    """While it is being split: done when the parts stand in its place, or it stays whole."""

    @property
    def key(self) -> str:
        return ownership_key(self.bundle)


class Claims:
    """See the module's text. `seen` is told of every record that was read or written here."""

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
        """By bundle. To read, not to change."""
        return MappingProxyType(self._claims)

    def get(self, bundle: Bundle) -> Claim | None:
        """The claim of the bundle, or of that of which it is just being made a part."""
        claim = self._claims.get(bundle)
        if claim is None and self._splitting:
            return next((c for c in self._splitting if c.bundle.overlaps(bundle)), None)
        return claim

    def is_own(self, owner: OwnershipRecord) -> bool:
        """Whether the record is a claim of this process under the lease that it has now."""
        return owner == OwnershipRecord.of(self._own()) and owner.lease_id != 0

    def is_own_former(self, owner: OwnershipRecord) -> bool:
        """Whether it is one of this very process under a lease that it has lost."""
        own = self._own()
        same = owner.broker_id == own.broker_id and owner.start == own.start
        return same and owner.lease_id != own.lease_id

    # -- making one

    async def take(self, bundle: Bundle) -> Claim | None:
        """Claims a bundle that nobody owns; None where somebody does, or may, or it is no more."""
        policies = await self._rings.read(bundle.namespace)
        if policies is None or bundle not in Ring.of(bundle.namespace, policies_of(policies)):
            return None
        claimed = await self._store.list(ownership_key(bundle).rpartition("/")[0] + "/")
        if any(bundle_of_key(record.key).overlaps(bundle) for record in claimed):
            for record in claimed:
                self._seen(record)
            return await self.confirm(bundle)
        key, value = ownership_key(bundle), encode(OwnershipRecord.of(self._own()))
        try:
            revision = await self._store.transact(
                [
                    Check(policies.key, policies.revision),
                    Put(key, value, ABSENT, self._session.lease_id),
                ]
            )
        except (BadRevision, MetadataUnavailable):
            return await self.confirm(bundle)
        except LeaseLost:
            return None
        return self.adopt(bundle, Record(key, value, revision))

    async def confirm(self, bundle: Bundle) -> Claim | None:
        """The claim that the store has for this broker, if it is of its lease now."""
        if (claim := self.get(bundle)) is not None:
            return claim
        record = await self._store.get(ownership_key(bundle))
        if record is None:
            return None
        self._seen(record)
        owner = decode_ownership(record.key, record.value)
        if self.is_own_former(owner):
            # Under a lease that is lost, or will be: it must not stand in our own way.
            await self._delete(record.key, record.revision)
            return None
        return self.get(bundle) or self.adopt(bundle, record)

    async def stands(self, claim: Claim) -> bool:
        """Whether the store has the claim, or it is being exchanged for others."""
        record = await self._store.get(claim.key)
        if record is not None:
            self._seen(record)
        moved = claim.state is ClaimState.SPLITTING or self._claims.get(claim.bundle) is not claim
        return moved or (record is not None and record.revision == claim.revision)

    def adopt(self, bundle: Bundle, record: Record, whole: Claim | None = None) -> Claim | None:
        """The claim that a record of the store is, if it is this broker's and still stands.

        `whole` is the claim of which it is a part.
        """
        known = self._claims.get(bundle)
        if known is not None and known.revision == record.revision:
            return known
        # The answer may come after the lease was lost, and the record with it.
        owner = decode_ownership(record.key, record.value)
        if not self.is_own(owner) or not self._session.valid or not self._seen(record):
            return None
        origin = record.revision if whole is None else whole.origin
        claim = self._claims[bundle] = Claim(bundle, record.revision, self._now_ms(), origin)
        log.info("bundle claimed", bundle=str(bundle), revision=record.revision)
        return claim

    # -- ending one

    def drop(self, bundle: Bundle) -> Claim | None:
        """Forgets the claim: the store has it no more, or nobody knows."""
        claim = self._claims.pop(bundle, None)
        self._splitting = [other for other in self._splitting if other is not claim]
        if claim is not None and claim.settled is not None and not claim.settled.done():
            claim.settled.set_result(None)
        return claim

    def drop_all(self) -> list[Bundle]:
        """The lease is lost, and every claim with it."""
        bundles = list(self._claims)
        for bundle in bundles:
            self.drop(bundle)
        return bundles

    async def give(self, claim: Claim, destination: BrokerRecord | None) -> BrokerRecord | None:
        """Hands the bundle over, where the destination is alive; else frees it. Who has it now."""
        try:
            if destination is not None and await self._hand_over(claim, destination):
                return destination
            await self._settled(lambda: self._delete(claim.key, claim.revision))
            return None
        finally:
            # Lost with the lease meanwhile, the bundle may be claimed anew.
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

        return await self._settled(write)

    async def _delete(self, key: str, revision: int) -> None:
        try:
            await self._store.delete(key, expected=revision)
        except BadRevision:
            return  # it has gone, with the lease or by a former attempt

    async def _settled(self, doing: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await doing()
            except MetadataUnavailable:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                await asyncio.sleep(RETRY_S)
        raise AssertionError  # the last attempt returns or raises

    # -- splitting one

    async def split(self, claim: Claim, positions: Sequence[int]) -> list[Bundle]:
        """Puts the parts in the place of the bundle: in the policies and in the ownership, at once.

        Writes under the guard wait meanwhile; nobody else notices.
        """
        if claim.state is not ClaimState.HELD:
            raise Conflict(f"{claim.bundle} is being moved or split already")
        claim.state = ClaimState.SPLITTING
        claim.settled = asyncio.get_running_loop().create_future()
        self._splitting.append(claim)
        try:
            policies, value, revision = await self._settled(lambda: self._split(claim, positions))
        except MetadataUnavailable:
            self.drop(claim.bundle)
            raise
        except BaseException:
            if claim in self._splitting:  # else it was lost with the lease
                self._splitting.remove(claim)
                claim.state = ClaimState.HELD
                claim.settled.set_result(None)
                claim.settled = None
            raise
        parts = parts_of(claim.bundle, positions)
        for part in parts:
            # As the watch would: where the lease was lost meanwhile they went with it.
            self.adopt(part, Record(ownership_key(part), value, revision), claim)
        self._rings.seen(policies)
        self.drop(claim.bundle)
        log.info("bundle split", bundle=str(claim.bundle), parts=[part.range for part in parts])
        return parts

    async def _split(self, claim: Claim, positions: Sequence[int]) -> tuple[Record, bytes, int]:
        """The namespace's record with the parts, and their claims: value and revision."""
        bundle, parts = claim.bundle, parts_of(claim.bundle, positions)
        key, value = namespace_key(bundle.namespace), encode(OwnershipRecord.of(self._own()))
        for _ in range(ATTEMPTS_MAX):
            record = await self._rings.read(bundle.namespace)
            if record is None:
                raise PreconditionFailed(f"{bundle.namespace} does not exist any more")
            # An attempt whose outcome was unknown may have landed.
            first = await self._store.get(ownership_key(parts[0]))
            if first is not None and first.value == value:
                return record, value, first.revision
            lease_id = self._session.lease_id
            document = encode(with_split(policies_of(record), bundle, positions))
            operations: list[Operation] = [
                Put(key, document, record.revision),
                Delete(claim.key, claim.revision),
                *(Put(ownership_key(part), value, ABSENT, lease_id) for part in parts),
            ]
            try:
                revision = await self._store.transact(operations)
            except BadRevision as error:
                if error.key == key:
                    continue  # another policy was changed meanwhile
                raise ServiceNotReady(f"{bundle} is not owned here any more: {error}") from error
            return Record(key, document, revision), value, revision
        raise Conflict(f"the policies of {bundle.namespace} are being changed by others; try again")

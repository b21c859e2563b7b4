"""The registry of living brokers: this broker's registration and all others'.

A registration is a record under its broker's lease. It is deleted when the lease ends, or when the
broker withdraws it, which happens before the broker stops listening. So if a registered address
refuses connections, its process has died. A broker that starts under the id of a registered one
ends that one's lease: the new process has the address, so the former one is dead.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from magnetar.broker.ownership.records import (
    BROKERS_PREFIX,
    BrokerRecord,
    BrokerState,
    broker_key,
    decode_broker,
)
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore, Record

log = get_logger("magnetar.ownership.brokers")


class BrokerRegistry:
    """Keeps this broker registered and follows all registrations.

    A listener of the session, before the ownership.
    """

    def __init__(self, store: MetadataStore, session: MetadataSession, own: BrokerRecord) -> None:
        self._store = store
        self._session = session
        self._own = own
        self._living: dict[str, BrokerRecord] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._following = Follower(store, BROKERS_PREFIX, self._changed)
        self._first = True
        self._revision = ABSENT
        """The revision of the registration that this process wrote last."""
        self._withdrawn = False
        self.run = self._following.run
        self.ready = self._following.ready

    @property
    def own(self) -> BrokerRecord:
        """This broker's record, as last registered."""
        return self._own

    def living(self) -> Sequence[BrokerRecord]:
        """Returns all registered brokers in the order of their ids; may include this one."""
        return [record for _, record in sorted(self._living.items())]

    def get(self, broker_id: str) -> BrokerRecord | None:
        """Returns a registered broker's record, None if the id is not registered."""
        return self._living.get(broker_id)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """`listener(broker_id)` is called when a broker registers, changes or disappears."""
        self._listeners.append(listener)

    async def set_state(self, state: BrokerState) -> None:
        """Publishes whether this broker may receive bundles."""
        self._own = msgspec.structs.replace(self._own, state=state)
        await self._register()

    async def withdraw(self) -> None:
        """Deletes the registration, unless another process has taken over the id.

        Call it before the listeners close.
        """
        self._withdrawn = True
        with suppress(BadRevision):
            await self._store.delete(broker_key(self._own.broker_id), expected=self._revision)

    def suspended(self) -> None:
        """Does nothing: the registration is valid until the lease ends."""

    async def established(self, *, renewed: bool) -> None:
        """Registers this broker under a new lease."""
        if not renewed or self._withdrawn:
            return
        if self._first:
            await self._succeed()
        await self._register()
        self._first = False

    async def _succeed(self) -> None:
        """Ends the lease of a former process with this id."""
        key = broker_key(self._own.broker_id)
        record = await self._store.get(key)
        if record is None:
            return
        former = decode_broker(key, record.value)
        if former.start != self._own.start:
            log.info("ending the lease of a former process of this broker", start=former.start)
            await self._store.revoke_lease(former.lease_id)

    async def _register(self) -> None:
        lease_id = self._session.lease_id
        own = self._own = msgspec.structs.replace(self._own, lease_id=lease_id)
        key, value = broker_key(own.broker_id), encode(own)
        self._revision = await self._store.put(key, value, lease_id=lease_id)
        self._following.seen(Record(key, value, self._revision))

    def _changed(self, key: str, record: Record | None) -> None:
        broker_id = key.removeprefix(BROKERS_PREFIX)
        if record is None:
            self._living.pop(broker_id, None)
        else:
            try:
                self._living[broker_id] = decode_broker(key, record.value)
            except MetadataError as error:
                log.error("broker ignored", error=str(error))
                self._living.pop(broker_id, None)
        for listener in self._listeners:
            listener(broker_id)

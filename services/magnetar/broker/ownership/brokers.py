"""The registry of living brokers: this one's entry, kept under its lease, and everybody else's.

A registration goes with its lease, or when its broker withdraws it, which it does before it stops
listening. So one that is there while its address refuses connections is that of a process which has
died. A broker that starts under the id of another puts an end to that one's lease: its address is
taken over, so it is gone.
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
    encode,
)
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.following import Following
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore, Record

log = get_logger("magnetar.ownership.brokers")


class BrokerRegistry:
    """See the module's text. A listener of the session, before the ownership."""

    def __init__(self, store: MetadataStore, session: MetadataSession, own: BrokerRecord) -> None:
        self._store = store
        self._session = session
        self._own = own
        self._living: dict[str, BrokerRecord] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._following = Following(store, BROKERS_PREFIX, self._changed)
        self._first = True
        self._revision = ABSENT
        """Of the registration as it was written here last."""
        self._withdrawn = False
        self.run = self._following.run
        self.ready = self._following.ready

    @property
    def own(self) -> BrokerRecord:
        """This broker, as it is registered now."""
        return self._own

    def living(self) -> Sequence[BrokerRecord]:
        """Every registered broker, this one included once it is, by id."""
        return [record for _, record in sorted(self._living.items())]

    def get(self, broker_id: str) -> BrokerRecord | None:
        return self._living.get(broker_id)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """`listener(broker_id)` is called when a broker came, changed or went."""
        self._listeners.append(listener)

    async def set_state(self, state: BrokerState) -> None:
        """Tells the others whether this broker may be given bundles."""
        self._own = msgspec.structs.replace(self._own, state=state)
        await self._register()

    async def withdraw(self) -> None:
        """Takes the registration away, unless another process has taken the id over; before the
        listeners are closed.
        """
        self._withdrawn = True
        with suppress(BadRevision):
            await self._store.delete(broker_key(self._own.broker_id), expected=self._revision)

    # -- the session's side

    def suspended(self) -> None:
        """The registration stands until the lease is gone: others see to that."""

    async def established(self, *, renewed: bool) -> None:
        if not renewed or self._withdrawn:
            return
        if self._first:
            await self._succeed()
        await self._register()
        self._first = False

    async def _succeed(self) -> None:
        """Ends the lease of a former process of this id."""
        key = broker_key(self._own.broker_id)
        record = await self._store.get(key)
        if record is None:
            return
        former = decode_broker(key, record.value)
        if former.start != self._own.start:
            log.info("former process of this broker was registered", start=former.start)
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

"""The settings in force: those of the process's start, and those that were changed since.

    /dynamic-settings/cluster    {"version": 1, "values": {"maxTopicsPerNamespace": "100"}}

The record belongs to the cluster: every broker follows it by a watch and applies it at once, and
reads it before it serves clients, so a change survives a restart. Values have Pulsar's keys and are
texts, as in a file. A change is a compare-and-swap; it is checked against the settings of the
broker that serves the request.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from magnetar.broker.dynamic.settings import dynamic_settings, effective, effective_parts
from magnetar.core.errors import Conflict, MetadataError, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import RecordType, encode
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore, Record
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import SettingsError

PREFIX: Final = "/dynamic-settings/"
KEY: Final = PREFIX + "cluster"
FORMAT: Final = 1
START_TIMEOUT_S: Final = 30.0
CAS_ATTEMPTS_MAX: Final = 20

NOT_DYNAMIC: Final = "Can't {} non-dynamic configuration"
"""Pulsar's text; the name of the setting follows."""

log = get_logger("magnetar.settings")


class DynamicValues(msgspec.Struct, frozen=True):
    """The record: values by key."""

    version: int
    values: dict[str, str] = {}


_record_type = RecordType(DynamicValues, "dynamic settings")


def decode_values(key: str, value: bytes) -> dict[str, str]:
    """Decodes a record; raises MetadataError if this version cannot read it."""
    record = _record_type.decode(key, value)
    if record.version > FORMAT:
        raise MetadataError(
            f"{key} has format {record.version}; this version reads up to {FORMAT}: "
            "upgrade this broker"
        )
    return record.values


class LiveSettings:
    """Follows the changes and passes the settings in force to those that use them."""

    def __init__(self, settings: BrokerSettings, store: MetadataStore) -> None:
        self._started_with = settings
        self._store = store
        self._following = Follower(store, PREFIX, self._changed)
        self._listeners: list[Callable[[BrokerSettings], None]] = []
        self.keys = dynamic_settings(type(settings))
        """The settings that can change, by key."""
        self.current = settings
        self.values: dict[str, str] = {}
        """The values that were set at run time."""

    async def start(self, tasks: TaskSet) -> None:
        """Returns once the settings that were changed before are in force."""
        tasks.start(self._following.run(), "follow settings")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._following.ready()

    def listen(self, listener: Callable[[BrokerSettings], None]) -> None:
        """Calls `listener(settings)` after each change. Exceptions are logged."""
        self._listeners.append(listener)

    async def confirm(self) -> None:
        """Brings the settings up to date with the store, before data is deleted by them."""
        cached = self._following.records.get(KEY)
        record = await self._store.get(KEY)
        if record is not None:
            self._following.seen(record)
        elif cached is not None:
            self._following.missing(KEY, cached.revision)

    async def set(self, key: str, text: str) -> None:
        """Sets a value; it is in force here on return. Raises PreconditionFailed."""
        self._check_dynamic(key, "update")

        def change(values: dict[str, str]) -> dict[str, str]:
            changed = {**values, key: text}
            try:
                effective(self._started_with, changed)
            except SettingsError as error:
                raise PreconditionFailed(f"Invalid dynamic-config value: {error}") from None
            return changed

        await self._change(change)

    async def delete(self, key: str) -> None:
        """Returns a setting to the value that each broker was started with."""
        self._check_dynamic(key, "delete")

        def change(values: dict[str, str]) -> dict[str, str]:
            changed = {name: text for name, text in values.items() if name != key}
            try:
                effective(self._started_with, changed)
            except SettingsError as error:
                raise PreconditionFailed(f"{key} cannot be deleted alone: {error}") from None
            return changed

        await self._change(change)

    def _check_dynamic(self, key: str, verb: str) -> None:
        if key not in self.keys:
            raise PreconditionFailed(
                f"{NOT_DYNAMIC.format(verb)}: brokers read {key} when they start; "
                "`brokers list-dynamic-config` lists what can change"
            )

    async def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        for _ in range(CAS_ATTEMPTS_MAX):
            record = await self._store.get(KEY)
            values = {} if record is None else decode_values(KEY, record.value)
            changed = change(values)
            if changed == values:
                return
            value = encode(DynamicValues(FORMAT, changed))
            revision = ABSENT if record is None else record.revision
            try:
                at = await self._store.put(KEY, value, expected=revision)
            except BadRevision:
                continue
            self._following.seen(Record(KEY, value, at))
            return
        raise Conflict("The dynamic settings are being changed by others; try again")

    def _changed(self, key: str, record: Record | None) -> None:
        if key != KEY:
            return
        try:
            values = {} if record is None else decode_values(key, record.value)
        except MetadataError as error:
            log.error("dynamic settings ignored", error=str(error))
            return
        settings, refused = effective_parts(self._started_with, values)
        for name, reason in refused.items():
            log.error("dynamic setting ignored", setting=name, error=reason)
        if values != self.values:
            log.info("dynamic settings", values=values)
        self.values = values
        if settings == self.current:
            return
        self.current = settings
        for listener in self._listeners:
            try:
                listener(settings)
            except Exception:
                log.exception("listener failed on a change of settings")

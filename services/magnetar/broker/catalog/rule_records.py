"""Small versioned records that administrators change over REST, each a document of the cluster.

    /balance/rules/isolation    the isolation policies (`isolation`)
    /balance/rules/domains      the failure domains (`failure_domains`)
    /balance/quotas             the resource quotas (`quotas`)

A change is a compare-and-swap of the whole record, so concurrent changes never mix.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from magnetar.core.errors import Conflict, MetadataError
from magnetar.metadata.records import RecordType, encode
from magnetar.metadata.store import ABSENT, BadRevision, Check, MetadataStore, Put, Record

CAS_ATTEMPTS_MAX: Final = 20


class VersionedRecord(msgspec.Struct, frozen=True):
    """The base of these records: each has the number of its format."""

    version: int


R = TypeVar("R", bound=VersionedRecord)


class RuleRecord(Generic[R]):
    """One such record: its key, its form, and the newest format that this version reads."""

    def __init__(self, key: str, struct: type[R], name: str, format_max: int) -> None:
        self.key = key
        self._type = RecordType(struct, name)
        self._name = name
        self._format_max = format_max

    def decode(self, record: Record) -> R:
        """Decodes the record; raises MetadataError if this version cannot read it."""
        decoded = self._type.decode(record.key, record.value)
        if decoded.version > self._format_max:
            raise MetadataError(
                f"{record.key} has format {decoded.version}; this version reads up to "
                f"{self._format_max}: upgrade this process"
            )
        return decoded

    async def read(self, store: MetadataStore) -> R | None:
        """Returns the stored record, None if there is none; raises MetadataError."""
        record = await store.get(self.key)
        return None if record is None else self.decode(record)

    async def change(
        self,
        store: MetadataStore,
        change: Callable[[R | None], R | None],
        under: Sequence[Check] = (),
    ) -> None:
        """Applies `change`, possibly repeatedly; a result of None writes nothing.

        Raises what `change` raises, Conflict, or BadRevision of a check in `under`.
        """
        for _ in range(CAS_ATTEMPTS_MAX):
            record = await store.get(self.key)
            changed = change(None if record is None else self.decode(record))
            if changed is None:
                return
            revision = ABSENT if record is None else record.revision
            try:
                await store.transact([Put(self.key, encode(changed), revision), *under])
            except BadRevision as error:
                if error.key != self.key:
                    raise
                continue
            return
        raise Conflict(f"The {self._name} are being changed by others; try again")

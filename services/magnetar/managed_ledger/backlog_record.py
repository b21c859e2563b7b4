"""Storage of the backlog job's results: `/analytics/backlog/{tenant}/{namespace}`, JSON.

Only `magnetar job backlog` writes the record (`documents.backlog.BacklogRecord`), as a whole, at
the end of a run. Brokers show it (REST, /metrics) and base no decision on it.
"""

from typing import Final

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.core.names import NamespaceName
from magnetar.documents.backlog import BacklogRecord
from magnetar.metadata.records import UNDECODABLE
from magnetar.metadata.store import MetadataStore, Record

ANALYTICS_PREFIX: Final = "/analytics/backlog/"

_decode = msgspec.json.Decoder(BacklogRecord).decode


def record_key(namespace: str) -> str:
    """Returns the record's key; `namespace` is tenant/namespace."""
    return ANALYTICS_PREFIX + namespace


def decoded(record: Record) -> BacklogRecord:
    """Returns the decoded record; raises MetadataError if it is damaged."""
    try:
        return _decode(record.value)
    except UNDECODABLE as error:
        raise MetadataError(
            f"{record.key} cannot be read: {error}; the next run of `magnetar job backlog` "
            "writes it anew"
        ) from error


async def read_backlog_record(
    store: MetadataStore, namespace: NamespaceName
) -> BacklogRecord | None:
    """Returns the newest record; None if no run covered this namespace."""
    record = await store.get(record_key(str(namespace)))
    return None if record is None else decoded(record)

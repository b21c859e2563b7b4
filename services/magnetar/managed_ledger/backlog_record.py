"""What the backlog job found out about a namespace: one small record in the metadata store.

`/analytics/backlog/{tenant}/{namespace}`, JSON in camelCase. `magnetar job backlog` alone writes
it, whole, at the end of a run; brokers show it (REST, /metrics) and decide nothing by it. So it may
be absent, old, or about topics that are gone: readers go by `at_ms`. None means not known. A field
that is missing was not written by that version of the job, one that is too many is left out.

Bounds: the job names so many subscriptions and findings as `WORST` says, whatever a namespace has.
"""

from typing import Final

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.core.names import NamespaceName
from magnetar.metadata.store import MetadataStore, Record

ANALYTICS_PREFIX: Final = "/analytics/backlog/"
WORST: Final = 20
"""Subscriptions, and findings, that a record names."""


class Behind(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription with a backlog, or one whose state cannot be read."""

    topic: str
    """A partition's with its index."""
    subscription: str
    entries: int | None = None
    bytes: int | None = None
    age_seconds: float | None = None
    trend: str = "unknown"
    growth_per_second: float | None = None
    drains_in_seconds: float | None = None


class Noticed(msgspec.Struct, frozen=True, rename="camel"):
    """Something that needs attention; `docs/backlog.md` has the kinds."""

    severity: str
    kind: str
    topic: str
    subscription: str = ""


class BacklogRecord(msgspec.Struct, frozen=True, rename="camel"):
    """See the module's text."""

    at_ms: int
    """When it was true."""
    version: int = 1
    topics: int = 0
    subscriptions: int = 0
    behind: int | None = None
    """Subscriptions with a backlog, or that cannot be read: `worst` names the first of them."""
    growing: int | None = None
    stalled: int | None = None
    unreadable: int | None = None
    expiring: int | None = None
    """Messages of these will outlive the TTL unread, or do."""
    held_bytes: int | None = None
    """On bookies, kept for subscriptions of which nothing was consumed since the run before."""
    unknown: int | None = None
    """Of those behind: where their backlog goes is not known, as in a first run."""
    backlog_entries: int = 0
    backlog_messages: int | None = None
    backlog_bytes: int = 0
    oldest_age_seconds: float | None = None
    drains_in_seconds: float | None = None
    """Until the slowest is through; None, too, where one never will be."""
    bytes_on_bookies: int = 0
    worst: list[Behind] = []
    findings: list[Noticed] = []


_decode = msgspec.json.Decoder(BacklogRecord).decode


def record_key(namespace: str) -> str:
    """`namespace` is tenant/namespace."""
    return ANALYTICS_PREFIX + namespace


def decoded(record: Record) -> BacklogRecord:
    """Raises MetadataError where it is none."""
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetadataError(
            f"{record.key} cannot be read: {error}; the next run of `magnetar job backlog` "
            "writes it anew"
        ) from error


async def read_backlog_record(
    store: MetadataStore, namespace: NamespaceName
) -> BacklogRecord | None:
    """The newest; None where there was no run over this namespace."""
    found = await store.get(record_key(str(namespace)))
    return None if found is None else decoded(found)

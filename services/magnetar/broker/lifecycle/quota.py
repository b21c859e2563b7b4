"""Backlog quotas: their limits and actions. Pure.

A topic's quota bounds the backlog of the slowest durable subscription: its bytes
(`destination_storage`) or the age of its oldest message (`message_age`). Above the limit, producers
are blocked (`producer_request_hold` and `producer_exception` differ only in what the clients do),
or the backlog is cut to nine tenths of the limit (`consumer_backlog_eviction`), as in Pulsar's
`BacklogQuotaManager`. A time limit of 0 is no limit, a byte limit of 0 allows no backlog, and -1 is
no limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

REDUCED_TENTHS: Final = 9
"""An eviction cuts a backlog to this many tenths of its limit."""
PULSAR_TEXT: Final = (
    "org.apache.pulsar.broker.service.BrokerServiceException$TopicBacklogQuotaExceededException: "
    "Cannot create producer on topic with backlog quota exceeded"
)
"""The text for a producer that is blocked by a quota."""


class QuotaType(Enum):
    """The kind of a quota; the value is the key of the policy's map."""

    SIZE = "destination_storage"
    AGE = "message_age"


class QuotaAction(Enum):
    """The action above the limit."""

    HOLD = "producer_request_hold"
    EXCEPTION = "producer_exception"
    EVICT = "consumer_backlog_eviction"

    @property
    def blocks(self) -> bool:
        """Whether the action blocks producers."""
        return self is not QuotaAction.EVICT


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit in bytes or seconds, and the action above it."""

    type: QuotaType
    limit: int
    action: QuotaAction

    @property
    def reduced(self) -> int:
        """The limit to which an eviction cuts the backlog."""
        return self.limit * REDUCED_TENTHS // 10

    def exceeded_by_size(self, backlog_bytes: int) -> bool:
        """Whether this is a quota of bytes and the backlog has reached it."""
        return self.type is QuotaType.SIZE and 0 <= self.limit <= backlog_bytes

    def exceeded_by_age(self, oldest_ms: int | None, now_ms: int) -> bool:
        """Whether the oldest message of the backlog (None: there is none) exceeds an age quota."""
        return (
            self.type is QuotaType.AGE
            and self.limit > 0
            and oldest_ms is not None
            and oldest_ms < now_ms - self.limit * 1000
        )

    def evicted_before_ms(self, now_ms: int) -> int:
        """Returns the time before which messages are evicted by an age quota."""
        return now_ms - self.reduced * 1000


def quotas_of(value: Mapping[str, Mapping[str, Any]] | None) -> tuple[Quota, ...]:
    """Converts a policy's value (`backlogQuotaMap`): its limits, sizes first.

    Old clients send the limit of a `destination_storage` quota also as `limit`.
    """
    quotas = []
    for kind in QuotaType:
        entry = (value or {}).get(kind.value)
        if entry is None:
            continue
        limit = entry.get("limitSize" if kind is QuotaType.SIZE else "limitTime")
        if kind is QuotaType.SIZE and limit is None:
            limit = entry.get("limit")
        if limit is not None and (limit > 0 or (limit == 0 and kind is QuotaType.SIZE)):
            quotas.append(Quota(kind, int(limit), QuotaAction(entry["policy"])))
    return tuple(quotas)

"""What a backlog quota says of sizes and ages. Pure.

A quota of a topic bounds the backlog of the durable subscription that is furthest behind: its bytes
(`destination_storage`) or the age of its oldest message (`message_age`). Above it producers are
kept away (`producer_request_hold`, `producer_exception`: only what their clients make of it
differs), or the backlog is cut to nine tenths of the limit (`consumer_backlog_eviction`), as
Pulsar's `BacklogQuotaManager` does. A limit on time of 0 is none, one on bytes allows no backlog;
-1 is no limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

REDUCED_TENTHS: Final = 9
"""A backlog above its limit is cut to so many tenths of it."""
PULSAR_TEXT: Final = (
    "org.apache.pulsar.broker.service.BrokerServiceException$TopicBacklogQuotaExceededException: "
    "Cannot create producer on topic with backlog quota exceeded"
)
"""What a producer that is kept away is told."""


class QuotaType(Enum):
    """What is bounded; the value is the key of the policy's map."""

    SIZE = "destination_storage"
    AGE = "message_age"


class QuotaAction(Enum):
    """What happens above the limit."""

    HOLD = "producer_request_hold"
    EXCEPTION = "producer_exception"
    EVICT = "consumer_backlog_eviction"

    @property
    def blocks(self) -> bool:
        """Whether producers are kept away."""
        return self is not QuotaAction.EVICT


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit, in bytes or in seconds, and what happens above it."""

    type: QuotaType
    limit: int
    action: QuotaAction

    @property
    def reduced(self) -> int:
        """What is left after an eviction."""
        return self.limit * REDUCED_TENTHS // 10

    def exceeded_by_size(self, backlog_bytes: int) -> bool:
        return self.type is QuotaType.SIZE and 0 <= self.limit <= backlog_bytes

    def exceeded_by_age(self, oldest_ms: int | None, now_ms: int) -> bool:
        """`oldest_ms`: when the oldest message of the backlog came; None: there is none."""
        return (
            self.type is QuotaType.AGE
            and self.limit > 0
            and oldest_ms is not None
            and oldest_ms < now_ms - self.limit * 1000
        )

    def evicted_before_ms(self, now_ms: int) -> int:
        """An eviction by age takes what came before this time."""
        return now_ms - self.reduced * 1000


def quotas_of(value: Mapping[str, Mapping[str, Any]] | None) -> tuple[Quota, ...]:
    """The limits of a policy's value (`backlogQuotaMap`), sizes first; without those that are none.

    Old clients send a `destination_storage` quota under both names of its limit (`limit`).
    """
    found = []
    for kind in QuotaType:
        entry = (value or {}).get(kind.value)
        if entry is None:
            continue
        limit = entry.get("limitSize" if kind is QuotaType.SIZE else "limitTime")
        if kind is QuotaType.SIZE and limit is None:
            limit = entry.get("limit")
        if limit is not None and (limit > 0 or (limit == 0 and kind is QuotaType.SIZE)):
            found.append(Quota(kind, int(limit), QuotaAction(entry["policy"])))
    return tuple(found)

"""The predicted effect of retention, TTL and backlog quota: the answers of `GET …/effect`.

An unpartitioned topic has an `Effect`; a partitioned topic or a namespace has `Effects`.
"""

from typing import Any

import msgspec


class Deletes(msgspec.Struct):
    """The whole ledgers that retention would delete."""

    bytes: int = 0
    ledgers: int = 0
    entries: int = 0

    def plus(self, other: "Deletes") -> "Deletes":
        """Returns the sum of both."""
        return Deletes(
            self.bytes + other.bytes, self.ledgers + other.ledgers, self.entries + other.entries
        )


class AppliedPolicies(msgspec.Struct, rename="camel"):
    """The policies that the prediction applied, with the names of the REST."""

    retention: dict[str, Any] | None = None
    message_t_t_l: int = msgspec.field(default=0, name="messageTTL")
    backlog_quota_map: dict[str, Any] | None = None


class Effect(msgspec.Struct):
    """The effect on one topic. `expires` and `evicts` count entries by subscription."""

    deletes: Deletes = msgspec.field(default_factory=Deletes)
    expires: dict[str, int] = {}
    evicts: dict[str, int] = {}
    blocks_producers: bool = False
    estimated: bool = False
    holds: AppliedPolicies = msgspec.field(default_factory=AppliedPolicies)

    @property
    def does_something(self) -> bool:
        """Whether the policies would change anything on the topic."""
        return bool(self.deletes.ledgers or self.expires or self.evicts or self.blocks_producers)


class Effects(msgspec.Struct):
    """The effect on several topics; `expires` and `evicts` are sums by subscription name."""

    deletes: Deletes = msgspec.field(default_factory=Deletes)
    expires: dict[str, int] = {}
    evicts: dict[str, int] = {}
    blocks_producers: bool = False
    estimated: bool = False
    topics_total: int = 0
    topics_affected: int = 0
    topics: dict[str, Effect] = {}
    left_off: int = 0
    from_records: int = 0
    """Topics without a current owner, whose effect was computed from their records."""

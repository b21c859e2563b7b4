"""What policies that are not set yet would do to topics now: the prediction of `magnetar plan`.

A loaded topic is asked itself, by the very functions that enforce (`enforcing.foresee`). One that
is not is known by its records; where these do not have everything, its numbers are said to be
estimates: the time of an entry is then that of its ledger, and a cursor may be further than it
seems.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from magnetar.broker.lifecycle import enforcing
from magnetar.broker.lifecycle.expiry import older_ledgers_end
from magnetar.broker.lifecycle.limits import Limits, limits_of
from magnetar.broker.lifecycle.outcome import Outcome, outcome
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.outline import Outline
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION
from magnetar.policies.policy import Policy


class Deletes(msgspec.Struct):
    """Whole ledgers, which is what retention deletes."""

    bytes: int = 0
    ledgers: int = 0
    entries: int = 0

    def plus(self, other: "Deletes") -> "Deletes":
        return Deletes(
            self.bytes + other.bytes, self.ledgers + other.ledgers, self.entries + other.entries
        )


class Holds(msgspec.Struct, rename="camel"):
    """The values that were applied, under REST's names."""

    retention: dict[str, Any] | None = None
    message_t_t_l: int = msgspec.field(default=0, name="messageTTL")
    backlog_quota_map: dict[str, Any] | None = None


class Effect(msgspec.Struct):
    """On one topic. `expires` and `evicts`: entries, by subscription."""

    deletes: Deletes = msgspec.field(default_factory=Deletes)
    expires: dict[str, int] = {}
    evicts: dict[str, int] = {}
    blocks_producers: bool = False
    estimated: bool = False
    holds: Holds = msgspec.field(default_factory=Holds)

    @property
    def does_something(self) -> bool:
        return bool(self.deletes.ledgers or self.expires or self.evicts or self.blocks_producers)


@dataclass(frozen=True, slots=True)
class Supposed:
    """Values that are to be tried; None: as it is set now.

    With `on_namespace` they are the namespace's: topics that say something themselves keep to that.
    """

    retention: dict[str, Any] | None = None
    message_ttl: int | None = None
    backlog_quota: dict[str, Any] | None = None
    on_namespace: bool = False

    def holds(self, policies: BrokerPolicies, name: TopicName) -> Holds:
        """What would hold for the topic."""

        def value(policy: Policy, supposed: Any) -> Any:
            if supposed is None:
                return policies.value(name, policy)
            own = policies.own_value(name, policy) if self.on_namespace else None
            if not policy.keyed:
                return supposed if own is None else own
            # Entry by entry: those that are not tried stay.
            return {**(policies.value(name, policy) or {}), **supposed, **(own or {})}

        return Holds(
            value(RETENTION, self.retention),
            value(MESSAGE_TTL, self.message_ttl) or 0,
            value(BACKLOG_QUOTA, self.backlog_quota),
        )


def _limits(holds: Holds) -> Limits:
    return limits_of(holds.retention, holds.message_t_t_l, holds.backlog_quota_map)


def _effect(found: Outcome, holds: Holds, *, estimated: bool) -> Effect:
    return Effect(
        Deletes(found.size_bytes, found.ledgers, found.entries),
        found.expires,
        found.evicts,
        found.blocks_producers,
        estimated,
        holds,
    )


async def on_loaded(topic: PersistentTopic, policies: BrokerPolicies, supposed: Supposed) -> Effect:
    """On a topic that is served here: exact."""
    holds = supposed.holds(policies, topic.name)
    return _effect(await enforcing.foresee(topic, _limits(holds)), holds, estimated=False)


async def on_recorded(
    name: TopicName,
    known: Outline,
    policies: BrokerPolicies,
    supposed: Supposed,
    now_ms: int,
    trim_limit: Position | None,
) -> Effect:
    """On a topic that nobody serves: what would be when it is loaded.

    `trim_limit` is compaction's horizon; None: compaction is off.
    """
    holds = supposed.holds(policies, name)
    limits = _limits(holds)
    times = RecordedTimes(known.index)
    found = await outcome(known.index, known.cursors, limits, times, now_ms, trim_limit=trim_limit)
    exact = known.exact and not limits.ttl_s and not limits.quotas
    return _effect(found, holds, estimated=not exact)


class RecordedTimes:
    """`outcome.Times` by ledgers: an entry counts as come when its ledger was closed."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index

    async def oldest_ms(self, after: Position) -> int | None:
        place = self._index.locate(after.ledger_id, after.entry_id + 1)
        return None if place is None else place[0].closed_ms or None

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        end = older_ledgers_end(self._index.infos, before_ms)
        return None if end is None or end <= after else end

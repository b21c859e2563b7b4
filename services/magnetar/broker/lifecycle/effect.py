"""Predicts the effect of policies on topics before they are set: for `magnetar plan`.

For a loaded topic, the functions of the enforcement itself compute the effect
(`enforcement.predict`). For a topic that is not loaded, it is computed from the topic's records. If
those are incomplete, the numbers are marked as estimates: an entry's time is then its ledger's, and
a cursor may be further ahead than recorded.
"""

from dataclasses import dataclass
from typing import Any

from magnetar.broker.lifecycle import enforcement
from magnetar.broker.lifecycle.expiry import older_ledgers_end
from magnetar.broker.lifecycle.limits import Limits, limits_of
from magnetar.broker.lifecycle.outcome import Outcome, outcome
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.documents.effect import AppliedPolicies, Deletes, Effect
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.outline import Outline
from magnetar.policies.lifecycle import BACKLOG_QUOTA, MESSAGE_TTL, RETENTION
from magnetar.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Supposed:
    """Policies to try; None keeps the current value.

    With `on_namespace` they are the namespace's, so a topic's own values precede them.
    """

    retention: dict[str, Any] | None = None
    message_ttl: int | None = None
    backlog_quota: dict[str, Any] | None = None
    on_namespace: bool = False

    def holds(self, policies: BrokerPolicies, name: TopicName) -> AppliedPolicies:
        """Returns the values that would apply to the topic."""

        def value(policy: Policy, supposed: Any) -> Any:
            if supposed is None:
                return policies.value(name, policy)
            own = policies.own_value(name, policy) if self.on_namespace else None
            if not policy.keyed:
                return supposed if own is None else own
            # Resolved per entry: entries that are not tried keep their values.
            return {**(policies.value(name, policy) or {}), **supposed, **(own or {})}

        return AppliedPolicies(
            value(RETENTION, self.retention),
            value(MESSAGE_TTL, self.message_ttl) or 0,
            value(BACKLOG_QUOTA, self.backlog_quota),
        )


def _limits(holds: AppliedPolicies) -> Limits:
    return limits_of(holds.retention, holds.message_t_t_l, holds.backlog_quota_map)


def _effect(prediction: Outcome, holds: AppliedPolicies, *, estimated: bool) -> Effect:
    return Effect(
        Deletes(prediction.size_bytes, prediction.ledgers, prediction.entries),
        prediction.expires,
        prediction.evicts,
        prediction.blocks_producers,
        estimated,
        holds,
    )


async def on_loaded(topic: PersistentTopic, policies: BrokerPolicies, supposed: Supposed) -> Effect:
    """Predicts the effect on a topic that this broker serves; exact."""
    holds = supposed.holds(policies, topic.name)
    return _effect(await enforcement.predict(topic, _limits(holds)), holds, estimated=False)


async def on_recorded(
    name: TopicName,
    recorded: Outline,
    policies: BrokerPolicies,
    supposed: Supposed,
    now_ms: int,
    trim_limit: Position | None,
) -> Effect:
    """Predicts the effect on a topic that no broker has loaded, as if it were loaded now.

    `trim_limit` is compaction's horizon; None: compaction is off.
    """
    holds = supposed.holds(policies, name)
    limits = _limits(holds)
    times = RecordedTimes(recorded.index)
    prediction = await outcome(
        recorded.index, recorded.cursors, limits, times, now_ms, trim_limit=trim_limit
    )
    exact = recorded.exact and not limits.ttl_s and not limits.quotas
    return _effect(prediction, holds, estimated=not exact)


class RecordedTimes:
    """`outcome.Times` from ledger records: an entry is as old as the end of its ledger."""

    def __init__(self, index: LedgerIndex) -> None:
        self._index = index

    async def oldest_ms(self, after: Position) -> int | None:
        """Returns when the ledger of the first entry after `after` was closed."""
        place = self._index.locate(after.ledger_id, after.entry_id + 1)
        return None if place is None else place[0].closed_ms or None

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        """Returns the end of the ledgers that were closed before this time."""
        end = older_ledgers_end(self._index.infos, before_ms)
        return None if end is None or end <= after else end

"""Requests from the cluster the effect that a plan's steps will have on messages.

There is one request per target, with all limits that the plan changes, because their effects depend
on each other. If a limit is removed, the limit of the level above applies: for a topic, that of its
namespace. If the effect cannot be computed, the step says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.documents import effect
from magnetar.policies.registry import BY_NAME
from magnetar_operator.admin.client import NotFound, Refused
from magnetar_operator.admin.target import ADMIN, NAMESPACE, TOPIC, Target
from magnetar_operator.admin.view import ClusterView
from magnetar_operator.catalog.plan import Action, Risk
from magnetar_operator.catalog.state import policy_of

EVICTION: Final = "consumer_backlog_eviction"
PREDICTABLE: Final = ("retention", "message_ttl", "backlog_quota")
SIZES: Final = (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_METHOD_NOT_ALLOWED: Final = 405


@dataclass(frozen=True, slots=True)
class Effect:
    """The combined effect of all limits that a plan changes."""

    is_certain: bool = True
    """False: the effect could not be computed."""
    bytes: int = 0
    ledgers: int = 0
    entries: int = 0
    topics: int = 0
    expires: int = 0
    """Entries that are acknowledged on behalf of subscriptions, summed over these."""
    blocks_producers: bool = False
    estimated: bool = False

    @property
    def loses(self) -> bool:
        return not self.is_certain or bool(self.ledgers or self.expires)

    @property
    def text(self) -> str:
        """The effect in words."""
        if not self.is_certain:
            return "may delete messages: the limit of the level above, which applies, is unknown"
        parts = []
        if self.ledgers:
            parts.append(
                f"deletes {human_bytes(self.bytes)} in {count(self.topics, 'topic')} "
                f"({count(self.ledgers, 'ledger')}, {count(self.entries, 'entry', 'entries')})"
            )
        if self.expires:
            parts.append(f"expires {count(self.expires, 'entry', 'entries')} of subscriptions")
        if self.blocks_producers:
            parts.append("blocks producers")
        if not parts:
            return "deletes nothing now"
        return ", ".join(parts) + (" (estimated)" if self.estimated else "")


def is_predictable(action: Action) -> bool:
    """Whether the cluster can compute the effect of the action."""
    entry = policy_of(action.field)
    return entry is not None and entry[0].name in PREDICTABLE


async def effect_of(
    view: ClusterView, target: Target, steps: Sequence[Action], above: Mapping[str, Any]
) -> Effect | None:
    """The effect of the steps; None if no step can delete messages.

    `above` is the document of the namespace.
    """
    limits = [action for action in steps if is_predictable(action)]
    risky = any(action.risk is Risk.MAY_DELETE_DATA for action in steps)
    if target.kind not in (TOPIC, NAMESPACE) or not risky:
        return None
    query = _query(target, limits, above)
    if not query:
        return Effect(is_certain=False)
    if target.kind == TOPIC:
        name = target.topic
        path = f"{ADMIN}/magnetar/{name.domain}/{name.namespace}/{name.encoded_local}/effect"
    else:
        path = f"{ADMIN}/magnetar/namespaces/{target.name}/effect"
    try:
        answer = await view.client.get(path, **query)
    except NotFound:
        return Effect(is_certain=False)  # the cluster is not Magnetar's
    except Refused as error:
        if error.status != _METHOD_NOT_ALLOWED:
            raise
        return Effect(is_certain=False)
    try:
        return read(answer)
    except msgspec.ValidationError:
        return Effect(is_certain=False)


def read(answer: Mapping[str, Any]) -> Effect:
    """Decodes the cluster's answer, for a topic or for several; raises ValidationError."""
    document: effect.Effect | effect.Effects
    if "topics_affected" in answer:
        document = msgspec.convert(answer, effect.Effects)
    else:
        document = msgspec.convert(answer, effect.Effect)
    counts = [*document.expires.values(), *document.evicts.values()]
    if isinstance(document, effect.Effects):
        topics = document.topics_affected
    else:
        topics = int(bool(document.deletes.ledgers or any(counts)))
    return Effect(
        bytes=document.deletes.bytes,
        ledgers=document.deletes.ledgers,
        entries=document.deletes.entries,
        topics=topics,
        expires=sum(counts),
        blocks_producers=document.blocks_producers,
        estimated=document.estimated,
    )


def _query(
    target: Target, limits: Sequence[Action], above: Mapping[str, Any]
) -> dict[str, str] | None:
    """The query with all limits; None if a removed limit's replacement is unknown."""
    query: dict[str, str] = {}
    for limit in limits:
        entry = policy_of(limit.field)
        assert entry is not None  # noqa: S101  `is_predictable`
        policy, key = entry
        value = limit.after
        if value is None and target.kind == TOPIC:
            value = above.get(BY_NAME[policy.name].document)
            value = value.get(key) if key and value else value
        if value is None:
            if limit.risk is Risk.MAY_DELETE_DATA:
                return None
            continue
        if policy.name == "retention":
            query |= {name: str(number) for name, number in value.items()}
        elif policy.name == "message_ttl":
            query["messageTTL"] = str(value)
        elif policy.name == "backlog_quota":
            size = key == "destination_storage"
            parameter = "backlogQuotaSize" if size else "backlogQuotaTime"
            query[parameter] = str(value.get("limitSize" if size else "limitTime", -1))
            query[f"{parameter}Policy"] = action = str(value.get("policy"))
            if query.get("backlogQuotaPolicy") != EVICTION:
                # A broker of an older release has one action for both quotas: the one that
                # deletes has precedence.
                query["backlogQuotaPolicy"] = action
    return query or None


def human_bytes(size: int) -> str:
    """A size in the largest unit that gives at least 1, with at most three digits."""
    for unit, factor in SIZES:
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return count(size, "byte")


def count(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun, in the singular or the plural."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"

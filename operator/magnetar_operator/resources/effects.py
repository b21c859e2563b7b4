"""What a plan's steps would do to messages, as the cluster itself foresees it.

The cluster is asked once per target, with all limits that the plan changes: what they delete and
expire depends on each other. A limit that is removed gives way to the one of the level above; of a
topic that is its namespace's, where it has one. Where nobody can say, the step says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.policies.registry import BY_NAME
from magnetar_operator.resources.admin_client import NotFound, Refused
from magnetar_operator.resources.cluster_view import ClusterView
from magnetar_operator.resources.desired import policy_of
from magnetar_operator.resources.plan import Action, Risk
from magnetar_operator.resources.targets import ADMIN, NAMESPACE, TOPIC, Target

EVICTION: Final = "consumer_backlog_eviction"
FORESEEN: Final = ("retention", "message_ttl", "backlog_quota")
SIZES: Final = (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_METHOD_NOT_ALLOWED: Final = 405


@dataclass(frozen=True, slots=True)
class Effect:
    """Of all limits that a plan changes, together. `known` is false where nobody can say."""

    known: bool = True
    bytes: int = 0
    ledgers: int = 0
    entries: int = 0
    topics: int = 0
    expires: int = 0
    """Entries, over all subscriptions, that are acknowledged for them."""
    blocks_producers: bool = False
    estimated: bool = False

    @property
    def loses(self) -> bool:
        return not self.known or bool(self.ledgers or self.expires)

    @property
    def text(self) -> str:
        """For people."""
        if not self.known:
            return "what it deletes is not known here: the level above decides"
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


def is_foreseen(action: Action) -> bool:
    """Whether the cluster can say what comes of it."""
    known = policy_of(action.field)
    return known is not None and known[0].name in FORESEEN


async def effect_of(
    view: ClusterView, target: Target, steps: Sequence[Action], above: Mapping[str, Any]
) -> Effect | None:
    """None where no step touches what can delete messages. `above`: the namespace's document."""
    limits = [one for one in steps if is_foreseen(one)]
    risky = any(one.risk is Risk.MAY_DELETE_DATA for one in steps)
    if target.kind not in (TOPIC, NAMESPACE) or not risky:
        return None
    query = _query(target, limits, above)
    if not query:
        return Effect(known=False)
    if target.kind == TOPIC:
        name = target.topic
        path = f"{ADMIN}/magnetar/{name.domain}/{name.namespace}/{name.encoded_local}/effect"
    else:
        path = f"{ADMIN}/magnetar/namespaces/{target.name}/effect"
    try:
        found = await view.client.get(path, **query)
    except NotFound:
        return Effect(known=False)  # a cluster of another kind
    except Refused as error:
        if error.status != _METHOD_NOT_ALLOWED:
            raise
        return Effect(known=False)
    return read(found)


def read(found: Mapping[str, Any]) -> Effect:
    """Of the answer, for one topic or for several."""
    deletes = found.get("deletes") or {}
    counted = [*(found.get("expires") or {}).values(), *(found.get("evicts") or {}).values()]
    ledgers = int(deletes.get("ledgers") or 0)
    return Effect(
        bytes=int(deletes.get("bytes") or 0),
        ledgers=ledgers,
        entries=int(deletes.get("entries") or 0),
        topics=int(found.get("topics_affected", 1 if ledgers or any(counted) else 0)),
        expires=sum(counted),
        blocks_producers=bool(found.get("blocks_producers")),
        estimated=bool(found.get("estimated")),
    )


def _query(
    target: Target, limits: Sequence[Action], above: Mapping[str, Any]
) -> dict[str, str] | None:
    """None where a limit goes whose successor is not known."""
    query: dict[str, str] = {}
    for one in limits:
        known = policy_of(one.field)
        assert known is not None  # noqa: S101  `is_foreseen`
        policy, key = known
        value = one.after
        if value is None and target.kind == TOPIC:
            value = above.get(BY_NAME[policy.name].document)
            value = value.get(key) if key and value else value
        if value is None:
            if one.risk is Risk.MAY_DELETE_DATA:
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
                # A broker of an older release knows one action for both: the one that deletes.
                query["backlogQuotaPolicy"] = action
    return query or None


def human_bytes(size: int) -> str:
    """In the largest unit of which there is at least one, with at most three digits."""
    for unit, one in SIZES:
        if size >= one:
            return f"{size / one:.3g} {unit}"
    return count(size, "byte")


def count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"

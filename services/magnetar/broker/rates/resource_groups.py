"""Resource groups: rates that all namespaces of a group share, over all brokers. Records; pure.

    /balance/groups/limits           {"version": 1, "groups": {"g": {…}}}, as in Pulsar's REST
    /balance/groups/usage/{broker}   {"version": 1, "groups": {"g": {…}}}, under the broker's lease

Each broker that uses a group reports its demand, and takes its share of the group's rates by the
reports of all brokers. The shares of brokers that have seen the same reports add up to the rate.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from magnetar.broker.catalog.rule_records import RuleRecord, VersionedRecord
from magnetar.core.errors import NotFound, PreconditionFailed

GROUPS_PREFIX: Final = "/balance/groups/"
USAGE_PREFIX: Final = f"{GROUPS_PREFIX}usage/"
FORMAT: Final = 1
GROUPS_MAX: Final = 500
"""Resource groups of a cluster: all are in one record."""
NAME_CHARACTERS_MAX: Final = 256
EQUAL_SHARE: Final = 0.2
"""The part of a rate that brokers share equally: what a broker without a demand has at once."""
NOT_FOUND: Final = "ResourceGroup does not exist"


class ResourceGroup(msgspec.Struct, frozen=True, rename="camel"):
    """A group's rates per second under Pulsar's names; 0 or less means no limit."""

    publish_rate_in_msgs: int = -1
    publish_rate_in_bytes: int = -1
    dispatch_rate_in_msgs: int = -1
    dispatch_rate_in_bytes: int = -1


class ResourceGroups(VersionedRecord, frozen=True):
    """All groups of the cluster, by name."""

    groups: dict[str, ResourceGroup] = msgspec.field(default_factory=dict)


class Demand(msgspec.Struct, frozen=True):
    """What the topics of a broker send and receive under a group's limits, per second."""

    publish_messages: float = 0.0
    publish_bytes: float = 0.0
    dispatch_messages: float = 0.0
    dispatch_bytes: float = 0.0


class GroupUsage(VersionedRecord, frozen=True):
    """The demand of one broker by group; only groups that it uses."""

    groups: dict[str, Demand] = msgspec.field(default_factory=dict)


LIMITS: Final = RuleRecord(f"{GROUPS_PREFIX}limits", ResourceGroups, "resource groups", FORMAT)


def usage_record(broker_id: str) -> RuleRecord[GroupUsage]:
    """Returns the record of a broker's usage."""
    return RuleRecord(USAGE_PREFIX + broker_id, GroupUsage, "usage of resource groups", FORMAT)


def with_group(
    stored: ResourceGroups | None, name: str, changes: Mapping[str, int]
) -> ResourceGroups:
    """Returns a copy with the group created, or changed in the given rates."""
    groups = dict(stored.groups) if stored else {}
    groups[name] = msgspec.structs.replace(groups.get(name, ResourceGroup()), **changes)
    if len(groups) > GROUPS_MAX:
        raise PreconditionFailed(f"At most {GROUPS_MAX} resource groups can exist")
    return ResourceGroups(FORMAT, groups)


def without_group(stored: ResourceGroups | None, name: str) -> ResourceGroups:
    """Returns a copy without the group; raises NotFound."""
    if stored is None or name not in stored.groups:
        raise NotFound(NOT_FOUND)
    kept = {other: group for other, group in stored.groups.items() if other != name}
    return ResourceGroups(FORMAT, kept)


def share(limit: float, own: float | None, others: Sequence[float]) -> float:
    """Returns this broker's part of a rate, by its own demand and that of the other brokers.

    All demands are as reported: those of brokers that have reported, so that the shares of all
    these brokers add up to `limit`. `own` is None until this broker has reported; it then has the
    whole rate if no other broker uses the group, else only its part of EQUAL_SHARE.
    """
    if limit <= 0:
        return limit
    count = len(others) + 1
    total = sum(others) + (own or 0.0)
    by_demand = (own or 0.0) / total if total > 0 else 1 / count
    return limit * (EQUAL_SHARE / count + (1 - EQUAL_SHARE) * by_demand)


def demand(taken: float, seconds: float, limit: float, share_now: float, *, waited: bool) -> float:
    """Returns what a broker would use per second, at most the whole limit.

    A broker whose senders waited wants more than it got: it reports twice its share, so that its
    share grows from report to report until it suffices or the others want as much.
    """
    rate = taken / seconds
    if waited:
        rate = 2 * max(rate, share_now)
    return min(rate, limit) if limit > 0 else rate

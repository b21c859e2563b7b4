"""Namespace isolation policies: which brokers may own the bundles of which namespaces. Pure.

    /balance/rules/isolation    {"version": 1, "policies": {"p": {…}}}, in the form of Pulsar's REST

A policy names namespaces and brokers by regular expressions, which match whole names: a namespace
`tenant/namespace`, a broker by its host or by `host:port`. The first policy by name that matches a
namespace governs it.

- A governed namespace uses the policy's primary brokers. While fewer than `min_limit` of them have
  a usage below `usage_threshold` percent, it uses the secondary ones as well.
- A primary broker of any policy is dedicated: namespaces without a policy do not use it, unless
  all brokers are dedicated. Secondary brokers are shared.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from magnetar.broker.balance.model import RULES_PREFIX
from magnetar.broker.catalog.rule_records import RuleRecord, VersionedRecord
from magnetar.core.errors import MetadataError, PreconditionFailed

FORMAT: Final = 1
POLICIES_MAX: Final = 200
"""Isolation policies of a cluster: all are in one record."""
EXPRESSIONS_MAX: Final = 100
"""Regular expressions in each list of a policy."""
EXPRESSION_CHARACTERS_MAX: Final = 256
GOVERNED_KEPT_MAX: Final = 4_096
"""Namespaces whose policy is remembered between changes of the policies."""
RETURN_MARGIN_PERCENT: Final = 10.0
"""Bundles leave secondary brokers once primary ones are this far below the usage threshold."""
MIN_AVAILABLE: Final = "min_available"

Usage = Callable[[str], float]
"""Returns the usage of a broker in percent: of its core or its memory, whichever is higher."""


class UnloadScope(StrEnum):
    """What a new or changed policy moves at once."""

    ALL_MATCHING = "all_matching"
    """All bundles of its namespaces, once, and misplaced bundles."""
    CHANGED = "changed"
    """Misplaced bundles."""
    NONE = "none"
    """Nothing: a bundle that is misplaced stays until it moves for another reason."""


class AutoFailover(msgspec.Struct, frozen=True):
    """When secondary brokers help."""

    parameters: dict[str, str | int] = msgspec.field(default_factory=dict)
    policy_type: str | None = None


class IsolationPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A policy in the form of Pulsar's REST."""

    namespaces: list[str] | None = None
    primary: list[str] | None = None
    secondary: list[str] | None = None
    auto_failover_policy: AutoFailover | None = None
    unload_scope: str | None = None

    @property
    def scope(self) -> UnloadScope:
        """What the policy moves; `changed` is the default, as in Pulsar 4."""
        return UnloadScope(self.unload_scope or UnloadScope.CHANGED)


class IsolationPolicies(VersionedRecord, frozen=True):
    """All policies of the cluster, by name."""

    policies: dict[str, IsolationPolicy] = msgspec.field(default_factory=dict)


ISOLATION: Final = RuleRecord(
    f"{RULES_PREFIX}isolation", IsolationPolicies, "isolation policies", FORMAT
)


def check_policy(name: str, policy: IsolationPolicy) -> None:
    """Raises MetadataError (400) for a policy that is incomplete or cannot be matched."""
    failover = policy.auto_failover_policy
    complete = policy.namespaces and policy.primary and policy.secondary is not None
    if not complete or failover is None:
        raise _invalid(name, "namespaces, primary, secondary and auto_failover_policy are required")
    if failover.policy_type != MIN_AVAILABLE:
        raise _invalid(name, f"policy_type of auto_failover_policy must be {MIN_AVAILABLE}")
    for parameter in ("min_limit", "usage_threshold"):
        if not re.fullmatch(r"-?[0-9]{1,9}", str(failover.parameters.get(parameter, ""))):
            raise _invalid(name, f"the parameter {parameter} must be a whole number")
    if policy.unload_scope not in (None, *UnloadScope):
        raise _invalid(name, f"unload_scope must be one of {', '.join(UnloadScope)}")
    for field in ("namespaces", "primary", "secondary"):
        expressions = getattr(policy, field)
        if len(expressions) > EXPRESSIONS_MAX:
            raise _invalid(name, f"{field} has more than {EXPRESSIONS_MAX} expressions")
        for expression in expressions:
            if len(expression) > EXPRESSION_CHARACTERS_MAX:
                raise _invalid(
                    name, f"{field} has more than {EXPRESSION_CHARACTERS_MAX} characters"
                )
            try:
                _compiled(expression)
            except ValueError as error:
                raise _invalid(name, f"{field} has {expression!r}: {error}") from error


def check_limits(name: str, policy: IsolationPolicy) -> None:
    """Raises MetadataError (400) if a new policy has a parameter that can never act.

    Not a part of `check_policy`: a policy that an earlier version has stored stays in force.
    """
    parameters = policy.auto_failover_policy.parameters if policy.auto_failover_policy else {}
    if int(parameters["min_limit"]) < 0:
        raise _invalid(name, "the parameter min_limit must be 0 or more")
    if int(parameters["usage_threshold"]) < 0:  # above 100: a broker counts however busy it is
        raise _invalid(name, "the parameter usage_threshold must be 0 or more percent")


def normalized(policy: IsolationPolicy) -> IsolationPolicy:
    """Returns the policy with its parameters as texts, as Pulsar stores them."""
    failover = policy.auto_failover_policy
    if failover is None:
        return policy
    parameters: dict[str, str | int] = {
        key: str(value) for key, value in failover.parameters.items()
    }
    failover = msgspec.structs.replace(failover, parameters=parameters)
    return msgspec.structs.replace(policy, auto_failover_policy=failover)


def _invalid(name: str, why: str) -> MetadataError:
    return MetadataError(
        f"Invalid format of input policy data. policy: {name}; {why}", http_status=400
    )


def with_policy(
    stored: IsolationPolicies | None, name: str, policy: IsolationPolicy
) -> IsolationPolicies:
    """Returns a copy with the policy; raises PreconditionFailed at the bound."""
    policies = {**(stored.policies if stored else {}), name: policy}
    if len(policies) > POLICIES_MAX:
        raise PreconditionFailed(f"At most {POLICIES_MAX} isolation policies can exist")
    return IsolationPolicies(FORMAT, policies)


def without_policy(stored: IsolationPolicies | None, name: str) -> IsolationPolicies | None:
    """Returns a copy without the policy, None if there is none."""
    if stored is None or name not in stored.policies:
        return None
    kept = {other: policy for other, policy in stored.policies.items() if other != name}
    return IsolationPolicies(FORMAT, kept)


class Expression(Protocol):
    """A compiled expression."""

    def fullmatch(self, text: str, /) -> object | None:
        """Matches the whole text; None if it does not match."""


def _compiled(expression: str) -> Expression:
    """Compiles an expression; raises ValueError.

    The syntax is RE2's, which matches in linear time: tenants choose the names of namespaces, and
    must not be able to stall brokers by one.
    """
    import re2

    try:
        result: Expression = re2.compile(expression)
    except re2.error as error:
        raise ValueError(str(error)) from error
    return result


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """A policy that matches names."""

    name: str
    policy: IsolationPolicy
    namespaces: tuple[Expression, ...]
    primary: tuple[Expression, ...]
    secondary: tuple[Expression, ...]
    min_limit: int
    usage_threshold: int

    @classmethod
    def of(cls, name: str, policy: IsolationPolicy) -> "CompiledPolicy":
        """Compiles a checked policy; raises MetadataError for another one."""
        check_policy(name, policy)
        failover = policy.auto_failover_policy or AutoFailover()
        return cls(
            name,
            policy,
            tuple(map(_compiled, policy.namespaces or ())),
            tuple(map(_compiled, policy.primary or ())),
            tuple(map(_compiled, policy.secondary or ())),
            int(failover.parameters["min_limit"]),
            int(failover.parameters["usage_threshold"]),
        )

    def governs(self, namespace: str) -> bool:
        """Whether the policy applies to the namespace."""
        return any(pattern.fullmatch(namespace) for pattern in self.namespaces)

    def has_primary(self, broker: str) -> bool:
        """Whether the broker is a primary one."""
        return _matches(self.primary, broker)

    def has_secondary(self, broker: str) -> bool:
        """Whether the broker is a secondary one and not a primary one."""
        return _matches(self.secondary, broker) and not self.has_primary(broker)

    def brokers(self, brokers: Sequence[str], usage: Usage, margin: float = 0.0) -> list[str]:
        """Returns the brokers that the policy's namespaces may use, of those that live."""
        primary = [broker for broker in brokers if self.has_primary(broker)]
        most = self.usage_threshold - margin
        available = sum(usage(broker) < most for broker in primary)
        if available >= self.min_limit:
            return primary
        return primary + [broker for broker in brokers if self.has_secondary(broker)]


def _matches(patterns: Iterable[Expression], broker: str) -> bool:
    host = broker.rpartition(":")[0]
    return any(pattern.fullmatch(host) or pattern.fullmatch(broker) for pattern in patterns)


class Isolation:
    """The policies of a cluster, in force."""

    def __init__(self, policies: Mapping[str, IsolationPolicy]) -> None:
        """Compiles the policies; raises MetadataError."""
        self.policies = tuple(
            CompiledPolicy.of(name, policy) for name, policy in sorted(policies.items())
        )
        self.governing = lru_cache(GOVERNED_KEPT_MAX)(self._governing)

    def _governing(self, namespace: str) -> CompiledPolicy | None:
        """Returns the policy that applies to the namespace."""
        return next((policy for policy in self.policies if policy.governs(namespace)), None)

    def dedicating(self, broker: str) -> list[CompiledPolicy]:
        """Returns the policies that have the broker as a primary one."""
        return [policy for policy in self.policies if policy.has_primary(broker)]

    def allowed(self, namespace: str, brokers: Sequence[str], usage: Usage) -> list[str]:
        """Returns the brokers that may own bundles of the namespace, of those that live."""
        if not self.policies:
            return list(brokers)
        policy = self.governing(namespace)
        if policy is not None:
            return policy.brokers(brokers, usage)
        return [broker for broker in brokers if not self.dedicating(broker)] or list(brokers)

    def misplaced(self, namespace: str, own: str, brokers: Sequence[str], usage: Usage) -> bool:
        """Whether a bundle of the namespace must leave the broker `own`.

        False if there is no other broker for it, or if the policies concerned have the scope
        `none`. A bundle stays on a secondary broker until the primary ones have room to spare.
        """
        if not self.policies:
            return False
        policy = self.governing(namespace)
        if policy is None:
            reasons = self.dedicating(own)
            allowed: Collection[str] = self.allowed(namespace, brokers, usage)
        else:
            reasons = [policy]
            allowed = policy.brokers(brokers, usage, RETURN_MARGIN_PERCENT)
        moved = any(reason.policy.scope is not UnloadScope.NONE for reason in reasons)
        return moved and own not in allowed and bool(allowed)

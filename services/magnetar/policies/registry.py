"""All policies, in groups and by name; see `policy.Policy` for their attributes."""

from types import MappingProxyType
from typing import Final

from magnetar.policies.admission import ADMISSION
from magnetar.policies.caps import CAPS
from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.policies.lifecycle import LIFECYCLE
from magnetar.policies.policy import Level, Policy, Rest
from magnetar.policies.rates import RATES

GROUPS: Final = MappingProxyType(
    {
        "How long": LIFECYCLE,
        "How fast": RATES,
        "How many": CAPS,
        "Who and what": (*ADMISSION, ENTRY_FILTERS),
    }
)
POLICIES: Final[tuple[Policy, ...]] = tuple(policy for group in GROUPS.values() for policy in group)

BY_NAME: Final = MappingProxyType({policy.name: policy for policy in POLICIES})
BY_MANIFEST: Final = MappingProxyType({policy.manifest: policy for policy in POLICIES})


def rest_of(policy: Policy, level: Level) -> Rest | None:
    """Returns the policy's REST paths at that level, None if it cannot be set there."""
    return policy.namespace if level is Level.NAMESPACE else policy.topic


def at(level: Level) -> tuple[Policy, ...]:
    """Returns the policies that can be set at that level."""
    return tuple(policy for policy in POLICIES if rest_of(policy, level) is not None)

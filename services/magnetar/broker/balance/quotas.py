"""Resource quotas: the load that an administrator assigns to bundles, for the planner. Pure.

    /balance/quotas    {"version": 1, "default": {…}, "bundles": {"t/n/0x00000000_0x40000000": {…}}}

A quota with `dynamic` gives way to what is measured, which the planner always has. A fixed quota
(`dynamic` false) replaces a bundle's measured rates when the planner divides a broker's load among
its bundles, so it decides which bundles move. It never replaces what a split is decided on, nor the
load of a broker. A bundle without a quota of its own has the default one.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from magnetar.broker.balance.model import BALANCE_PREFIX, BundleLoad, namespace_of
from magnetar.broker.catalog.rule_records import RuleRecord, VersionedRecord
from magnetar.core.errors import PreconditionFailed

QUOTAS_MAX: Final = 1_000
"""Bundles with a quota of their own: all are in one record."""
FORMAT: Final = 1


class ResourceQuota(msgspec.Struct, frozen=True, rename="camel"):
    """A bundle's load under Pulsar's names: per second, bytes per second, and megabytes."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0
    memory: float = 0.0
    dynamic: bool = True

    def check(self) -> None:
        """Raises PreconditionFailed if a value is negative, or would have no effect."""
        for field in self.__struct_fields__[:-1]:
            if not getattr(self, field) >= 0:
                name = msgspec.structs.fields(self)[self.__struct_fields__.index(field)].encode_name
                raise PreconditionFailed(f"{name} of a resource quota must not be negative")
        if self.memory and not self.dynamic:
            raise PreconditionFailed(
                "memory of a fixed resource quota must be 0: the memory of bundles is not measured"
            )

    def load_of(self, bundle: str) -> BundleLoad:
        """Returns the load that the quota assigns to the bundle."""
        return BundleLoad(
            bundle,
            msg_rate_in=self.msg_rate_in,
            msg_rate_out=self.msg_rate_out,
            msg_throughput_in=self.bandwidth_in,
            msg_throughput_out=self.bandwidth_out,
        )


QUOTA_DEFAULT: Final = ResourceQuota(40.0, 120.0, 100_000.0, 300_000.0, 80.0, dynamic=True)
"""Pulsar's, while none is set."""


class Quotas(VersionedRecord, frozen=True):
    """All quotas of the cluster."""

    default: ResourceQuota | None = None
    bundles: dict[str, ResourceQuota] = msgspec.field(default_factory=dict)

    def of(self, bundle: str) -> ResourceQuota:
        """Returns the quota in force for a bundle."""
        return self.bundles.get(bundle) or self.default or QUOTA_DEFAULT


NO_QUOTAS: Final = Quotas(FORMAT)
QUOTAS: Final = RuleRecord(f"{BALANCE_PREFIX}quotas", Quotas, "resource quotas", FORMAT)

FixedLoad = Callable[[str], BundleLoad | None]
"""Returns the load that a fixed quota assigns to a bundle, None if what is measured holds."""


def fixed_loads(quotas: Quotas | None) -> FixedLoad:
    """Returns the loads of the fixed quotas."""
    if quotas is None:
        return lambda _: None

    def fixed(bundle: str) -> BundleLoad | None:
        quota = quotas.of(bundle)
        return None if quota.dynamic else quota.load_of(bundle)

    return fixed


def with_default(quotas: Quotas | None, quota: ResourceQuota) -> Quotas:
    """Returns a copy with another default."""
    return msgspec.structs.replace(quotas or NO_QUOTAS, default=quota)


def with_bundle(
    quotas: Quotas | None, bundle: str, quota: ResourceQuota, existing: Mapping[str, object]
) -> Quotas:
    """Returns a copy with the bundle's quota, without those of its namespace's former bundles.

    `existing` has the bundles that the namespace has now. Raises PreconditionFailed at the bound.
    """
    quotas, namespace = quotas or NO_QUOTAS, namespace_of(bundle)
    kept = {
        name: value
        for name, value in quotas.bundles.items()
        if namespace_of(name) != namespace or name in existing
    }
    kept[bundle] = quota
    if len(kept) > QUOTAS_MAX:
        raise PreconditionFailed(
            f"At most {QUOTAS_MAX} bundles can have a resource quota: reset one that is not needed"
        )
    return msgspec.structs.replace(quotas, bundles=kept)


def without_bundle(quotas: Quotas, bundle: str) -> Quotas:
    """Returns a copy without the bundle's quota."""
    kept = {name: value for name, value in quotas.bundles.items() if name != bundle}
    return msgspec.structs.replace(quotas, bundles=kept)


def without_namespace(quotas: Quotas | None, namespace: str) -> Quotas | None:
    """Returns a copy without the quotas of a deleted namespace, None if it has none."""
    if quotas is None:
        return None
    kept = {
        name: value for name, value in quotas.bundles.items() if namespace_of(name) != namespace
    }
    if len(kept) == len(quotas.bundles):
        return None
    return msgspec.structs.replace(quotas, bundles=kept)

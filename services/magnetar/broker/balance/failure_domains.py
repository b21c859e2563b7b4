"""Failure domains: groups of brokers that may fail together, such as those of a zone. Pure.

    /balance/rules/domains    {"version": 1, "domains": {"d": {"brokers": ["host:port"]}}}

A broker is named by `host:port` or by its host, and is in one domain at most. Brokers without a
domain form one of their own.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from magnetar.broker.balance.model import RULES_PREFIX
from magnetar.broker.catalog.rule_records import RuleRecord, VersionedRecord
from magnetar.core.errors import Conflict, PreconditionFailed

FORMAT: Final = 1
BROKERS_MAX: Final = 2_000
"""Brokers in all failure domains: all are in one record."""
NAME_CHARACTERS_MAX: Final = 256
NO_DOMAIN: Final = ""

DomainOf = Callable[[str], str]
"""Returns the failure domain of a broker."""


class FailureDomain(msgspec.Struct, frozen=True):
    """A domain in the form of Pulsar's REST."""

    brokers: list[str] = msgspec.field(default_factory=list)


class FailureDomains(VersionedRecord, frozen=True):
    """All domains of the cluster, by name."""

    domains: dict[str, FailureDomain] = msgspec.field(default_factory=dict)


DOMAINS: Final = RuleRecord(f"{RULES_PREFIX}domains", FailureDomains, "failure domains", FORMAT)


def with_domain(stored: FailureDomains | None, name: str, brokers: Iterable[str]) -> FailureDomains:
    """Returns a copy with the domain; raises Conflict if another one has one of its brokers."""
    domains = dict(stored.domains) if stored else {}
    members = sorted(set(brokers))
    for other, domain in sorted(domains.items()):
        shared = [broker for broker in members if broker in domain.brokers]
        if other != name and shared:
            raise Conflict(f"[{', '.join(shared)}] already exists in {other}")
    domains[name] = FailureDomain(members)
    for broker in (name, *members):
        if not 0 < len(broker) <= NAME_CHARACTERS_MAX:
            raise PreconditionFailed(
                f"A domain or broker has a name of 1 to {NAME_CHARACTERS_MAX} characters"
            )
    if len(domains) + sum(len(domain.brokers) for domain in domains.values()) > BROKERS_MAX:
        raise PreconditionFailed(f"Failure domains can have at most {BROKERS_MAX} brokers in all")
    return FailureDomains(FORMAT, domains)


def without_domain(stored: FailureDomains, name: str) -> FailureDomains:
    """Returns a copy without the domain."""
    return FailureDomains(
        FORMAT, {other: domain for other, domain in stored.domains.items() if other != name}
    )


def domains_of(stored: FailureDomains | None) -> DomainOf:
    """Returns the domain of each broker."""
    by_broker = {
        broker: name
        for name, domain in (stored.domains if stored else {}).items()
        for broker in domain.brokers
    }

    def domain_of(broker: str) -> str:
        by_host = by_broker.get(broker.rpartition(":")[0], NO_DOMAIN)
        return by_broker.get(broker, by_host)

    return domain_of

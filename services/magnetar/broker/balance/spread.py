"""Anti-affinity: spreads the namespaces of one group over failure domains, then over brokers. Pure.

Of the brokers that may own a bundle, those are preferred whose failure domain has the fewest other
namespaces of the group, and among these the brokers with the fewest. If the namespace already has
bundles in such a domain, only its brokers are preferred: a namespace that is spread over all
domains would be hit by every failure. A preference never excludes the last broker.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from magnetar.broker.balance.failure_domains import DomainOf

Owners = Mapping[str, Collection[str]]
"""The namespaces of the group that have bundles on a broker, by broker."""


def preferred(
    namespace: str, brokers: Sequence[str], owners: Owners, domain_of: DomainOf
) -> list[str]:
    """Returns the brokers on which a bundle of the namespace spreads its group best."""
    if not brokers:
        return []
    others_in: dict[str, set[str]] = defaultdict(set)
    own_domains = set()
    for broker, namespaces in owners.items():
        others_in[domain_of(broker)] |= set(namespaces) - {namespace}
        if namespace in namespaces:
            own_domains.add(domain_of(broker))
    fewest = min(len(others_in[domain_of(broker)]) for broker in brokers)
    candidates = [broker for broker in brokers if len(others_in[domain_of(broker)]) == fewest]
    same = [broker for broker in candidates if domain_of(broker) in own_domains]
    candidates = same or candidates
    others_on = {broker: len(set(owners.get(broker, ())) - {namespace}) for broker in candidates}
    fewest = min(others_on.values())
    return [broker for broker in candidates if others_on[broker] == fewest]

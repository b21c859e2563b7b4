"""What administrators have set about the placement of bundles, in force on this broker.

Every broker follows `/balance/rules/` and applies the rules when it chooses the owner of a bundle,
claims one, or plans a move. A record that cannot be read leaves the former rules in force.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from magnetar.broker.balance.failure_domains import DOMAINS, NO_DOMAIN, domains_of
from magnetar.broker.balance.isolation import ISOLATION, Isolation, UnloadScope, Usage
from magnetar.broker.balance.model import RULES_PREFIX, LoadReport
from magnetar.broker.balance.spread import Owners, preferred
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.follower import Follower
from magnetar.metadata.store import MetadataStore, Record

NO_ISOLATION: Final = Isolation({})

log = get_logger("magnetar.balance")


def usage_by(reports: Callable[[str], LoadReport | None]) -> Usage:
    """Returns the usage of brokers by their load reports; 0 for a broker without one."""

    def usage(broker_id: str) -> float:
        report = reports(broker_id)
        return 0.0 if report is None else 100 * max(report.cpu, report.memory)

    return usage


def unknown_usage(_broker_id: str) -> float:
    """Returns the usage of a broker whose load nothing reports."""
    return 0.0


class PlacementRules:
    """The rules of the cluster, by a watch; implements `ownership.api.Rules`."""

    def __init__(
        self, store: MetadataStore, usage: Usage = unknown_usage, *, uses_domains: bool = True
    ) -> None:
        self.uses_domains = uses_domains
        """Whether failure domains count (`failure_domains`)."""
        self.domain_of = domains_of(None)
        """Returns the failure domain of a broker."""
        self._usage = usage
        self._isolation = NO_ISOLATION
        self._unloading: dict[str, int] = {}
        """Policies whose namespaces are unloaded, with the revision of the change."""
        self._listeners: list[Callable[[], None]] = []
        self._listed = False
        self._following = Follower(store, RULES_PREFIX, self._changed)
        self.run = self._following.run

    async def ready(self) -> None:
        """Returns once all rules are in force."""
        await self._following.ready()
        self._listed = True

    @property
    def active(self) -> bool:
        """Whether there is any rule."""
        return bool(self._isolation.policies)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` after each change."""
        self._listeners.append(listener)

    def allowed(self, namespace: str, brokers: Sequence[str]) -> Collection[str]:
        """Returns the brokers that may own bundles of the namespace, of those that live."""
        return self._isolation.allowed(namespace, brokers, self._usage)

    def misplaced(self, namespace: str, own: str, brokers: Sequence[str]) -> bool:
        """Whether a bundle of the namespace must leave the broker `own` for another one."""
        return self._isolation.misplaced(namespace, own, brokers, self._usage)

    def preferred(self, namespace: str, brokers: Sequence[str], owners: Owners) -> Collection[str]:
        """Returns the brokers on which a bundle spreads its namespace's anti-affinity group best.

        `owners` has the namespaces of the group by the brokers of their bundles.
        """
        domain_of = self.domain_of if self.uses_domains else (lambda _: NO_DOMAIN)
        return preferred(namespace, brokers, owners, domain_of)

    def policy_name(self, namespace: str) -> str:
        """Returns the name of the namespace's isolation policy, empty if it has none."""
        policy = self._isolation.governing(namespace)
        return "" if policy is None else policy.name

    def take_unloading(self) -> Callable[[str, int], bool]:
        """Returns whether a changed policy unloads (namespace, revision of a claim); forgets it.

        A policy with the scope `all_matching` unloads all bundles of its namespaces that were
        claimed before it changed, so that no bundle moves twice.
        """
        changed, self._unloading = self._unloading, {}
        isolation = self._isolation

        def unloads(namespace: str, claimed: int) -> bool:
            policy = isolation.governing(namespace)
            return policy is not None and claimed < changed.get(policy.name, 0)

        return unloads

    def _changed(self, key: str, record: Record | None) -> None:
        if key == DOMAINS.key:
            self._domains_changed(record)
        elif key == ISOLATION.key:
            self._isolation_changed(record)

    def _domains_changed(self, record: Record | None) -> None:
        try:
            self.domain_of = domains_of(None if record is None else DOMAINS.decode(record))
        except MetadataError as error:
            log.error("failure domains not applied", error=str(error))

    def _isolation_changed(self, record: Record | None) -> None:
        try:
            stored = None if record is None else ISOLATION.decode(record)
            isolation = Isolation({} if stored is None else stored.policies)
        except MetadataError as error:
            log.error("isolation policies not applied", error=str(error))
            return
        before = {policy.name: policy.policy for policy in self._isolation.policies}
        self._isolation = isolation
        if self._listed and record is not None:
            self._unloading |= {
                policy.name: record.revision
                for policy in isolation.policies
                if policy.policy.scope is UnloadScope.ALL_MATCHING
                and before.get(policy.name) != policy.policy
            }
        for listener in self._listeners:
            listener()

"""The parts of a broker that explaining reads, and the level at which a policy is set."""

from dataclasses import dataclass

from magnetar.broker.cold.offload import Offloading
from magnetar.broker.explain.refusals import RecentRefusals
from magnetar.broker.explain.state import PolicyValue
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.transactions.api import TransactionRecords
from magnetar.core.names import TopicName
from magnetar.core.steady_clock import SteadyClock
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Parts:
    """What the state is gathered from."""

    ledgers: ManagedLedgerFactory
    clock: SteadyClock
    policies: BrokerPolicies
    offloading: Offloading
    records: TransactionRecords
    refusals: RecentRefusals

    def policy(self, topic: TopicName, policy: Policy) -> PolicyValue:
        """Returns the value in force, and the level at which it is set."""
        own = self.policies.own_value(topic, policy)
        of_namespace = self.policies.namespace_value(topic.namespace, policy)
        value = self.policies.value(topic, policy)
        if own is not None:
            hidden = of_namespace if of_namespace != value else None
            return PolicyValue(policy.name, value, "topic", hidden)
        default = self.policies.broker_default(policy)
        level = "broker" if of_namespace == default else "namespace"
        return PolicyValue(policy.name, value, level)

"""The parts that all topics of a broker share."""

from dataclasses import dataclass

from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.rates.broker_limits import BrokerLimits
from magnetar.broker.rates.chain import Limiters
from magnetar.broker.rates.group_limits import GroupLimits
from magnetar.broker.rates.held_sends import HeldBudget
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.topic.deduplication.limits import DeduplicationLimits
from magnetar.broker.topic.delayed.limits import DelayLimits
from magnetar.broker.topic.entry_stamp import EntryStamp
from magnetar.broker.transactions.api import TransactionRecords
from magnetar.core.names import NamespaceName
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet


@dataclass(frozen=True, slots=True)
class TopicContext:
    """The broker's parts that a topic uses.

    `subscription_limits` apply unless a policy overrides them. `stamp`, if set, puts broker entry
    metadata (PIP-70) before each entry.
    """

    clock: SteadyClock
    tasks: TaskSet
    schemas: TopicSchemas
    policies: BrokerPolicies
    subscription_limits: SubscriptionLimits
    held: HeldBudget
    limits: BrokerLimits
    groups: GroupLimits
    message_bytes_max: int
    deduplication: DeduplicationLimits
    delays: DelayLimits
    stamp: EntryStamp | None = None
    encryption_required: bool = False
    """Whether producers must encrypt, whatever the policies say."""
    transactions: TransactionRecords | None = None
    """The records of transactions, also while transactions are off."""

    def publishing(self, namespace: NamespaceName) -> Limiters:
        """The limiters that publishes pass after the topic's own, from narrow to wide."""
        group = self.policies.resource_group(namespace)
        return (*self.groups.publishing(group), *self.limits.publishing)

    def dispatching(self, namespace: NamespaceName) -> Limiters:
        """The limiters that dispatches pass after the topic's own, from narrow to wide."""
        group = self.policies.resource_group(namespace)
        return (*self.groups.dispatching(group), *self.limits.dispatching)

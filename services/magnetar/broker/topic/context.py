"""What every topic of a broker shares."""

from dataclasses import dataclass

from magnetar.broker.entry_stamp import EntryStamp
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.rates.held import HeldBudget
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet


@dataclass(frozen=True, slots=True)
class TopicContext:
    """Handed to each topic when it is opened.

    `subscription_limits` are those without a policy. `stamp`, where set, puts broker entry metadata
    (PIP-70) before each entry of a run.
    """

    clock: SteadyClock
    tasks: TaskSet
    schemas: TopicSchemas
    policies: BrokerPolicies
    subscription_limits: SubscriptionLimits
    held: HeldBudget
    message_bytes_max: int
    throttle_tailing: bool = True
    stamp: EntryStamp | None = None

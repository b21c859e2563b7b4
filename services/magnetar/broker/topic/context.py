"""What every topic of a broker shares."""

from dataclasses import dataclass

from magnetar.broker.entry_stamp import EntryStamp
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.core.clock import Clock
from magnetar.core.tasks import TaskSet


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Caps of one topic; 0 means none."""

    producers_per_topic_max: int = 0
    subscriptions_per_topic_max: int = 0
    consumers_per_topic_max: int = 0


@dataclass(frozen=True, slots=True)
class TopicContext:
    """Handed to each topic when it is opened.

    `stamp`, where set, puts broker entry metadata (PIP-70) before each entry of a run.
    """

    clock: Clock
    tasks: TaskSet
    schemas: TopicSchemas
    policies: BrokerPolicies
    limits: TopicLimits
    subscription_limits: SubscriptionLimits
    stamp: EntryStamp | None = None

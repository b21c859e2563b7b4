"""What a consumer asks for when it attaches, apart from the consumer itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.schema.model import SchemaInfo
from magnetar.broker.subscription.spec import ConsumerSpec
from magnetar.broker.topic.context import TopicLimits
from magnetar.core.errors import ConsumerBusy
from magnetar.core.ids import Position


@dataclass(slots=True)
class SubscribeRequest:
    """One SUBSCRIBE command, in our words.

    `start`: where a non-durable subscription begins, as the position of the first entry that it
    wants to see (EARLIEST and LATEST included); None follows `from_earliest`.
    """

    subscription: str
    spec: ConsumerSpec
    durable: bool = True
    from_earliest: bool = False
    start: Position | None = None
    rollback_s: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    schema: SchemaInfo | None = None
    auto_create: bool = True


class HasConsumers(Protocol):
    """A subscription of either kind."""

    @property
    def consumers(self) -> Sequence[object]: ...


def check_consumer_limit(limits: TopicLimits, subscriptions: Iterable[HasConsumers]) -> None:
    """Raises ConsumerBusy where the topic has as many consumers as it may."""
    limit = limits.consumers_per_topic_max
    if limit and sum(len(subscription.consumers) for subscription in subscriptions) >= limit:
        raise ConsumerBusy("Topic reached max consumers limit")

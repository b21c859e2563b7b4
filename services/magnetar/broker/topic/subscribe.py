"""What a consumer asks for when it attaches, apart from the consumer itself."""

from dataclasses import dataclass, field

from magnetar.broker.schema.model import SchemaInfo
from magnetar.broker.subscription.spec import ConsumerSpec
from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position


class SubscriptionExists(PreconditionFailed):
    """A subscription of that name is there already."""

    http_status = 409


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

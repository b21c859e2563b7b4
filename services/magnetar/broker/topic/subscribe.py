"""A consumer's request to subscribe, apart from the consumer itself."""

from dataclasses import dataclass, field

from magnetar.broker.subscription.spec import ConsumerSpec
from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.schemas.model import SchemaInfo


class SubscriptionExists(PreconditionFailed):
    """A subscription of that name already exists."""

    http_status = 409


@dataclass(slots=True)
class SubscribeRequest:
    """A decoded SUBSCRIBE command.

    `start` is the position of the first entry that a non-durable subscription reads (EARLIEST and
    LATEST included); if it is None, `from_earliest` decides.
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

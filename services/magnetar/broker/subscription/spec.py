"""The consumer's part of a SUBSCRIBE command. The enums have the protocol's numbers."""

from dataclasses import dataclass, field
from enum import IntEnum

from magnetar.core.ids import Position


class SubType(IntEnum):
    """How a subscription shares its messages among its consumers."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3

    @property
    def individual_only(self) -> bool:
        """Whether consumers ack individually, so that cumulative acks have no meaning."""
        return self is SubType.Shared or self is SubType.Key_Shared


class KeySharedMode(IntEnum):
    """How hash ranges are assigned: by the broker, or by the consumers (STICKY)."""

    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(slots=True)
class KeySharedSpec:
    """`KeySharedMeta`: `ranges` are inclusive, within 0 to 65,535, and only used by STICKY."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False


@dataclass(slots=True)
class ConsumerSpec:
    """A decoded SUBSCRIBE command, as far as the subscription uses it."""

    consumer_id: int
    name: str
    sub_type: SubType = SubType.Exclusive
    priority_level: int = 0
    durable: bool = True
    read_compacted: bool = False
    key_shared: KeySharedSpec | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    consumer_epoch: int | None = None
    start_message_id: Position | None = None
    app_id: str = ""
    has_schema: bool = True
    """False for AUTO_CONSUME, which accepts any schema of the topic."""

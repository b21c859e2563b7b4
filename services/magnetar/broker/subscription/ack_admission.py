"""Decides which positions may be acknowledged."""

from collections.abc import Sequence

from magnetar.broker.subscription.api import AckPosition
from magnetar.core.errors import ServiceNotReady
from magnetar.core.ids import Position


def check_stored(positions: Sequence[AckPosition], last: Position, subscription: str) -> None:
    """Raises ServiceNotReady for an entry beyond `last`, the last one that this broker knows.

    A broker that has lost the topic without knowing it gets such acks: their message ids are those
    of its successor. The cursor ignores them, so they must get no receipt.
    """
    for ledger_id, entry_id, _, _ in positions:
        if (ledger_id, entry_id) > last:
            raise ServiceNotReady(
                f"{ledger_id}:{entry_id} is beyond the last message {last} of {subscription}: "
                "attach again and repeat the acknowledgment"
            )

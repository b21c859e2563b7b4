"""How a command is refused before it is handled: in its own response, or else by ERROR."""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.session import consumers, discovery, schemas, transactions
from magnetar.broker.session.session import Session
from magnetar.core.errors import MagnetarError
from magnetar.wire.commands import CommandType

Refuse = Callable[[Session, Any, MagnetarError], None]

REFUSALS: Final[dict[int, Refuse]] = {
    CommandType.LOOKUP: discovery.refuse_lookup,
    CommandType.PARTITIONED_METADATA: discovery.refuse_partitioned_metadata,
    CommandType.GET_SCHEMA: schemas.refuse_schema,
    CommandType.GET_OR_CREATE_SCHEMA: schemas.refuse_registration,
    CommandType.CONSUMER_STATS: consumers.refuse_stats,
    **transactions.refusals(),
}
"""The commands whose refusal is in their own response. For the others, raise the error."""

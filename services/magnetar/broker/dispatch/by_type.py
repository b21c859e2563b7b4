"""The dispatcher of each subscription type."""

from typing import Final

from magnetar.broker.dispatch.base import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single import ExclusiveDispatcher, FailoverDispatcher
from magnetar.broker.subscription.spec import SubType

DISPATCHERS: Final[dict[SubType, type[Dispatcher]]] = {
    SubType.Exclusive: ExclusiveDispatcher,
    SubType.Failover: FailoverDispatcher,
    SubType.Shared: SharedDispatcher,
    SubType.Key_Shared: KeySharedDispatcher,
}

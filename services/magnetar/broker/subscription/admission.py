"""Decides which consumers may share a subscription. Texts are Pulsar's."""

from magnetar.broker.subscription.spec import KeySharedSpec, SubType
from magnetar.core.errors import ConsumerBusy

DIFFERENT_TYPE = "Subscription is of different type. "


def check_type(active: SubType, requested: SubType) -> None:
    """Raises ConsumerBusy if the attached consumers have another type."""
    if active is not requested:
        raise ConsumerBusy(
            f"{DIFFERENT_TYPE}Active subscription type of '{active.name}' is different than the "
            f"connecting consumer's type '{requested.name}'."
        )


def check_key_shared(active: KeySharedSpec, requested: KeySharedSpec) -> None:
    """Raises ConsumerBusy if the attached consumers have another Key_Shared policy."""
    if requested.mode is not active.mode:
        raise ConsumerBusy(
            f"{DIFFERENT_TYPE}Active subscription key_shared mode of '{active.mode.name}' is "
            f"different than the connecting consumer's key_shared mode '{requested.mode.name}'."
        )
    if active.allow_out_of_order and not requested.allow_out_of_order:
        raise ConsumerBusy(
            f"{DIFFERENT_TYPE}Active subscription allows out of order delivery while the "
            "connecting consumer does not allow it."
        )
    if requested.allow_out_of_order and not active.allow_out_of_order:
        raise ConsumerBusy(
            f"{DIFFERENT_TYPE}Active subscription does not allow out of order delivery while the "
            "connecting consumer allows it."
        )


def check_room(max_consumers: int, attached: int) -> None:
    """Raises ConsumerBusy if no more consumers are allowed; 0 allows any number."""
    if 0 < max_consumers <= attached:
        raise ConsumerBusy("Subscription reached max consumers limit")

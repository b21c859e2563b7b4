"""The properties of a topic's log that belong to the broker; clients neither see nor set them."""

from collections.abc import Iterable, Mapping
from typing import Final

from magnetar.core.errors import PreconditionFailed
from magnetar.managed_ledger.record import WATERMARK_PROPERTY

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
OWN_PROPERTIES: Final = (EPOCH_PROPERTY, WATERMARK_PROPERTY)


def without_own(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that clients see."""
    return {key: value for key, value in properties.items() if key not in OWN_PROPERTIES}


def check_keys(keys: Iterable[str]) -> None:
    """Raises PreconditionFailed if clients must not change one of these properties."""
    for key in keys:
        if key in OWN_PROPERTIES:
            raise PreconditionFailed(f"Property {key} belongs to the broker: choose another key")

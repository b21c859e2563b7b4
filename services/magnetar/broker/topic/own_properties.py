"""The properties of a topic's log that belong to the broker; clients neither see nor set them."""

from collections.abc import Iterable, Mapping
from typing import Final

from magnetar.core.errors import NotAllowed, PreconditionFailed
from magnetar.managed_ledger.record import WATERMARK_PROPERTY

EPOCH_PROPERTY: Final = "pulsar.topic.epoch"
INDEX_PROPERTY: Final = "magnetar.message-index"
"""The index of the next message when ledgers were last trimmed (PIP-70)."""
OWN_PROPERTIES: Final = (EPOCH_PROPERTY, INDEX_PROPERTY, WATERMARK_PROPERTY)
SHADOW_PROPERTY: Final = "PULSAR.SHADOW_SOURCE"
"""With it, `pulsar-admin topics create-shadow-topic` creates a shadow of another topic."""


def without_own(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that clients see."""
    return {key: value for key, value in properties.items() if key not in OWN_PROPERTIES}


def check_keys(keys: Iterable[str]) -> None:
    """Raises PreconditionFailed if clients must not change one of these properties.

    Raises NotAllowed for the one that would make the topic a shadow.
    """
    for key in keys:
        if key == SHADOW_PROPERTY:
            raise NotAllowed(
                "Shadow topics are not supported: a topic's ledgers belong to one topic. Create "
                f"the topic without the property {SHADOW_PROPERTY}"
            )
        if key in OWN_PROPERTIES:
            raise PreconditionFailed(f"Property {key} belongs to the broker: choose another key")

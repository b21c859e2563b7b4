"""One module per promise; each yields the findings of a whole history."""

from collections.abc import Callable, Iterator
from typing import Final

from tests.history.finding import Finding
from tests.history.index import Index
from tests.history.rules import (
    acks,
    beginnings,
    deletions,
    delivery_order,
    exclusive_producer,
    ids,
    invented,
    lost,
    one_active,
    one_place,
    receipt_order,
    redelivery_counts,
    unacked,
)

Rule = Callable[[Index], Iterator[Finding]]

RULES: Final[dict[str, Rule]] = {
    rule.RULE: rule.check
    for rule in (
        invented,
        ids,
        receipt_order,
        lost,
        unacked,
        acks,
        delivery_order,
        one_place,
        one_active,
        exclusive_producer,
        beginnings,
        deletions,
        redelivery_counts,
    )
}

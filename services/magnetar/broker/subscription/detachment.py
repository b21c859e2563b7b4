"""Detaches the consumers of a cursor while it moves, and closes them afterwards.

A client attaches again a tenth of a second after CLOSE_CONSUMER. If the answer to its SEEK came
later than that, clients in C++ would drop the messages that the new attachment has brought.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from magnetar.broker.subscription.consumer import Consumer


@contextmanager
def closed_afterwards(
    consumers: Iterable[Consumer], remove: Callable[[Consumer], object]
) -> Iterator[None]:
    """Removes the consumers, so that they get no messages, and closes them after the block."""
    detached = list(consumers)
    for consumer in detached:
        remove(consumer)
    try:
        yield
    finally:
        for consumer in detached:
            consumer.sink.close_consumer(consumer.spec.consumer_id, None)

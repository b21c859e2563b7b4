"""Consume, process, produce: each input counts once in the output, whatever fails meanwhile.

The results and the acknowledgment of their input are one transaction. If the process dies, or a
broker does, the transaction is aborted: its results are never visible, and the input comes again.
The brokers need transactionCoordinatorEnabled=true.
"""

import logging
from collections.abc import Callable, Iterable

from magnetar.client import Client, InitialPosition
from magnetar.client.errors import TransactionError

log = logging.getLogger("exactly_once")


async def process(
    url: str,
    source: str,
    sink: str,
    function: Callable[[bytes], Iterable[bytes]],
    *,
    limit: int = 0,
) -> None:
    """Sends what `function` makes of each message; ends after `limit` messages, 0 never."""
    done = 0
    async with (
        Client(url) as client,
        client.consumer(
            source, "process", initial_position=InitialPosition.EARLIEST, negative_ack_delay_s=1.0
        ) as consumer,
        client.producer(sink) as producer,
    ):
        async for message in consumer:
            try:
                async with client.transaction() as txn:
                    for result in function(message.value):
                        await producer.send(result, key=message.key, transaction=txn)
                    await consumer.ack(message, transaction=txn)
            except (TransactionError, ValueError) as error:
                log.warning("%s comes again: %s", message.id, error)
                await consumer.nack(message)
                continue
            done += 1
            if done == limit:
                return

"""The blocking form of the client: the same names, options and types, without `await`.

    from magnetar.client.sync import Client

    with Client("pulsar://localhost:6650") as client:
        with client.producer("orders") as producer:
            message_id = producer.send(b"hello", key="1")
        with client.consumer("orders", "billing") as consumer:
            for message in consumer:
                consumer.ack(message)

Options, schemas, message ids and errors are those of `magnetar.client`. The classes are generated
from the asyncio ones (`make sync`). A client runs them in one thread, which ends with it.
"""

from magnetar.client.sync.client import Client
from magnetar.client.sync.consumer import Consumer
from magnetar.client.sync.producer import Producer
from magnetar.client.sync.reader import Reader
from magnetar.client.sync.table_view import TableView
from magnetar.client.sync.transaction import Transaction

__all__ = ["Client", "Consumer", "Producer", "Reader", "TableView", "Transaction"]

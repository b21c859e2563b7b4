"""What official clients see here that Apache Pulsar 4.2 does not give them.

These tests follow from Magnetar's promises; run against a Pulsar they fail.
"""

import httpx
import pulsar
import pytest
from pulsar import ConsumerType as Type

from .support import bodies, numbered, take, unload


@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_acks_inside_a_batch_outlive_the_topic_closing(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    """An ack is never undone. Pulsar forgets those of half-acked batches when it unloads."""
    consumer = client.subscribe(topic, "sub", kind, batch_index_ack_enabled=True)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=5000
    )
    for payload in numbered(10):
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    for message in take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    unload(admin, topic)
    consumer = client.subscribe(topic, "sub", kind, batch_index_ack_enabled=True)
    assert bodies(take(consumer, 5, ack=True)) == numbered(10)[1::2]

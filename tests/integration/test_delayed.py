"""Delayed messages outlive kill -9: each is delivered once, and none before its time."""

import time
from pathlib import Path

import pulsar
from tests.support.server_process import ServerProcess

TOPIC = "persistent://public/default/delayed"
MESSAGES = 200
DELAY_MS = 8_000
SPREAD_MS = 20
"""Between the delivery times of two messages, so that some are due before the restart is over."""
TICK_MS = 1_000
PATIENCE_MS = 60_000


def test_delayed_messages_outlive_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = pulsar.Client(server.service_url)
        consumer = client.subscribe(TOPIC, "one", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(TOPIC)
        first_ms = int(time.time() * 1000) + DELAY_MS
        times_ms = {b"%d" % n: first_ms + (n * 37) % MESSAGES * SPREAD_MS for n in range(MESSAGES)}
        for content, at_ms in times_ms.items():
            producer.send(content, deliver_at=at_ms)
        producer.send(b"at once")
        message = consumer.receive(PATIENCE_MS)
        assert message.data() == b"at once"
        consumer.acknowledge(message)
        server.kill()
        server.start()
        late = client.subscribe(
            TOPIC,
            "two",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for each in (consumer, late):
            received: list[bytes] = []
            while len(received) < MESSAGES:
                message = each.receive(PATIENCE_MS)
                content = bytes(message.data())
                if content == b"at once":
                    continue  # its ack had no receipt, and the other subscription never had it
                assert time.time() * 1000 >= times_ms[content] - TICK_MS
                received.append(content)
                each.acknowledge(message)
            assert sorted(received) == sorted(times_ms)
        client.close()

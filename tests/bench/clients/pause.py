"""pause URL TOPIC SECONDS [connected|new]: the longest time in which no receipt came.

`connected` sends a message every 10 ms and prints the longest gap, and `ready` once it has
its first receipt. `new` tries to attach and send until it can, and prints how long that took.
"""

import json
import sys
import time

import pulsar
from tests.bench.clients.connection import connect

PACE_S = 0.01
SEND_TIMEOUT_MS = 120_000


def connected(url: str, topic: str, seconds: float) -> float:
    """The longest gap between two receipts, in seconds."""
    client = connect(url, pulsar.LoggerLevel.Error)
    producer = client.create_producer(
        topic, batching_enabled=False, send_timeout_millis=SEND_TIMEOUT_MS
    )
    producer.send(b"first")
    print("ready", flush=True)
    longest, last = 0.0, time.monotonic()
    end = last + seconds
    while last < end:
        producer.send(b"x" * 100)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        time.sleep(PACE_S)
        last = time.monotonic()
    client.close()
    return longest


def new(url: str, topic: str, seconds: float) -> float:
    """Seconds until a producer that did not exist before has a receipt."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        client = connect(url, pulsar.LoggerLevel.Error, operation_timeout_seconds=5)
        try:
            client.create_producer(topic, send_timeout_millis=5_000).send(b"x")
            return time.monotonic() - begun
        except pulsar.PulsarException:
            time.sleep(PACE_S)
        finally:
            client.close()
    return seconds


if __name__ == "__main__":
    measure = {"connected": connected, "new": new}[sys.argv[4]]
    print(json.dumps({"pause_s": measure(sys.argv[1], sys.argv[2], float(sys.argv[3]))}))

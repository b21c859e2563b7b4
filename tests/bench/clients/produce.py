"""produce URL TOPIC COUNT SIZE batched|unbatched: async sends, all receipts awaited."""

import json
import sys
import threading
import time

import pulsar
from tests.bench.clients.connection import connect


def main(url: str, topic: str, count: int, size: int, mode: str) -> None:
    client = connect(url)
    producer = client.create_producer(
        topic,
        max_pending_messages=10_000,
        block_if_queue_full=True,
        batching_enabled=mode == "batched",
    )
    payload = b"x" * size
    answered = bad = 0
    done = threading.Event()

    def answer(result: pulsar.Result, _id: pulsar.MessageId) -> None:
        nonlocal answered, bad
        answered += 1
        bad += result != pulsar.Result.Ok
        if answered == count:
            done.set()

    started = time.perf_counter()
    for _ in range(count):
        producer.send_async(payload, answer)
    producer.flush()
    done.wait(120)
    seconds = time.perf_counter() - started
    client.close()
    print(json.dumps({"messages": count, "bad": bad, "rate": round(count / seconds)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])

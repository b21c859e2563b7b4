"""latency URL TOPIC RATE SECONDS SIZE: unbatched sends at a rate, and when they arrive."""

import json
import struct
import sys
import threading
import time

import pulsar
from tests.bench.clients.connection import connect

WARM_UP_S = 2


def main(url: str, topic: str, rate: int, seconds: int, size: int) -> None:
    client = connect(url)
    warm, total = WARM_UP_S * rate, (seconds + WARM_UP_S) * rate
    end_to_end: list[int] = []
    receipts: list[int] = []
    done = threading.Event()

    def received(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        now = time.perf_counter_ns()
        end_to_end.append(now - struct.unpack(">Q", message.data()[:8])[0])
        consumer.acknowledge(message)
        if len(end_to_end) >= total:
            done.set()

    client.subscribe(topic, "latency", message_listener=received)
    producer = client.create_producer(topic, batching_enabled=False)
    padding = b"x" * (size - 8)
    started = time.perf_counter()
    for index in range(total):
        while (wait := started + index / rate - time.perf_counter()) > 0:
            time.sleep(wait)
        sent = time.perf_counter_ns()
        producer.send_async(
            struct.pack(">Q", sent) + padding,
            lambda _result, _id, sent=sent: receipts.append(time.perf_counter_ns() - sent),
        )
    producer.flush()
    done.wait(20)
    client.close()

    def percentile(values: list[int], part: float) -> float:
        ordered = sorted(values[warm:])
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1e6, 3)

    figures = {
        "sent": total,
        "received": len(end_to_end),
        "e2e_p50_ms": percentile(end_to_end, 0.5),
        "e2e_p99_ms": percentile(end_to_end, 0.99),
        "receipt_p50_ms": percentile(receipts, 0.5),
        "receipt_p99_ms": percentile(receipts, 0.99),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))

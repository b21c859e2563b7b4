"""The publisher process of the demo: sends all flights in order, with the official client.

It has no send timeout. While the server is down, the client keeps the messages without a receipt;
it resends them in order once the server is back. `demo.run` starts this process.
"""

import argparse
import sys
import threading
from functools import partial

import pulsar

from magnetar.cli.demo.flights import load
from magnetar.cli.demo.reports import RECEIPT, SENT, Report, Writer

PENDING_MAX = 2_000
REPORT_EVERY = 200
BATCH_DELAY_MS = 5


class Publisher:
    """Sends flights and reports their receipts."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._receipts: list[Report] = []
        self._failure: str | None = None

    def run(self, producer: pulsar.Producer, limit: int) -> None:
        """Sends the first `limit` flights and waits for every receipt."""
        sent = 0
        for flight in load(limit):
            receipted = partial(self._receipted, flight.number)
            producer.send_async(flight.payload, receipted, partition_key=flight.key)
            sent += 1
            if sent % REPORT_EVERY == 0:
                self._report(REPORT_EVERY)
        producer.flush()
        self._report(sent % REPORT_EVERY)

    def _receipted(self, number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        """Called on the client's thread."""
        with self._lock:
            if result != pulsar.Result.Ok:
                self._failure = f"flight {number}: {result}"
                return
            position = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
            self._receipts.append(Report(RECEIPT, message_id.partition(), number, *position))

    def _report(self, sent: int) -> None:
        with self._lock:
            receipts, self._receipts = self._receipts, []
            failure = self._failure
        self._writer.write([Report(SENT, number=sent), *receipts])
        if failure is not None:
            raise SystemExit(f"publisher: {failure}")


def main() -> int:
    """Runs until all flights are receipted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--log", required=True)
    args = parser.parse_args()
    writer = Writer(args.report_fd)
    client = pulsar.Client(
        args.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, args.log)
    )
    producer = client.create_producer(
        args.topic,
        send_timeout_millis=0,
        block_if_queue_full=True,
        max_pending_messages=PENDING_MAX,
        batching_enabled=args.batching,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
    )
    Publisher(writer).run(producer, args.limit)
    client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

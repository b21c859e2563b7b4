"""One of the demo's consumers, a process of its own, with the official client.

Gets what there is, reports it, acks it, in that order: so a message that was acked was reported,
whenever the process is killed. SIGTERM makes it leave in order. Run by `demo/run.py`.
"""

import argparse
import signal
import sys
import time
from types import FrameType

import pulsar

from magnetar.cli.demo.flights import checksum, number_of
from magnetar.cli.demo.reports import ACKED, SEEN, Report, Writer

QUEUE_MESSAGES_MAX = 500
TAKEN_AT_ONCE_MAX = 200
TAKEN_BYTES_MAX = 1 << 20
WAIT_MS = 20


class Consumer:
    """Receives until it is told to leave."""

    def __init__(self, consumer: pulsar.Consumer, writer: Writer) -> None:
        self._consumer = consumer
        self._writer = writer
        self._leaving = False

    def leave(self, _signal: int, _frame: FrameType | None) -> None:
        self._leaving = True

    def run(self) -> None:
        while not self._leaving:
            messages = self._consumer.batch_receive()
            if not messages:
                continue
            self._writer.write([self._sighting(message) for message in messages])
            for message in messages:
                self._consumer.acknowledge(message)
            self._writer.write([Report(ACKED)])

    def _sighting(self, message: pulsar.Message) -> Report:
        payload = message.data()
        return Report(
            SEEN,
            max(message.message_id().partition(), 0),
            number_of(payload),
            time.monotonic_ns(),
            checksum(message.partition_key(), payload),
        )


def main() -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--subscription", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--log", required=True)
    args = parser.parse_args()
    client = pulsar.Client(
        args.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, args.log)
    )
    subscribed = client.subscribe(
        args.topic,
        args.subscription,
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name=args.name,
        receiver_queue_size=QUEUE_MESSAGES_MAX,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(
            TAKEN_AT_ONCE_MAX, TAKEN_BYTES_MAX, WAIT_MS
        ),
    )
    consumer = Consumer(subscribed, Writer(args.report_fd))
    signal.signal(signal.SIGTERM, consumer.leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    consumer.run()
    client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

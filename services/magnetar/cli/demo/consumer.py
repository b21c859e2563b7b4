"""A consumer process of the demo, with the official client. `demo.run` starts it.

It receives messages, reports them and then acks them, so that every acked message was reported,
even if the process is killed. SIGTERM makes it close its consumer and exit.
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
BATCH_MESSAGES_MAX = 200
BATCH_BYTES_MAX = 1 << 20
WAIT_MS = 20


class Consumer:
    """Receives, reports and acks messages until `leave`."""

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
            BATCH_MESSAGES_MAX, BATCH_BYTES_MAX, WAIT_MS
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

"""The load: official clients that write numbered messages and read them, and note what they saw.

Runs as a process of its own, which nobody kills: `produce` or `consume`. Each line of the output
is one observation: `R topic number ledger:entry:batch sent received` for a receipt, `G topic number
ledger:entry:batch redelivered at` for a message got, `E topic what` for an error that the client
showed its user. A line on stdin ends it: producers wait for what is under way, consumers go on
until nothing comes. `D topic number` says how many messages a producer sent.
"""

import argparse
import hashlib
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pulsar
from tests.chaos import recording
from tests.chaos.recording import Histories
from tests.history.events import Drained, Kind
from tests.history.storage import Writer

IN_FLIGHT_MAX = 100
"""Messages of one topic without a receipt."""
QUIET_S = 5.0
FINISH_TIMEOUT_S = 120.0
RETRY_S = 0.2


def payload(topic: str, number: int) -> bytes:
    """A message: it says what it is, and the rest follows from that."""
    head = f"{topic}|{number}|".encode()
    digest = hashlib.blake2b(head, digest_size=32).digest()
    return head + digest * (1 + number % 16)


def parse(data: bytes) -> tuple[str, int]:
    """Raises ValueError where these are not the bytes that were sent."""
    topic, number, _ = data.split(b"|", 2)
    name, index = topic.decode(), int(number)
    if data != payload(name, index):
        raise ValueError(f"{name} {index}: other bytes than were sent")
    return name, index


def batched(topic: str) -> bool:
    """Whether its producer sends batches; else its messages have keys."""
    return zlib.crc32(topic.encode()) % 2 == 0


def id_text(message_id: pulsar.MessageId) -> str:
    """`ledger:entry:batch`."""
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"


class Log:
    """Lines from many threads."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._lock = threading.Lock()

    def write(self, *words: object) -> None:
        with self._lock:
            self._output.write(" ".join(map(str, words)) + "\n")
            self._output.flush()


class Producer(threading.Thread):
    """Writes one topic at a steady rate, in order, whatever happens."""

    def __init__(
        self,
        client: pulsar.Client,
        topic: str,
        rate: float,
        log: Log,
        history: Writer,
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"produce {topic}", daemon=True)
        self._client, self._topic, self._rate, self._log = client, topic, rate, log
        self._history, self._ending = history, stop
        self._window = threading.Semaphore(IN_FLIGHT_MAX)
        self._batching = batched(topic)
        self._open: dict[int, float] = {}
        """When each message without a receipt was sent."""
        self._lock = threading.Lock()

    def _attach(self) -> pulsar.Producer:
        while True:
            try:
                return self._client.create_producer(
                    self._topic,
                    send_timeout_millis=0,
                    batching_enabled=self._batching,
                    batching_max_publish_delay_ms=5,
                    block_if_queue_full=True,
                )
            except pulsar.PulsarException as error:
                self._log.write("E", self._topic, f"create_producer:{type(error).__name__}")
                time.sleep(RETRY_S)

    def _receipt(
        self, number: int, sent: float
    ) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def received(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            with self._lock:
                self._open.pop(number, None)
            self._window.release()
            if result == pulsar.Result.Ok:
                now = time.monotonic()
                self._log.write("R", self._topic, number, id_text(message_id), sent, now)
                self._note(number, sent, message_id)
            else:
                self._note(number, sent, None)
                self._log.write("E", self._topic, f"send:{result}")

        return received

    def _key(self, number: int) -> str | None:
        return None if self._batching else recording.key_of(number)

    def _note(self, number: int, sent: float, receipt: pulsar.MessageId | None) -> None:
        what = (self._topic, number, self._key(number) or "", payload(self._topic, number))
        self._history.write(recording.produced(*what, sent, receipt))

    def run(self) -> None:
        producer = self._attach()
        number, begun = 0, time.monotonic()
        while not self._ending.is_set():
            self._window.acquire()
            now = time.monotonic()
            with self._lock:
                self._open[number] = now
            receipt = self._receipt(number, now)
            data, key = payload(self._topic, number), self._key(number)
            producer.send_async(data, receipt, partition_key=key)
            number += 1
            ahead = number / self._rate - (time.monotonic() - begun)
            if ahead > 0:
                self._ending.wait(min(ahead, 1.0))
        producer.flush()
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while self._open and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._open:
            self._log.write("E", self._topic, f"never-answered:{len(self._open)}")
            for unanswered, sent in list(self._open.items()):
                self._note(unanswered, sent, None)
        self._log.write("D", self._topic, number)


def produce(url: str, topics: list[str], rate: float, log: Log, histories: Histories) -> None:
    """Writes until a line comes on stdin."""
    client = pulsar.Client(url, io_threads=1, logger=None, operation_timeout_seconds=30)
    stop = threading.Event()
    producers = [Producer(client, topic, rate, log, histories.of(topic), stop) for topic in topics]
    for producer in producers:
        producer.start()
    sys.stdin.readline()
    stop.set()
    for producer in producers:
        producer.join()
    client.close()


def consume(url: str, topics: list[str], subscription: str, log: Log, histories: Histories) -> None:
    """Reads and acks everything until a line comes on stdin and it has been quiet for a while."""
    client = pulsar.Client(url, io_threads=1, logger=None, operation_timeout_seconds=30)
    heard = [time.monotonic()]

    def got(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        heard[0] = time.monotonic()
        history = histories.of(consumer.topic())
        session = f"{subscription}#{consumer.topic()}"
        history.write(recording.received(session, message))
        try:
            topic, number = parse(message.data())
        except ValueError as error:
            log.write("E", consumer.topic(), f"bytes:{error}")
            return
        at = f"{message.redelivery_count()} {heard[0]}"
        log.write("G", topic, number, id_text(message.message_id()), at)
        history.write(recording.acked(session, message.message_id()))
        consumer.acknowledge(message)

    consumers = []
    for topic in topics:
        begun = time.monotonic()
        while True:
            try:
                consumers.append(
                    client.subscribe(
                        topic,
                        subscription,
                        consumer_type=pulsar.ConsumerType.Failover,
                        initial_position=pulsar.InitialPosition.Earliest,
                        message_listener=got,
                    )
                )
                attached = recording.subscribed(topic, subscription, Kind.FAILOVER, begun)
                histories.of(topic).write(attached)
                break
            except pulsar.PulsarException as error:
                log.write("E", topic, f"subscribe:{type(error).__name__}")
                time.sleep(RETRY_S)
    log.write("D", "-", "attached")
    sys.stdin.readline()
    while time.monotonic() - heard[0] < QUIET_S:
        time.sleep(0.1)
    for topic in topics:
        histories.of(topic).write(Drained(topic, subscription, time.monotonic()))
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("produce", "consume"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rate", type=float, default=50.0, help="messages/s of each topic")
    parser.add_argument("--subscription", default="chaos")
    parser.add_argument("topics", nargs="+")
    args = parser.parse_args()
    with open(args.out, "a") as output, Histories(Path(args.out), args.topics) as histories:
        log = Log(output)
        if args.what == "produce":
            produce(args.url, args.topics, args.rate, log, histories)
        else:
            consume(args.url, args.topics, args.subscription, log, histories)


if __name__ == "__main__":
    main()

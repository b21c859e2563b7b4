"""Runs in a pod: producers and consumers with the official client, and a count of every receipt.

Each topic has one producer thread, which sends a number, waits for the receipt, and sends the same
number again where none came; and one consumer, which acknowledges all. A second subscription, made
before the first message and never read until the end, holds everything: `audit` reads it then.

`status.json` is written every half second; what is in `mark` names the window that longest pauses
are counted in; the file `stop` ends production, lets consumers finish and writes `result.json`.
Takes SERVICE_URL, TOPICS, RATE (per topic and second) and PADDING_BYTES from the environment, and
of a closed cluster TRUST_FILE and TOKEN_FILE, which is read again whenever a token is wanted.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pulsar

HERE = Path(os.environ.get("LOAD_DIRECTORY", "/tmp"))  # noqa: S108 - the pod's own
SEND_TIMEOUT_S = 10
RETRY_PAUSE_S = 0.1
STATUS_EVERY_S = 0.5
RECEIVE_TIMEOUT_MS = 500
DRAIN_S_MAX = 90.0
AUDIT_SILENCE_S_MAX = 60.0
SHOWN_MAX = 20


class Topic:
    """What one topic was sent and what came back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receipted = 0
        """Numbers 0 to this, without it, have a receipt."""
        self.seen = 0
        """All numbers below were received."""
        self.early: set[int] = set()
        self.duplicates = 0
        self.disorder = 0
        self.errors = 0
        self.last = time.monotonic()
        self.pause = 0.0
        self.receipt_at = 0.0
        """The Unix time of the last receipt, for people."""

    def receipt(self) -> None:
        self.receipted += 1
        now = time.monotonic()
        self.pause = max(self.pause, now - self.last)
        self.last = now
        self.receipt_at = time.time()

    def received(self, number: int) -> None:
        if number < self.seen or number in self.early:
            self.duplicates += 1
            return
        if number != self.seen:
            self.disorder += 1
        self.early.add(number)
        while self.seen in self.early:
            self.early.discard(self.seen)
            self.seen += 1

    def longest(self) -> float:
        return max(self.pause, time.monotonic() - self.last)


def produce(client: pulsar.Client, topic: Topic, stop: threading.Event) -> None:
    every = 1.0 / float(os.environ["RATE"])
    padding = os.urandom(int(os.environ["PADDING_BYTES"]) // 2).hex()
    producer = None
    while not stop.is_set():
        began = time.monotonic()
        try:
            if producer is None:
                producer = client.create_producer(
                    topic.name, send_timeout_millis=SEND_TIMEOUT_S * 1000, batching_enabled=False
                )
            producer.send(f"{topic.receipted} {padding}".encode())
        except pulsar.PulsarException as error:
            topic.errors += 1
            print(f"{topic.name}: send of {topic.receipted}: {error!r}", flush=True)
            stop.wait(RETRY_PAUSE_S)
            continue
        topic.receipt()
        stop.wait(max(0.0, every - (time.monotonic() - began)))


def consume(client: pulsar.Client, topic: Topic, stop: threading.Event) -> None:
    consumer = None
    while not stop.is_set():
        try:
            if consumer is None:
                consumer = client.subscribe(topic.name, "load")
            message = consumer.receive(timeout_millis=RECEIVE_TIMEOUT_MS)
            topic.received(int(message.data().split(b" ", 1)[0]))
            consumer.acknowledge(message)
        except pulsar.Timeout:
            continue
        except pulsar.PulsarException as error:
            print(f"{topic.name}: receive: {error!r}", flush=True)
            stop.wait(RETRY_PAUSE_S)


def audit(client: pulsar.Client, topic: Topic) -> list[int]:
    """Which receipted numbers the subscription that kept everything does not give."""
    missing = set(range(topic.receipted))
    consumer = client.subscribe(topic.name, "audit", receiver_queue_size=2000)
    deadline = time.monotonic() + AUDIT_SILENCE_S_MAX
    while missing and time.monotonic() < deadline:
        try:
            message = consumer.receive(timeout_millis=RECEIVE_TIMEOUT_MS)
        except pulsar.Timeout:
            continue
        deadline = time.monotonic() + AUDIT_SILENCE_S_MAX
        missing.discard(int(message.data().split(b" ", 1)[0]))
    consumer.close()
    return sorted(missing)


def write(name: str, content: object) -> None:
    fresh = HERE / f"{name}.new"
    fresh.write_text(json.dumps(content))
    fresh.replace(HERE / name)


def status(topics: list[Topic], mark: str) -> dict[str, object]:
    return {
        "mark": mark,
        "receipted": sum(each.receipted for each in topics),
        "received": sum(each.seen + len(each.early) for each in topics),
        "longest_pause_s": round(max(each.longest() for each in topics), 2),
        "errors": sum(each.errors for each in topics),
        "receipt_at": max(each.receipt_at for each in topics),
    }


def watch(topics: list[Topic]) -> None:
    """Until the file `stop` is there."""
    mark = ""
    while not (HERE / "stop").exists():
        asked = (HERE / "mark").read_text() if (HERE / "mark").exists() else ""
        if asked != mark:
            mark = asked
            for each in topics:
                each.pause, each.last = 0.0, time.monotonic()
        write("status.json", status(topics, mark))
        time.sleep(STATUS_EVERY_S)


def connected() -> pulsar.Client:
    """A client with the credentials of the environment."""
    options: dict[str, object] = {}
    if trust := os.environ.get("TRUST_FILE"):
        options |= {"tls_trust_certs_file_path": trust, "tls_validate_hostname": True}
    if token := os.environ.get("TOKEN_FILE"):
        supplier = Path(token).read_text
        options["authentication"] = pulsar.AuthenticationToken(lambda: supplier().strip())
    return pulsar.Client(
        os.environ["SERVICE_URL"],
        operation_timeout_seconds=SEND_TIMEOUT_S,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
        **options,
    )


def main() -> int:
    client = connected()
    topics = [Topic(name) for name in os.environ["TOPICS"].split(",")]
    for each in topics:
        for subscription in ("audit", "load"):
            client.subscribe(each.name, subscription, receiver_queue_size=1).close()
        each.last = time.monotonic()
    ending, ended = threading.Event(), threading.Event()
    producers = [threading.Thread(target=produce, args=(client, t, ending)) for t in topics]
    consumers = [threading.Thread(target=consume, args=(client, t, ended)) for t in topics]
    for thread in producers + consumers:
        thread.start()
    watch(topics)
    ending.set()
    for thread in producers:
        thread.join()
    deadline = time.monotonic() + DRAIN_S_MAX
    while any(each.seen < each.receipted for each in topics) and time.monotonic() < deadline:
        time.sleep(STATUS_EVERY_S)
    ended.set()
    for thread in consumers:
        thread.join()
    missing = {each.name: audit(client, each) for each in topics}
    result = {
        **status(topics, "end"),
        "not_received": sum(max(0, each.receipted - each.seen) for each in topics),
        "lost": sum(map(len, missing.values())),
        "lost_first": {name: numbers[:SHOWN_MAX] for name, numbers in missing.items() if numbers},
        "duplicates": sum(each.duplicates for each in topics),
        "disorder": sum(each.disorder for each in topics),
    }
    write("result.json", result)
    print(json.dumps(result), flush=True)
    client.close()
    # What is asked for after the end is read from the files: the pod stays.
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())

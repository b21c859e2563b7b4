"""`helm test`: checks the health of the admin REST, then sends messages and reads them.

The environment has ADMIN_URL, SERVICE_URL, MESSAGES and TIMEOUT_S. Exits with 1 and a line that
describes the error.
"""
# ruff: noqa: S310, T201 (the URL is the brokers'; what is printed is the test's log)

import os
import sys
import time
import urllib.error
import urllib.request

REQUEST_TIMEOUT_S = 5.0
PAUSE_S = 1.0


def healthy(url: str, deadline: float) -> None:
    """Waits until a broker has sent a message through its own health topic."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as answer:
                print(f"{url}: {answer.status}")
                return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"{url}: {error}")
            time.sleep(PAUSE_S)


def main() -> None:
    try:
        import pulsar
    except ImportError:
        sys.exit("this image has no Pulsar client: set images.toolset to the image with tools")
    deadline = time.monotonic() + float(os.environ["TIMEOUT_S"])
    healthy(os.environ["ADMIN_URL"] + "/admin/v2/brokers/health", deadline)
    count = int(os.environ["MESSAGES"])
    name = f"helm-test-{time.time_ns()}"
    client = pulsar.Client(
        os.environ["SERVICE_URL"], operation_timeout_seconds=int(float(os.environ["TIMEOUT_S"]))
    )
    try:
        consumer = client.subscribe(name, "helm-test")
        producer = client.create_producer(name)
        for number in range(count):
            producer.send(b"%d" % number)
        for number in range(count):
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            message = consumer.receive(timeout_millis=left_ms)
            if message.data() != b"%d" % number:
                sys.exit(f"message {number} came as {message.data()!r}")
            consumer.acknowledge(message)
        print(f"{count} messages sent, received in order and acknowledged")
        consumer.unsubscribe()
    finally:
        client.close()


main()

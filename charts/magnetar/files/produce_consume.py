"""`helm test`: checks the health of the admin REST, then sends messages and reads them.

The environment has ADMIN_URL, SERVICE_URL, MESSAGES and TIMEOUT_S, and of a closed cluster
TRUST_FILE and TOKEN_FILE. Exits with 1 and a line that describes the error.
"""
# ruff: noqa: S310, T201 (the URL is the brokers'; what is printed is the test's log)

import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

REQUEST_TIMEOUT_S = 5.0
PAUSE_S = 1.0


def token() -> str:
    """The token of a closed cluster; empty for an open one."""
    path = os.environ.get("TOKEN_FILE")
    return Path(path).read_text().strip() if path else ""


def healthy(url: str, deadline: float) -> None:
    """Waits until a broker has sent a message through its own health topic."""
    trust = os.environ.get("TRUST_FILE")
    context = ssl.create_default_context(cafile=trust) if trust else None
    headers = {"Authorization": f"Bearer {token()}"} if token() else {}
    while True:
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(
                request, timeout=REQUEST_TIMEOUT_S, context=context
            ) as answer:
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
    options = {}
    if os.environ.get("TRUST_FILE"):
        options = {
            "tls_trust_certs_file_path": os.environ["TRUST_FILE"],
            "tls_validate_hostname": True,
        }
    if token():
        options["authentication"] = pulsar.AuthenticationToken(token)
    client = pulsar.Client(
        os.environ["SERVICE_URL"],
        operation_timeout_seconds=int(float(os.environ["TIMEOUT_S"])),
        **options,
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

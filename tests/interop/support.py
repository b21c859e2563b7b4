"""What the interop tests share: waiting with a deadline, reading, hearing silence.

Nothing here knows which server is under test. Every wait polls a condition and fails with what it
waited for; the only fixed pauses are those that must show that nothing arrives.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx
import pulsar

# How long a test waits for something that must happen, and listens for what must not.
PATIENCE_S = 30.0
SILENCE_MS = 300
POLL_S = 0.02
# A batch that waits so long is sent by `flush` or for its size, however slow the machine is.
UNTIL_FLUSH_MS = 600_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server under test answers."""

    service_url: str
    http_url: str


@dataclass(frozen=True, slots=True)
class Names:
    """A namespace that only one test uses, and names inside it."""

    tenant: str
    namespace: str

    @property
    def path(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    def topic(self, local: str = "topic", domain: str = "persistent") -> str:
        return f"{domain}://{self.path}/{local}"


def wait_until(
    check: Callable[[], T | None], *, what: str = "the condition", within_s: float = PATIENCE_S
) -> T:
    """Polls `check` until it returns something true, and returns that."""
    deadline = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {within_s} s")
        time.sleep(POLL_S)


def take(
    consumer: pulsar.Consumer, count: int, *, within_s: float = PATIENCE_S, ack: bool = False
) -> list[pulsar.Message]:
    """Receives exactly `count` messages, all before one deadline."""
    deadline = time.monotonic() + within_s
    messages: list[pulsar.Message] = []
    while len(messages) < count:
        left_ms = int((deadline - time.monotonic()) * 1000)
        try:
            message = consumer.receive(max(left_ms, 1))
        except pulsar.Timeout as error:
            seen = [m.data() for m in messages[-5:]]
            raise AssertionError(f"{len(messages)} of {count} messages came: …{seen}") from error
        messages.append(message)
        if ack:
            consumer.acknowledge(message)
    return messages


def read(reader: pulsar.Reader, count: int) -> list[pulsar.Message]:
    """Reads exactly `count` messages."""
    return [reader.read_next(int(PATIENCE_S * 1000)) for _ in range(count)]


def drain(consumer: pulsar.Consumer, *, idle_ms: int = SILENCE_MS) -> list[pulsar.Message]:
    """Receives until nothing comes for `idle_ms`."""
    messages = []
    while True:
        try:
            messages.append(consumer.receive(idle_ms))
        except pulsar.Timeout:
            return messages


def take_all(consumers: Sequence[pulsar.Consumer], count: int) -> list[list[pulsar.Message]]:
    """What each consumer was given of `count` messages, once all have come, and no more of them."""
    parts: list[list[pulsar.Message]] = [[] for _ in consumers]

    def all_came() -> bool:
        for consumer, part in zip(consumers, parts, strict=True):
            part.extend(drain(consumer, idle_ms=50))
        return sum(map(len, parts)) >= count

    wait_until(all_came, what=f"the last of {count} messages")
    for consumer in consumers:
        assert_silent(consumer, for_ms=50)
    assert sum(map(len, parts)) == count
    return parts


def assert_silent(consumer: pulsar.Consumer, *, for_ms: int = SILENCE_MS) -> None:
    """Fails if the consumer is given anything within `for_ms`."""
    try:
        message = consumer.receive(for_ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"unexpected message {message.data()!r} {message.message_id()}")


def bodies(messages: Iterable[pulsar.Message]) -> list[bytes]:
    return [message.data() for message in messages]


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}-{i}".encode() for i in range(count)]


def send_all(producer: pulsar.Producer, payloads: Iterable[bytes]) -> list[pulsar.MessageId]:
    """Sends one by one and waits for each receipt; returns the ids in order."""
    return [producer.send(payload) for payload in payloads]


def position(message_id: pulsar.MessageId) -> tuple[int, int, int]:
    """An id as something that compares: ledger, entry, index in its batch."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def backlog(admin: httpx.Client, topic: str, subscription: str) -> int:
    """The entries that the server says are not acked yet."""
    domain, path = topic.split("://")
    answer = admin.get(f"/admin/v2/{domain}/{path}/stats", params={"getPreciseBacklog": "true"})
    return int(answer.raise_for_status().json()["subscriptions"][subscription]["msgBacklog"])


def await_backlog(admin: httpx.Client, topic: str, subscription: str, count: int = 0) -> None:
    """Waits until the acks that clients send in groups have reached the server."""
    wait_until(
        lambda: backlog(admin, topic, subscription) == count,
        what=f"a backlog of {count} of {subscription}",
    )


def unload(admin: httpx.Client, topic: str) -> None:
    """Makes the server close the topic and all that is attached to it."""
    domain, path = topic.split("://")
    admin.put(f"/admin/v2/{domain}/{path}/unload").raise_for_status()


def await_dispatched(admin: httpx.Client, topic: str, subscription: str, count: int) -> None:
    """Waits until so many messages are at the consumers of a shared subscription."""
    domain, path = topic.split("://")

    def dispatched() -> bool:
        stats = admin.get(f"/admin/v2/{domain}/{path}/stats").raise_for_status().json()
        return bool(stats["subscriptions"][subscription]["unackedMessages"] == count)

    wait_until(dispatched, what=f"{count} messages on their way")

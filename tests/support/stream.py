"""A steady stream of numbered messages by an official client, checked at the end.

Every topic gets its messages one after the other; what was receipted, and when, is kept. At the
end all of it is read back from the beginning: nothing that was receipted may be missing, and each
number comes for the first time behind the one before it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Final

import pulsar

TICK_S: Final = 0.01
FINISH_TIMEOUT_S: Final = 60.0
READ_TIMEOUT_MS: Final = 30_000
FOREIGN: Final = -1
"""A number that anybody else may write into the topics."""


class Stream:
    """`with Stream(client, topics) as stream:` sends until the end of the block."""

    def __init__(self, client: pulsar.Client, topics: Sequence[str], rate: float = 100.0) -> None:
        self.client, self.topics, self.rate = client, tuple(topics), rate
        self.receipts: dict[str, list[tuple[float, int]]] = {topic: [] for topic in topics}
        """For each topic: when each receipt came, and for which number."""
        self.errors: list[str] = []
        self._sent = dict.fromkeys(topics, 0)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(topic,), daemon=True) for topic in topics
        ]

    def __enter__(self) -> "Stream":
        for thread in self._threads:
            thread.start()
        self.wait_receipts(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(FINISH_TIMEOUT_S)

    def _send(self, topic: str) -> None:
        producer = self.client.create_producer(
            topic, send_timeout_millis=0, batching_enabled=False, block_if_queue_full=True
        )
        begun = time.monotonic()
        while not self._stop.is_set():
            number = self._sent[topic]
            self._sent[topic] = number + 1
            producer.send_async(b"%d" % number, self._receipted(topic, number))
            ahead = (number + 1) / self.rate - (time.monotonic() - begun)
            if ahead > 0:
                self._stop.wait(ahead)
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while len(self.receipts[topic]) < self._sent[topic] and time.monotonic() < deadline:
            time.sleep(TICK_S)

    def _receipted(
        self, topic: str, number: int
    ) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def received(result: pulsar.Result, _: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self.receipts[topic].append((time.monotonic(), number))
            else:
                with self._lock:
                    self.errors.append(f"{topic} {number}: {result}")

        return received

    def wait_receipts(self, count: int, timeout_s: float = FINISH_TIMEOUT_S) -> float:
        """Returns once every topic had so many more; the seconds that took."""
        begun = time.monotonic()
        wanted = {topic: len(got) + count for topic, got in self.receipts.items()}
        while any(len(self.receipts[topic]) < number for topic, number in wanted.items()):
            if time.monotonic() - begun > timeout_s:
                counts = {topic: len(got) for topic, got in self.receipts.items()}
                raise AssertionError(
                    f"no {count} receipts of each within {timeout_s:g} s: {counts}"
                )
            time.sleep(TICK_S)
        return time.monotonic() - begun

    def longest_pause_s(self, since: float, until: float | None = None) -> float:
        """The longest time that any topic was without a receipt, of the monotonic clock."""
        end = time.monotonic() if until is None else until
        longest = 0.0
        for got in self.receipts.values():
            times = [since, *(at for at, _ in got if since <= at <= end), end]
            pauses = (later - earlier for earlier, later in pairwise(times))
            longest = max(longest, *pauses)
        return longest

    def check(self) -> None:
        """Reads everything back; after the block."""
        assert not self.errors, self.errors[:5]
        for topic in self.topics:
            receipted = {number for _, number in self.receipts[topic]}
            assert len(receipted) == self._sent[topic], f"{topic}: not all were answered"
            first_seen = self._read_back(topic)
            missing = sorted(receipted - set(first_seen))
            assert not missing, f"{topic}: {len(missing)} receipted messages lost: {missing[:5]}"
            assert first_seen == sorted(first_seen), f"{topic}: out of order"

    def _read_back(self, topic: str) -> list[int]:
        """The numbers in the topic, each where it comes first."""
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest)
        seen: dict[int, None] = {}
        while reader.has_message_available():
            seen.setdefault(int(reader.read_next(READ_TIMEOUT_MS).data()))
        reader.close()
        seen.pop(FOREIGN, None)
        return list(seen)

"""Scenarios of Go's client: transactions, and letters that are retried later and then dead."""

from collections.abc import Iterator
from random import Random

from .consuming import T, batches, keyed, plain, subscribe
from .steps import ALL, Step, admin, message, step

OUT = "u"
RETRIES = "t-s-RETRY"
FAR_MS, SOON_MS = 86_400_000, 1000


def transacted(random: Random) -> Iterator[Step]:
    """Transactions of messages and acks: what is seen before and after their ends."""
    return _Transacted(random).steps()


class _Transacted:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.kind = random.choice(["Exclusive", "Failover", "Shared", "Shared", "Key_Shared"])
        self.batched = random.random() < 0.3
        self.begun = 0
        self.sent = 0

    def steps(self) -> Iterator[Step]:
        random = self.random
        yield step("go_consumer", "c", topic="t", subscription="s", kind=self.kind)
        yield step("producer", "p", topic="t", **(batches(3) if self.batched else {}))
        yield step("go_producer", "g", topic=OUT)
        yield step("consumer", "o", topic=OUT, subscription="s", kind="Exclusive")
        acts = [
            *(self.publish, self.interleaved, self.acks, self.acks, self.conflict),
            *(self.ended_twice, self.stopped, self.reloaded, self.plain_acks),
        ]
        if self.batched:
            # Of parts of a batch, Pulsar 4.2.4 admits acks in two transactions, refuses two in one,
            # and does not take them back when a transaction aborts.
            acts = [each for each in acts if each not in (self.stopped, self.conflict)]
        for act in random.sample(acts, random.randint(2, 4)):
            yield from act()
        yield self.seen("o")
        yield step("go_close", "c")
        yield step("stats", "t")
        yield subscribe("d", self.kind)
        yield step("receive", "d", count=ALL, unordered=True)
        yield step("reader", "r", topic=OUT, start="earliest")
        yield self.seen("r")

    def seen(self, name: str) -> Step:
        return step("receive", name, count=ALL, places=False)

    def begin(self) -> tuple[str, Step]:
        self.begun += 1
        name = f"x{self.begun}"
        return name, step("begin", name)

    def end(self, name: str) -> Step:
        return step("end", name, commits=self.batched or self.random.random() < 0.6)

    def messages(self) -> list[dict[str, object]]:
        first, count = self.sent, self.random.randint(1, 4)
        self.sent += count
        # The messages of a batch have one key: a batch is delivered by its first.
        key = "k" if self.batched else None
        return [
            message(f"m{first + n}", partition_key=key or self.random.choice("abc"))
            for n in range(count)
        ]

    def inside(self, name: str) -> Step:
        return step("go_produce", "g", messages=self.messages(), transaction=name)

    def published(self) -> Iterator[Step]:
        op = "produce_batch" if self.batched else "produce"
        yield step(op, "p", messages=self.messages())
        yield step("receive", "c", count=ALL)

    def publish(self) -> Iterator[Step]:
        name, begin = self.begin()
        yield begin
        yield self.inside(name)
        yield self.seen("o")
        yield step("end", name, commits=True)
        yield self.seen("o")

    def interleaved(self) -> Iterator[Step]:
        """An open transaction holds back what was sent behind it."""
        first, begin = self.begin()
        yield begin
        second, begin = self.begin()
        yield begin
        for name in self.random.sample([first, second, ""], 3):
            yield self.inside(name)
        yield self.seen("o")
        for name in self.random.sample([first, second], 2):
            yield step("end", name, commits=True)
            yield self.seen("o")

    def acks(self) -> Iterator[Step]:
        yield from self.published()
        name, begin = self.begin()
        yield begin
        which = sorted(self.random.sample(range(4), self.random.randint(1, 3)))
        which = [0] if self.batched else which
        yield step("go_ack", "c", which=which, transaction=name)
        yield step("stats", "t")
        if self.random.random() < 0.5:
            yield self.inside(name)
            yield step("end", name, commits=True)
        else:
            yield self.end(name)
        yield step("receive", "c", count=ALL)
        yield step("stats", "t")

    def conflict(self) -> Iterator[Step]:
        """A message is acknowledged in two transactions, or in one and without."""
        yield from self.published()
        first, begin = self.begin()
        yield begin
        second, begin = self.begin()
        yield begin
        names = self.random.choice([[first, second], [first, first], [first, second, ""]])
        for name in names:
            yield step("go_ack", "c", which=[0], transaction=name)
        yield self.end(first)
        yield step("stats", "t")
        yield self.end(second)

    def ended_twice(self) -> Iterator[Step]:
        name, begin = self.begin()
        yield begin
        if self.random.random() < 0.5:
            yield self.inside(name)
            yield step("end", name, commits=True)
        else:
            yield self.end(name)
        yield self.end(name)
        yield self.inside(name)
        yield admin("POST", f"v3/transactions/abortTransaction/{{txn:{name}}}")

    def stopped(self) -> Iterator[Step]:
        """An admin aborts a transaction; its client learns it when it ends it."""
        yield from self.published()
        name, begin = self.begin()
        yield begin
        yield step("go_ack", "c", which=[0, 1], transaction=name)
        yield admin("POST", f"v3/transactions/abortTransaction/{{txn:{name}}}")
        yield step("receive", "c", count=ALL)
        yield self.end(name)
        yield step("stats", "t")

    def reloaded(self) -> Iterator[Step]:
        """A topic is unloaded while a transaction has acks of it."""
        yield from self.published()
        name, begin = self.begin()
        yield begin
        yield step("go_ack", "c", which=[0] if self.batched else [0, 2], transaction=name)
        yield step("go_close", "c")
        yield admin("PUT", f"{T}/unload")
        yield step("go_consumer", "c", topic="t", subscription="s", kind=self.kind)
        yield step("receive", "c", count=ALL)
        yield self.end(name)
        yield step("stats", "t")

    def plain_acks(self) -> Iterator[Step]:
        yield from self.published()
        yield step("go_ack", "c", which=[0, 1, 2, 3])
        yield step("stats", "t")


def aborted(random: Random) -> Iterator[Step]:
    """Messages of an aborted transaction, alone or between others."""
    yield step("go_producer", "g", topic=OUT)
    yield step("consumer", "o", topic=OUT, subscription="s", kind="Exclusive")
    yield step("go_produce", "g", messages=plain(1))
    yield step("begin", "x")
    yield step("go_produce", "g", messages=plain(random.randint(1, 3), 10), transaction="x")
    if random.random() < 0.5:
        yield step("go_produce", "g", messages=plain(1, 20))
    yield step("receive", "o", count=ALL, places=False)
    yield step("end", "x", commits=False)
    yield step("receive", "o", count=ALL, places=False)
    yield step("go_produce", "g", messages=plain(1), transaction="x")


def retried(random: Random) -> Iterator[Step]:
    """Messages are rejected or sent to the retry topic, for soon or later, until they are dead."""
    kind, most = random.choice(["Shared", "Shared", "Key_Shared"]), random.randint(1, 2)
    letters: dict[str, object] = {"most": most, "dead": "dead"}
    if random.random() < 0.5:
        letters["initial"] = "first"
    count = random.randint(1, 2)
    options = {"topic": "t", "subscription": "s", "kind": kind, "letters": letters}
    yield step("go_consumer", "c", retry=True, **options)
    yield step("producer", "p", topic="t")
    sent = keyed(random, count)
    if random.random() < 0.4:
        sent = [each | {"after_ms": random.choice([0, SOON_MS])} for each in sent]
    yield step("produce", "p", messages=sent)
    yield step("consumer", "d", topic="dead", subscription="s", kind="Exclusive")
    for _ in range(random.randint(1, most + 1)):
        yield step("receive", "c", count=count, unordered=True)
        # All take the same way: the order of two ways would depend on time.
        everything = list(range(count))
        if random.random() < 0.3:
            yield step("go_nack", "c", which=everything)
        else:
            delay = random.choice([0, 0, SOON_MS, FAR_MS])
            yield step("later", "c", which=everything, after_ms=delay)
    yield step("receive", "c", count=ALL, unordered=True)
    yield step("receive", "d", count=ALL, unordered=True)
    yield admin("GET", "persistent/$N", eventually=True)
    yield step("go_close", "c")
    yield step("stats", "t")
    yield step("stats", RETRIES)
    yield admin("GET", "persistent/$N/dead/subscriptions", eventually=True)
    yield step("reader", "r", topic=RETRIES, start="earliest")
    yield step("receive", "r", count=ALL, unordered=True)
    yield step("produce", "p", messages=plain(1, 20))
    yield step("go_consumer", "c", retry=True, **options)
    yield step("receive", "c", count=ALL, unordered=True)
    yield admin("GET", f"{T}/subscriptions")

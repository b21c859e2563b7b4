"""Random walks: publishing, consuming, acking, and moving the cursor of one subscription."""

from collections.abc import Iterator
from random import Random

from .steps import ALL, Step, admin, message, step

TOPIC = "t"
PATH = f"persistent/$N/{TOPIC}"
KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")
MIN_STEPS, MAX_STEPS = 8, 14


def walk(random: Random) -> Iterator[Step]:
    """One subscription with one consumer, that messages, acks and admins come upon in any order."""
    return _Walk(random).steps()


class _Walk:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.kind = random.choice(KINDS)
        self.shared = self.kind in {"Shared", "Key_Shared"}
        self.batched = random.random() < 0.4
        self.sent: list[str] = []
        self.options: dict[str, object] = {
            "initial_position": random.choice(["earliest", "latest"])
        }
        if self.batched and random.random() < 0.6:
            self.options["batch_index_ack_enabled"] = True

    def steps(self) -> Iterator[Step]:
        random = self.random
        first = random.random() < 0.5
        if first:
            yield self.subscribe()
        yield self.producer()
        yield self.produce()
        if not first:
            yield self.subscribe()
        actions = [
            *(self.publish, self.receive_and_ack, self.receive_and_ack, self.redelivery),
            *(self.seek, self.reopen, self.unload, self.skip, self.reset, self.expire, self.look),
        ]
        for _ in range(random.randint(MIN_STEPS, MAX_STEPS) // 2):
            yield from random.choice(actions)()
        yield step("stats", TOPIC)
        yield step("receive", "c", count=ALL)
        yield step("ack_all", "c")
        yield step("stats", TOPIC)

    def subscribe(self) -> Step:
        return step("consumer", "c", topic=TOPIC, subscription="s", kind=self.kind, **self.options)

    def producer(self) -> Step:
        if not self.batched:
            return step("producer", "p", topic=TOPIC)
        most = self.random.choice([2, 3, 5, 100])
        return step(
            *("producer", "p"), topic=TOPIC, batching_enabled=True, batching_max_messages=most
        )

    def produce(self) -> Step:
        count = self.random.randint(1, 8)
        fields = [message(f"m{len(self.sent) + n}") for n in range(count)]
        for each in fields:
            if self.random.random() < 0.4 or (self.kind == "Key_Shared" and self.batched):
                # A batch of several keys would be delivered by the first.
                each["partition_key"] = "k" if self.batched else self.random.choice("abc")
            if self.random.random() < 0.2:
                each["properties"] = {"n": str(len(self.sent)), "é": "ü"}
            if self.random.random() < 0.2:
                each["event_timestamp"] = self.random.randint(1, 10**6)
        self.sent += [str(each["payload"]) for each in fields]
        return step("produce_batch" if self.batched else "produce", "p", messages=fields)

    def publish(self) -> Iterator[Step]:
        yield self.produce()

    def receive(self) -> Step:
        return step("receive", "c", count=self.random.choice([1, 2, 3, 5, ALL]))

    def receive_and_ack(self) -> Iterator[Step]:
        yield self.receive()
        if not self.shared and self.random.random() < 0.5:
            yield step("ack_cumulative", "c", which=self.random.randint(0, 4))
        elif self.random.random() < 0.3:
            yield step("ack_all", "c")
        else:
            which = sorted(self.random.sample(range(6), self.random.randint(1, 4)))
            yield step("ack", "c", which=which)
        if self.batched:
            # Acks of parts of batches are not in the figures; closing sends them.
            yield from self.reopen()
        yield step("stats", TOPIC)

    def redelivery(self) -> Iterator[Step]:
        yield step("stats", TOPIC)
        yield self.receive()
        if self.random.random() < 0.5:
            yield step("nack", "c", which=[0, 1])
        else:
            yield step("redeliver", "c")
        yield step("receive", "c", count=self.random.choice([2, ALL]))

    def seek(self) -> Iterator[Step]:
        to = self.random.choice(["earliest", "latest", *self.sent, "time", "time"])
        if to == "time" and self.batched:
            to = "earliest"  # batches of the same millisecond cannot be told apart
        elif to == "time":
            to = f"{{time:{self.random.choice(self.sent)}}}"
        yield step("seek", "c", to=to)
        yield step("stats", TOPIC)

    def reopen(self) -> Iterator[Step]:
        yield step("close", "c")
        yield step("stats", TOPIC)
        yield self.subscribe()

    def unload(self) -> Iterator[Step]:
        yield admin("PUT", f"{PATH}/unload")
        yield step("stats", TOPIC)

    def skip(self) -> Iterator[Step]:
        what = self.random.choice(["skip_all", "skip/1", "skip/3"])
        yield step("close", "c")
        yield admin("POST", f"{PATH}/subscription/s/{what}")
        yield step("stats", TOPIC)
        yield self.subscribe()

    def reset(self) -> Iterator[Step]:
        if self.batched or self.random.random() < 0.5:
            body = {"$id": self.random.choice(self.sent), "excluded": self.random.random() < 0.5}
            yield admin("POST", f"{PATH}/subscription/s/resetcursor", body)
        else:
            time = self.random.choice(self.sent)
            yield admin("POST", f"{PATH}/subscription/s/resetcursor/{{time:{time}}}")
        yield step("stats", TOPIC)

    def expire(self) -> Iterator[Step]:
        path = f"{PATH}/subscription/s/expireMessages"
        yield step("close", "c")
        if self.random.random() < 0.5:
            yield admin("POST", f"{path}/{self.random.choice([3600, 0])}")
        else:
            yield admin("POST", path, {"$id": self.random.choice(self.sent)})
        yield step("stats", TOPIC)
        yield self.subscribe()

    def look(self) -> Iterator[Step]:
        which = self.random.choice(self.sent)
        yield self.random.choice(
            [
                admin("GET", f"{PATH}/subscription/s/position/{self.random.randint(1, 4)}"),
                admin("GET", f"{PATH}/ledger/{{ledger:{which}}}/entry/{{entry:{which}}}"),
                admin("GET", f"{PATH}/examinemessage?initialPosition=earliest&messagePosition=2"),
                admin("GET", f"{PATH}/examinemessage?initialPosition=latest&messagePosition=2"),
                admin("GET", f"{PATH}/lastMessageId"),
                admin("GET", f"{PATH}/subscriptions"),
                step("last_id", "c"),
            ]
        )

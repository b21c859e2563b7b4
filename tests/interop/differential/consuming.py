"""Scenarios of several consumers, of redelivery, of readers and of delayed messages."""

from collections.abc import Iterator
from random import Random
from typing import Any

from .steps import ALL, Step, admin, message, step

T = "persistent/$N/t"
KEYS = ("a", "b", "c", "d", "e", "f")


def keyed(random: Random, count: int, first: int = 0) -> list[dict[str, object]]:
    return [message(f"m{first + n}", partition_key=random.choice(KEYS)) for n in range(count)]


def plain(count: int, first: int = 0) -> list[dict[str, object]]:
    return [message(f"m{first + n}") for n in range(count)]


def batches(most: int) -> dict[str, Any]:
    return {"batching_enabled": True, "batching_max_messages": most}


def subscribe(name: str, kind: str, subscription: str = "s", **options: Any) -> Step:
    return step(*("consumer", name), topic="t", subscription=subscription, kind=kind, **options)


def takeover(random: Random) -> Iterator[Step]:
    """A second consumer comes, and the first one goes with messages that it did not ack."""
    # Which consumer of a Failover subscription is active depends on the hash of the topic's name.
    kind = random.choice(["Exclusive", "Shared", "Key_Shared"])
    first, second = random.sample(["x", "y", "z"], 2)
    yield subscribe(first, kind)
    yield step("producer", "p", topic="t")
    yield step("produce", "p", messages=plain(random.randint(2, 8)))
    yield step("receive", first, count=random.choice([1, 2, ALL]))
    yield step("ack", first, which=random.sample(range(3), random.randint(0, 2)))
    yield step("stats", "t")
    yield subscribe(second, kind)
    yield step("stats", "t")
    yield step("close", first)
    if kind == "Exclusive":
        yield subscribe(second, kind)
    yield step("receive", second, count=ALL)
    yield step("produce", "p", messages=plain(2, 20))
    yield step("receive", second, count=2)
    yield step("ack_all", second)
    yield step("stats", "t")
    yield subscribe(first, random.choice(["Exclusive", "Shared", kind]))
    yield step("unsubscribe", second)
    yield step("stats", "t")


def keys(random: Random) -> Iterator[Step]:
    """Key_Shared: which consumer gets which key, before and after others come and go."""
    names = random.sample(["x", "y", "z", "w"], random.randint(2, 3))
    sticky = random.random() < 0.3
    ranges = [[[0, 20000]], [[20001, 65535]], [[0, 65535]]]
    options: list[dict[str, Any]] = [{"sticky": each} if sticky else {} for each in ranges]
    if not sticky and random.random() < 0.3:
        options = [{"out_of_order": True}] * 3
    for name, each in zip(names[:2], options, strict=False):
        yield subscribe(name, "Key_Shared", **each)
    yield step("producer", "p", topic="t")
    yield step("produce", "p", messages=keyed(random, random.randint(4, 12)))
    yield step("stats", "t")
    yield step("receive", names[0], count=ALL)
    yield step("ack_all", names[0])
    yield step("receive", names[1], count=ALL)
    if random.random() < 0.5:
        yield step("ack_all", names[1])
    yield step("stats", "t")
    if len(names) == 3:
        # Sticky ranges of the third overlap with the others'.
        yield subscribe(names[2], "Key_Shared", **options[2])
        yield step("produce", "p", messages=keyed(random, 8, 20))
        yield step("stats", "t")
        for name in names:
            yield step("receive", name, count=ALL)
            yield step("ack_all", name)
    yield step("close", names[0])
    yield step("produce", "p", messages=keyed(random, 6, 40))
    yield step("receive", names[1], count=ALL)
    yield step("stats", "t")


def letters(random: Random) -> Iterator[Step]:
    """Negative acks up to the dead letter topic."""
    most = random.randint(1, 3)
    kind = random.choice(["Shared", "Shared", "Key_Shared"])
    letter = {"max_redeliver_count": most, "dead_letter_topic": "dead"}
    if random.random() < 0.5:
        letter["initial_subscription_name"] = "first"
    yield subscribe("c", kind, dead_letter=letter)
    yield step("producer", "p", topic="t")
    yield step("produce", "p", messages=keyed(random, random.randint(1, 3)))
    yield step("consumer", "d", topic="dead", subscription="s", kind="Exclusive")
    for _ in range(most + 1):
        yield step("receive", "c", count=3)
        yield step("nack", "c", which=[0, 1, 2])
    yield step("receive", "c", count=1)
    yield step("receive", "d", count=ALL)
    yield admin("GET", "persistent/$N/dead/subscriptions", eventually=True)
    yield step("stats", "t")


def partial_acks(random: Random) -> Iterator[Step]:
    """Acks of parts of batches, with and without batch index acks, and what comes again."""
    kind = random.choice(["Exclusive", "Failover", "Shared", "Key_Shared"])
    index_acks = random.random() < 0.7
    size = random.choice([2, 3, 5])
    messages = [message(f"m{n}", partition_key="k") for n in range(random.randint(4, 12))]
    yield subscribe("c", kind, batch_index_ack_enabled=index_acks)
    yield step("producer", "p", topic="t", **batches(size))
    yield step("produce_batch", "p", messages=messages)
    for _ in range(random.randint(1, 3)):
        yield step("receive", "c", count=ALL)
        if kind in {"Exclusive", "Failover"} and random.random() < 0.5:
            yield step("ack_cumulative", "c", which=random.randint(0, 6))
        else:
            yield step("ack", "c", which=sorted(random.sample(range(8), random.randint(1, 5))))
        again = random.choice(["close", "unload", "redeliver"])
        if again == "redeliver":
            yield step("close", "c")
            yield subscribe("c", kind, batch_index_ack_enabled=index_acks)
            yield step("receive", "c", count=1)
            yield step("stats", "t")
            yield step("redeliver", "c")
            continue
        yield step("close", "c")
        yield step("stats", "t")
        if again == "unload":
            yield admin("PUT", f"{T}/unload")
        yield subscribe("c", kind, batch_index_ack_enabled=index_acks)
    yield step("receive", "c", count=ALL)
    yield step("ack_all", "c")
    yield step("stats", "t")


def readers(random: Random) -> Iterator[Step]:
    """Readers from the ends and from messages, inclusive or not, over batches or not."""
    batched = random.random() < 0.5
    count = random.randint(3, 9)
    unloaded = random.random() < 0.3
    if unloaded:
        # Else the closed ledger may be deleted before it is read.
        body = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        yield admin("POST", "namespaces/$N/retention", body)
    yield step("producer", "p", topic="t", **(batches(random.choice([2, 3, 4])) if batched else {}))
    early = random.random() < 0.3
    if early:
        yield step("reader", "e", topic="t", start="latest")
    yield step("produce_batch" if batched else "produce", "p", messages=plain(count))
    if unloaded:
        yield admin("PUT", f"{T}/unload")
        yield step("stats", "t")
    for name in ("q", "r"):
        start = random.choice(["earliest", "latest", *(f"m{n}" for n in range(count))])
        yield step("reader", name, topic="t", start=start, inclusive=random.random() < 0.5)
        yield step("has_more", name)
        yield step("receive", name, count=random.choice([1, ALL]))
        yield step("has_more", name)
    to = random.choice(["earliest", "latest", "m1", "m2", "m1" if batched else "{time:m1}"])
    yield step("seek", "r", to=to)
    yield step("receive", "r", count=ALL)
    yield step("produce_batch" if batched else "produce", "p", messages=plain(3, 20))
    for name in ("q", "r", *(["e"] if early else [])):
        yield step("receive", name, count=ALL)
        yield step("has_more", name)


def delayed(random: Random) -> Iterator[Step]:
    """Delays that are over soon, or only long after the scenario."""
    kind = random.choice(["Shared", "Shared", "Key_Shared", "Exclusive", "Failover"])
    far, soon = 86_400_000, 1000
    messages = []
    for number in range(random.randint(2, 6)):
        after = random.choice([None, far, soon])
        extra = {} if after is None else {"after_ms": after}
        messages.append(message(f"m{number}", partition_key="k", **extra))
    if random.random() < 0.3:
        body = {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
        yield admin("POST", "namespaces/$N/delayedDelivery", body)
        yield admin("GET", "namespaces/$N/delayedDelivery")
    elif random.random() < 0.3:
        body = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
        yield admin("POST", "namespaces/$N/delayedDelivery", body)
        # The wheel sends a message that is refused for its delay over and over, without an end.
        messages = [each | {"after_ms": soon} if "after_ms" in each else each for each in messages]
    yield subscribe("c", kind)
    yield step("producer", "p", topic="t")
    yield step("produce", "p", messages=messages)
    yield step("receive", "c", count=ALL)
    yield step("ack_all", "c")
    yield step("stats", "t")
    yield admin("GET", f"{T}/subscription/s/position/1")
    then = random.choice(["reopen", "seek", "skip", "unload"])
    if then == "reopen":
        yield step("close", "c")
        yield subscribe("c", kind)
    elif then == "seek":
        yield step("seek", "c", to="earliest")
    elif then == "skip":
        yield admin("POST", f"{T}/subscription/s/{random.choice(['skip_all', 'skip/1'])}")
    else:
        yield admin("PUT", f"{T}/unload")
    yield step("stats", "t")
    yield step("receive", "c", count=ALL)
    yield step("stats", "t")


def unpersisted(random: Random) -> Iterator[Step]:
    """Non-persistent topics keep nothing for who is not there."""
    kind = random.choice(["Exclusive", "Failover", "Shared", "Key_Shared"])
    topic = "non-persistent:t"
    options = {"topic": topic, "subscription": "s", "kind": kind}
    yield step("producer", "p", topic=topic)
    yield step("produce", "p", messages=keyed(random, 2))
    yield step("consumer", "c", **options)
    yield step("produce", "p", messages=keyed(random, random.randint(1, 5), 10))
    yield step("receive", "c", count=ALL)
    yield step("ack_all", "c")
    yield step("stats", topic)
    for name in random.sample(["x", "y"], 2)[: random.randint(0, 2)]:
        yield step("consumer", name, **{**options, "kind": random.choice([kind, "Shared"])})
    path = "non-persistent/$N/t"
    refused = random.choice(
        [
            admin("POST", f"{path}/subscription/s/skip_all"),
            admin("POST", f"{path}/subscription/s/resetcursor/0"),
            admin("POST", f"{path}/subscription/s/expireMessages/10"),
            admin("GET", f"{path}/subscription/s/position/1"),
            admin("GET", f"{path}/lastMessageId"),
            admin("POST", f"{path}/terminate"),
            admin("PUT", f"{path}/compaction"),
            step("seek", "c", to="earliest"),
            step("last_id", "c"),
        ]
    )
    yield refused
    yield admin("GET", f"{path}/subscriptions")
    yield step("close", "c")
    yield step("produce", "p", messages=keyed(random, 2, 20))
    yield step("stats", topic)
    yield step("consumer", "c", **{**options, "subscription": "u"})
    yield step("unsubscribe", "c")
    yield admin("DELETE", path)


def chunked(random: Random) -> Iterator[Step]:
    """Messages in chunks, alone and between others."""
    kind = random.choice(["Exclusive", "Failover", "Shared"])
    big = [message(f"big{n}", size=5_300_000) for n in range(random.randint(1, 2))]
    messages = [*plain(1), *big, *plain(1, 1)]
    yield subscribe("c", kind)
    yield step("producer", "p", topic="t", chunking_enabled=True)
    yield step("produce", "p", messages=messages)
    yield step("receive", "c", count=len(messages))
    yield step("ack", "c", which=sorted(random.sample(range(len(messages)), 2)))
    yield step("close", "c")
    yield step("stats", "t")
    yield subscribe("c", kind)
    yield step("receive", "c", count=ALL)
    yield step("ack_all", "c")
    yield step("stats", "t")
    yield step("reader", "r", topic="t", start="big0", inclusive=True)
    yield step("receive", "r", count=1)

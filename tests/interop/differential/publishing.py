"""Scenarios of producers: access, sequence ids, deduplication, schemas, sizes, ends of topics."""

from collections.abc import Iterator
from random import Random
from typing import Any

from .consuming import T, batches, keyed, plain, subscribe
from .steps import ALL, Step, admin, message, step

MODES = ("Shared", "Exclusive", "ExclusiveWithFencing")


def access(random: Random) -> Iterator[Step]:
    """Producers of several access modes on one topic."""
    for number, name in enumerate(random.choices("pqr", k=random.randint(3, 5))):
        yield step(
            *("producer", f"{name}{number}"), topic="t", access_mode=random.choice(MODES), name=name
        )
        yield step("stats", "t")
    if random.random() < 0.5:
        yield step("producer", "own", topic="t", access_mode="Exclusive")
    yield step("producer", "last", topic="t", access_mode=random.choice(MODES))
    yield step("produce", "last", messages=plain(1))
    yield step("stats", "t")


def deduplicated(random: Random) -> Iterator[Step]:
    """Sequence ids that were used before, with and without deduplication."""
    where = random.choice(["namespace", "topic", "off"])
    if where == "namespace":
        yield admin("POST", "namespaces/$N/deduplication", True)
        yield admin("GET", "namespaces/$N/deduplication")
    yield admin("PUT", T)
    if where == "topic":
        yield admin("POST", f"{T}/deduplicationEnabled", True)
        yield admin("GET", f"{T}/deduplicationEnabled", eventually=True)
        yield admin("GET", f"{T}/stats", keep=["deduplicationStatus"], eventually=True)
    yield subscribe("c", "Exclusive")
    yield step("producer", "p", topic="t")
    ids = sorted(random.sample(range(20), 4))
    used = [ids[0], ids[1], ids[1], ids[3], ids[2], ids[3] + 5]
    yield step(
        *("produce", "p"),
        messages=[message(f"m{n}", sequence_id=each) for n, each in enumerate(used)],
    )
    yield step("last_sequence_id", "p")
    yield step("receive", "c", count=ALL)
    yield step("close", "p")
    if random.random() < 0.5:
        yield admin("PUT", f"{T}/unload")
    options: dict[str, Any] = {"initial_sequence_id": ids[2]} if random.random() < 0.5 else {}
    op = "produce"
    if random.random() < 0.4:
        options |= batches(3)
        op = "produce_batch"
    yield step("producer", "p", topic="t", **options)
    yield step(op, "p", messages=plain(2, 10))
    yield step(op, "p", messages=[message("m20", sequence_id=ids[1])])
    yield step("last_sequence_id", "p")
    yield step("receive", "c", count=ALL)
    yield step("stats", "t")


FIELDS = (
    {"a": "int"},
    {"a": "int", "b": "string?"},
    {"a": "int", "b": "string"},
    {"a": "int", "b": "string=x"},
    {"a": "string"},
    {"a": "double"},
    {"b": "string?"},
)
STRATEGIES = (
    *("FULL", "BACKWARD", "FORWARD", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE"),
    *("FULL_TRANSITIVE", "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "UNDEFINED"),
)


def schemas(random: Random) -> Iterator[Step]:
    """Schemas that do and do not go together, under a strategy."""
    kind = random.choice(["json", "avro", "avro"])
    if random.random() < 0.7:
        body = random.choice(STRATEGIES)
        yield admin("PUT", "namespaces/$N/schemaCompatibilityStrategy", body)
        yield admin("GET", "namespaces/$N/schemaCompatibilityStrategy")
    if random.random() < 0.3:
        yield admin("POST", "namespaces/$N/schemaValidationEnforced", True)
    if random.random() < 0.2:
        yield admin("POST", "namespaces/$N/isAllowAutoUpdateSchema", False)
    for number in range(random.randint(2, 4)):
        fields = random.choice(FIELDS)
        form = [random.choice([kind, kind, kind, "json", "avro"]), fields]
        if random.random() < 0.15:
            form = [random.choice(["string", "bytes"])]
        if random.random() < 0.6:
            yield step("producer", f"p{number}", topic="t", schema=form)
        else:
            kind_of = random.choice(["Exclusive", "Shared"])
            yield subscribe(f"c{number}", kind_of, f"s{number}", schema=form)
        yield admin("GET", "schemas/$N/t/schema", keep=["version", "type", "data"])
    yield admin("GET", "schemas/$N/t/schemas")
    yield admin("GET", f"schemas/$N/t/schema/{random.randint(0, 3)}", keep=["version", "type"])
    if random.random() < 0.4:
        yield admin("DELETE", "schemas/$N/t/schema", keep=["version"])
        yield admin("GET", "schemas/$N/t/schema", keep=["version", "type", "data"])
        yield step("producer", "last", topic="t", schema=[kind, random.choice(FIELDS)])
        yield admin("GET", "schemas/$N/t/schema", keep=["version", "type", "data"])


def ended(random: Random) -> Iterator[Step]:
    """A topic is terminated while it has messages, producers and consumers."""
    yield subscribe("c", random.choice(["Exclusive", "Shared", "Failover"]))
    yield step("producer", "p", topic="t")
    count = random.randint(0, 4)
    if count:
        yield step("produce", "p", messages=plain(count))
    yield admin("POST", f"{T}/terminate")
    yield step("producer", "q", topic="t")
    yield step("receive", "c", count=ALL)
    # A ledger whose messages are all consumed is deleted, now or later: one message has to stay.
    yield step("ack", "c", which=[] if count == 1 else [0])
    yield admin("GET", f"{T}/lastMessageId")
    yield admin("GET", f"{T}/internalStats", keep=["state", "numberOfEntries"])
    yield step("reader", "r", topic="t", start="earliest")
    yield step("receive", "r", count=count)
    yield step("has_more", "r")
    if random.random() < 0.5:
        yield admin("PUT", f"{T}/unload")
        yield step("producer", "z", topic="t")
    yield admin("POST", f"{T}/terminate")
    yield admin("DELETE", f"{T}?force=true")
    yield step("producer", "n", topic="t")


def compacted(random: Random) -> Iterator[Step]:
    """Compaction, of keys, batches and removed keys, and readers of the compacted topic."""
    # Of a topic of batches, Pulsar 4.2.4 at times reports SUCCESS without having compacted it: its
    # internalStats have no compacted ledger. Such a record says nothing, and is not kept.
    batched = random.random() < 0.4
    yield step("producer", "p", topic="t", **(batches(3) if batched else {}))
    op = "produce_batch" if batched else "produce"
    yield step(op, "p", messages=keyed(random, random.randint(3, 9)))
    if random.random() < 0.4:
        yield step(op, "p", messages=plain(2, 10))
    if not batched and random.random() < 0.5:
        yield step("produce", "p", messages=[message("", partition_key=random.choice("abc"))])
    yield admin("PUT", f"{T}/compaction")
    yield admin("GET", f"{T}/compaction", eventually=True, keep=["status"])
    if random.random() < 0.5:
        yield step(op, "p", messages=keyed(random, 3, 30))
    yield step("compacted_reader", "r", topic="t")
    yield step("receive", "r", count=ALL)
    yield step("reader", "q", topic="t", start="earliest")
    yield step("receive", "q", count=ALL)
    yield subscribe("c", "Exclusive", is_read_compacted=True, initial_position="earliest")
    yield step("receive", "c", count=ALL)
    yield step("ack_all", "c")
    yield step("stats", "t")
    yield subscribe("d", "Shared", "u", is_read_compacted=True)


def sized(random: Random) -> Iterator[Step]:
    """Limits of sizes, quotas, compression and batches by size."""
    kind = random.choice(["LZ4", "ZLib", "ZSTD", "SNAPPY", "NONE"])
    yield subscribe("c", "Exclusive")
    limited = random.random() < 0.4
    if limited:
        yield admin("POST", f"{T}/maxMessageSize", 1000)
        yield admin("GET", f"{T}/maxMessageSize", eventually=True)
    quota = not limited and random.random() < 0.5
    if quota:
        body = {
            "limitSize": random.choice([1000, 100_000]),
            "limitTime": -1,
            "policy": random.choice(
                ["producer_exception", "producer_request_hold", "consumer_backlog_eviction"]
            ),
        }
        yield admin("POST", "namespaces/$N/backlogQuota?backlogQuotaType=destination_storage", body)
        yield admin("GET", "namespaces/$N/backlogQuotaMap")
    options = batches(100) | {"batching_max_allowed_size_in_bytes": 3000}
    batched = random.random() < 0.5
    yield step("producer", "p", topic="t", compression_type=kind, **(options if batched else {}))
    # A client in C++ sends a message that is refused as too large again and again.
    sizes = [random.choice([10, 500, 900, *([] if limited else [1001, 2500])]) for _ in range(4)]
    messages = [message(f"m{n}", size=size) for n, size in enumerate(sizes)]
    yield step("produce_batch" if batched else "produce", "p", messages=messages)
    yield step("receive", "c", count=ALL)
    yield admin("GET", f"{T}/examinemessage?initialPosition=earliest&messagePosition=1")
    yield step("stats", "t")
    if quota and body["policy"] == "producer_exception":
        yield admin("GET", "brokers/backlog-quota-check")
        yield step("produce", "p", messages=plain(1, 40))
        yield step("close", "p")
        yield step("producer", "q", topic="t")
        yield step("ack_all", "c")
        yield step("stats", "t")
        yield step("producer", "r", topic="t")

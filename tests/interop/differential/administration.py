"""Scenarios of admins: topics, partitions, subscriptions, policies and their enforcement."""

from collections.abc import Iterator
from random import Random

from .consuming import T, batches, keyed, plain, subscribe
from .steps import ALL, Step, admin, message, step

NAMESPACE = "namespaces/$N"


def topics(random: Random) -> Iterator[Step]:
    """Topics are created, listed, changed and deleted, some of which do not exist."""
    paths = [T, "persistent/$N/u", "non-persistent/$N/v", "persistent/$N/x-partition-1"]
    actions = [
        lambda path: admin("PUT", path, random.choice([None, {"k": "v"}])),
        lambda path: admin("PUT", f"{path}/partitions", random.choice([1, 2, 3])),
        lambda path: admin("POST", f"{path}/partitions", random.choice([1, 2, 4])),
        lambda path: admin("GET", f"{path}/partitions"),
        lambda path: admin("GET", f"{path}/properties"),
        lambda path: admin("PUT", f"{path}/properties", {"a": "b"}),
        lambda path: admin("DELETE", f"{path}/properties?key=a"),
        lambda path: admin("DELETE", path),
        lambda path: admin("DELETE", f"{path}/partitions"),
        lambda path: admin("GET", f"{path}/subscriptions"),
        lambda path: admin("PUT", f"{path}/unload"),
        lambda path: admin("GET", f"{path}/lastMessageId"),
        lambda path: admin("POST", f"{path}/createMissedPartitions"),
        lambda path: admin("GET", f"{path}/internalStats", keep=["state", "numberOfEntries"]),
        lambda path: admin("DELETE", f"{path}/subscription/none"),
        lambda path: admin("GET", f"{path}/stats", keep=["msgInCounter", "subscriptions"]),
    ]
    for _ in range(random.randint(8, 14)):
        yield random.choice(actions)(random.choice(paths[:3] if random.random() < 0.9 else paths))
    yield admin("GET", "persistent/$N", eventually=True)
    yield admin("GET", "persistent/$N/partitioned")
    yield admin("GET", "non-persistent/$N/partitioned")
    yield admin("GET", f"{NAMESPACE}/topics?mode=PERSISTENT")
    yield admin("DELETE", NAMESPACE)


def partitioned(random: Random) -> Iterator[Step]:
    """Messages over partitions, and what admins may do to all of them at once."""
    count = random.randint(1, 4)
    kind = random.choice(["Exclusive", "Failover", "Shared", "Key_Shared"])
    yield admin("PUT", f"{T}/partitions", count)
    yield subscribe("c", kind)
    yield step("producer", "p", topic="t")
    yield step("produce", "p", messages=keyed(random, random.randint(2, 8)))
    yield step("receive", "c", count=ALL, unordered=True)
    yield step("ack_all", "c")
    shown = ["msgInCounter", "metadata"]
    yield admin("GET", f"{T}/partitioned-stats?perPartition=false", keep=shown)
    yield step("close", "c")
    yield step("produce", "p", messages=keyed(random, 4, 20))
    what = random.choice(
        [
            admin("POST", f"{T}/subscription/s/skip_all"),
            admin("POST", f"{T}/subscription/s/skip/1"),
            admin("POST", f"{T}/subscription/s/resetcursor/{{time:m0}}"),
            admin("POST", f"{T}/subscription/s/resetcursor", {"$id": "m0"}),
            admin("POST", f"{T}/subscription/s/expireMessages/3600"),
            admin("POST", f"{T}/subscription/s/expireMessages/0"),
            admin("GET", f"{T}/subscription/s/position/1"),
            admin("PUT", f"{T}/unload"),
            # Not its end: clients in C++ close their connection when they are told of it.
            admin("GET", f"{T}/lastMessageId"),
            admin("GET", f"{T}/internalStats", keep=["state"]),
            admin("POST", f"{T}/partitions", count + 1),
            admin("PUT", f"{T}/subscription/u", "earliest"),
            admin("DELETE", f"{T}/subscription/s"),
        ]
    )
    yield what
    yield admin("GET", f"{T}/subscriptions", eventually=True)
    yield subscribe("c", kind)
    yield step("receive", "c", count=ALL, unordered=True)
    yield admin("GET", f"{T}/partitions")
    yield admin("DELETE", T)
    yield admin("DELETE", f"{T}/partitions")
    yield admin("GET", f"{T}-partition-0/subscriptions")


def subscriptions(random: Random) -> Iterator[Step]:
    """Subscriptions are created at positions, changed, examined and deleted by admins."""
    batched = random.random() < 0.4
    yield step("producer", "p", topic="t", **(batches(2) if batched else {}))
    count = random.randint(2, 6)
    op = "produce_batch" if batched else "produce"
    yield step(op, "p", messages=plain(count))
    some = f"m{random.randrange(count)}"
    position = random.choice(["earliest", "latest", {"$id": some}, {"$id": some}])
    if isinstance(position, dict) and batched:
        # An id inside a batch is a position of its own kind, compared by `resetcursor`.
        position = "earliest"
    yield admin("PUT", f"{T}/subscription/s", position)
    yield step("stats", "t")
    one = random.choice(
        [
            admin("PUT", f"{T}/subscription/s", "latest"),
            admin("PUT", f"{T}/subscription/s/properties", {"a": "b"}),
            admin("GET", f"{T}/subscription/s/properties"),
            admin("GET", f"{T}/subscription/s/analyzeBacklog"),
            admin("POST", f"{T}/subscription/s/skip/{count + 3}"),
            admin("POST", f"{T}/subscription/s/skip/2"),
            admin("POST", f"{T}/subscription/none/skip/2"),
            admin("GET", f"{T}/subscription/s/position/{count + 2}"),
            admin("GET", f"{T}/subscription/s/position/0"),
            admin("GET", f"{T}/subscription/none/position/1"),
            admin("GET", f"{T}/ledger/{{ledger:m0}}/entry/99"),
            admin(
                "GET", f"{T}/examinemessage?initialPosition=earliest&messagePosition={count + 5}"
            ),
            admin("GET", f"{T}/examinemessage?initialPosition=middle&messagePosition=1"),
            admin("GET", f"{T}/messageid/{'0' if batched else f'{{time:{some}}}'}"),
            admin("GET", f"{T}/messageid/0"),
            admin("POST", f"{T}/subscription/none/resetcursor/0"),
            admin("POST", f"{T}/subscription/s/resetcursor/99999999999999"),
        ]
    )
    yield one
    yield step("stats", "t")
    yield subscribe("c", random.choice(["Exclusive", "Shared"]))
    yield step("receive", "c", count=ALL)
    yield admin("DELETE", f"{T}/subscription/s")
    yield admin("GET", f"{T}/subscriptions")
    yield step("close", "c")
    yield admin("DELETE", f"{T}/subscription/s?force=true")
    yield admin("GET", f"{T}/subscriptions")
    yield admin("DELETE", T)
    yield step("close", "p")
    yield admin("DELETE", T)


# Paths of policies, with values that are and are not valid. `T` marks those of topics, too.
POLICIES: tuple[tuple[str, str, str, tuple[object, ...]], ...] = (
    ("NT", "POST", "messageTTL", (60, 0, -1)),
    ("NT", "POST", "retention", ({"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},)),
    ("NT", "POST", "retention", ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 5},)),
    ("NT", "POST", "maxProducersPerTopic", (3, 0, -2)),
    ("NT", "POST", "maxConsumersPerTopic", (3, 0, -2)),
    ("NT", "POST", "maxConsumersPerSubscription", (2, -1)),
    ("NT", "POST", "maxSubscriptionsPerTopic", (4, -1)),
    ("N", "POST", "maxTopicsPerNamespace", (5, -1)),
    ("NT", "POST", "maxUnackedMessagesPerConsumer", (7, -1)),
    ("NT", "POST", "maxUnackedMessagesPerSubscription", (7, -1)),
    ("NT", "POST", "deduplicationSnapshotInterval", (10, -1)),
    ("N", "PUT", "compactionThreshold", (1000, -5)),
    (
        "NT",
        "POST",
        "dispatchRate",
        ({"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1},),
    ),
    ("NT", "POST", "subscribeRate", ({"subscribeThrottlingRatePerConsumer": 5},)),
    ("N", "PUT", "schemaAutoUpdateCompatibilityStrategy", ("Full",)),
    ("N", "POST", "encryptionRequired", (True, False)),
    ("N", "PUT", "offloadThreshold", (100,)),
    ("N", "POST", "subscriptionExpirationTime", (10, -1)),
    ("NT", "POST", "schemaValidationEnforced", (True,)),
    (
        "NT",
        "POST",
        "inactiveTopicPolicies",
        (
            {
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 60,
                "deleteWhileInactive": True,
            },
            {"inactiveTopicDeleteMode": "sometimes", "maxInactiveDurationSeconds": 60},
        ),
    ),
    (
        "NT",
        "POST",
        "persistence",
        (
            {
                "bookkeeperEnsemble": 1,
                "bookkeeperWriteQuorum": 1,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 10.0,
            },
            {
                "bookkeeperEnsemble": 1,
                "bookkeeperWriteQuorum": 2,
                "bookkeeperAckQuorum": 2,
                "managedLedgerMaxMarkDeleteRate": 0.0,
            },
        ),
    ),
    ("NT", "POST", "subscriptionTypesEnabled", (["Shared", "Failover"], [], ["Nothing"])),
    ("NT", "POST", "publishRate", ({"publishThrottlingRateInMsg": 1000},)),
    ("T", "POST", "compactionThreshold", (1000,)),
    ("T", "POST", "maxMessageSize", (1000, -1, 99_999_999)),
    ("NT", "POST", "delayedDelivery", ({"active": True, "tickTime": 2000},)),
    (
        "N",
        "POST",
        "autoTopicCreation",
        (
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
            {"allowAutoTopicCreation": False},
        ),
    ),
    ("N", "POST", "autoSubscriptionCreation", ({"allowAutoSubscriptionCreation": False},)),
    ("N", "POST", "replicatorDispatchRate", ({"dispatchThrottlingRateInMsg": 100},)),
    ("N", "PUT", "properties", ({"a": "b"},)),
)
# The names of policies at topics, if they are others than at namespaces.
TOPIC_NAMES = {
    "maxProducersPerTopic": "maxProducers",
    "maxConsumersPerTopic": "maxConsumers",
    "maxUnackedMessagesPerConsumer": "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesPerSubscription": "maxUnackedMessagesOnSubscription",
}


def _policy(where: str, name: str) -> str:
    return f"{where}/{TOPIC_NAMES.get(name, name) if where == T else name}"


def policies(random: Random) -> Iterator[Step]:
    """Policies are read, set, read, removed and read."""
    yield admin("PUT", T)
    for level, method, name, values in random.sample(POLICIES, random.randint(3, 5)):
        where = random.choice(level)
        path = _policy(NAMESPACE if where == "N" else T, name)
        yield admin("GET", path)
        yield admin(method, path, random.choice(values))
        yield admin("GET", path, eventually=True)
        if where == "T":
            yield admin("GET", f"{path}?applied=true")
        if random.random() < 0.5:
            yield admin("DELETE", path)
            yield admin("GET", path, eventually=True)


def limits(random: Random) -> Iterator[Step]:
    """Limits of topics, producers, consumers and subscriptions are enforced."""
    kind = random.choice(["Exclusive", "Shared", "Key_Shared"])
    where = random.choice([NAMESPACE, T])
    yield admin("PUT", T)
    policy, value = random.choice(
        [
            ("maxProducersPerTopic", 2),
            ("maxConsumersPerTopic", 2),
            ("maxConsumersPerSubscription", 1),
            ("maxSubscriptionsPerTopic", 2),
            ("maxTopicsPerNamespace", 2),
            ("subscriptionTypesEnabled", ["Shared", "Failover"]),
            ("autoTopicCreation", {"allowAutoTopicCreation": False}),
            ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
            ("maxUnackedMessagesPerConsumer", 3),
            ("maxUnackedMessagesPerSubscription", 3),
        ]
    )
    if policy in {"maxTopicsPerNamespace", "autoTopicCreation", "autoSubscriptionCreation"}:
        where = NAMESPACE
    yield admin("POST", _policy(where, policy), value)
    yield admin("GET", _policy(where, policy), eventually=True)
    for number in range(3):
        yield step("producer", f"p{number}", topic="t")
    yield subscribe("a", kind)
    yield subscribe("b", kind)
    yield subscribe("d", random.choice(["Shared", "Failover"]), "u")
    yield subscribe("e", "Shared", "v")
    yield step("stats", "t")
    for name in ("n1", "n2", "n3"):
        yield step("producer", name, topic=name)
    yield admin("GET", "persistent/$N")


def backpressure(random: Random) -> Iterator[Step]:
    """A consumer that does not ack gets no more than the policy permits."""
    kind = random.choice(["Shared", "Key_Shared"])
    policy = random.choice(["maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"])
    where = random.choice([NAMESPACE, T])
    most = random.randint(2, 5)
    yield admin("PUT", T)
    yield admin("POST", _policy(where, policy), most)
    yield admin("GET", _policy(where, policy), eventually=True)
    yield admin("PUT", f"{T}/unload")
    yield subscribe("c", kind)
    yield step("producer", "p", topic="t")
    yield step("produce", "p", messages=[message(f"m{n}", partition_key="k") for n in range(9)])
    for _ in range(3):
        yield step("receive", "c", count=ALL)
        yield step("stats", "t")
        yield step("ack", "c", which=random.choice([[0], [0, 1], [0, 1, 2, 3, 4]]))
        yield step("stats", "t")
    yield step("receive", "c", count=ALL)

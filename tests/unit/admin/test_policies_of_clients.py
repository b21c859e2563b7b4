"""Policies in the form of Pulsar's clients, and the refusals that their tests compare."""

from typing import Any

import pytest

from .support import Admin

NAMESPACE = "~/namespaces/t1/n1"
TOPIC = "~/persistent/t1/n1/a"
NOT_CREATED = "Invalid configuration for autoTopicCreationOverride. the detail is "
SIZE = (
    "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that "
    "in the broker-level"
)
NEITHER = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
    "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To "
    "disable retention both limits must be set to 0."
)
ONE_CLASS = (
    "managedLedgerStorageClassName is not supported: there is one class of storage; leave it out"
)
QUORUMS = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}
S3 = {"managedLedgerOffloadDriver": "aws-s3"}


@pytest.mark.parametrize("path", [NAMESPACE, TOPIC])
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            {
                **S3,
                "s3ManagedLedgerOffloadBucket": "b",
                "s3ManagedLedgerOffloadRegion": "r",
                "s3ManagedLedgerOffloadServiceEndpoint": "http://e",
                "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
                "managedLedgerOffloadThresholdInBytes": 0,
            },
            {
                "managedLedgerOffloadBucket": "b",
                "managedLedgerOffloadRegion": "r",
                "managedLedgerOffloadServiceEndpoint": "http://e",
            },
        ),
        (
            {**S3, "managedLedgerOffloadBucket": "b", "managedLedgerOffloadRegion": "r"},
            {"s3ManagedLedgerOffloadBucket": "b", "s3ManagedLedgerOffloadRegion": "r"},
        ),
        (
            {
                "managedLedgerOffloadDriver": "google-cloud-storage",
                "gcsManagedLedgerOffloadBucket": "b",
                "gcsManagedLedgerOffloadRegion": "r",
            },
            {"managedLedgerOffloadBucket": "b", "managedLedgerOffloadRegion": "r"},
        ),
        (
            {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": "file:///cold"},
            {"managedLedgerOffloadBucket": "file:///cold"},
        ),
    ],
)
async def test_offload_policies_keep_the_names_of_the_driver(
    admin: Admin, path: str, given: dict[str, Any], shown: dict[str, Any]
) -> None:
    await admin.topic()
    await admin.done("POST", path + "/offloadPolicies", given)
    assert (await admin.done("GET", path + "/offloadPolicies")).json() == given | shown


async def test_ledgers_are_offloaded_to_the_bucket_of_the_driver(admin: Admin) -> None:
    topic = await admin.topic()
    given = {**S3, "s3ManagedLedgerOffloadBucket": "b", "s3ManagedLedgerOffloadRegion": "r"}
    await admin.done("POST", TOPIC + "/offloadPolicies", given)
    store = admin.service.offloading.plan(topic.name).store
    assert store is not None
    assert (store.driver, store.bucket, store.region) == ("aws-s3", "b", "r")


async def test_the_defaults_that_clients_send_are_accepted(admin: Admin) -> None:
    filled_in = {
        "offloadersDirectory": "./offloaders",
        "managedLedgerOffloadMaxThreads": 2,
        "managedLedgerOffloadPrefetchRounds": 1,
        "managedLedgerExtraConfigurations": {},
        "managedLedgerOffloadDriverMetadata": {},
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": -1,
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67108864,
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
        "s3ManagedLedgerOffloadRole": None,
        "fileSystemProfilePath": "",
        "s3Driver": True,
        "gcsDriver": False,
    }
    await admin.done("POST", NAMESPACE + "/offloadPolicies", S3 | filled_in)
    assert (await admin.done("GET", NAMESPACE + "/offloadPolicies")).json() == S3


@pytest.mark.parametrize("path", [NAMESPACE, TOPIC])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"managedLedgerOffloadDriver": "nope"}, "The driver is not supported, support value: S3"),
        ({**S3, "managedLedgerOffloadMaxThreads": 3}, "managedLedgerOffloadMaxThreads has no"),
        ({**S3, "s3ManagedLedgerOffloadRole": "arn"}, "s3ManagedLedgerOffloadRole has no effect"),
        ({**S3, "fileSystemURI": "/x"}, "fileSystemURI belongs to the driver filesystem"),
        ({"gcsManagedLedgerOffloadBucket": "b"}, "managedLedgerOffloadDriver is not set"),
        (
            {**S3, "s3ManagedLedgerOffloadBucket": "b", "managedLedgerOffloadBucket": "c"},
            "contradict each other",
        ),
        ({**S3, "managedLedgerOffloadedReadPriority": "x"}, "managedLedgerOffloadedReadPriority"),
    ],
)
async def test_an_offload_field_without_effect_is_refused_by_name(
    admin: Admin, path: str, given: dict[str, Any], reason: str
) -> None:
    await admin.topic()
    answer = await admin.call("POST", path + "/offloadPolicies", given)
    assert answer.status_code == 412
    assert reason in answer.json()["reason"]
    assert (await admin.done("GET", path + "/offloadPolicies")).content == b""
    document = await admin.call("PUT", "~/namespaces/t1/n2", {"offload_policies": given})
    assert document.status_code == 412


@pytest.mark.parametrize(
    "given",
    [
        {"allowAutoTopicCreation": False, "topicType": ""},
        {"allowAutoTopicCreation": False, "topicType": "", "defaultNumPartitions": 0},
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    ],
)
async def test_automatic_creation_as_clients_send_it(admin: Admin, given: dict[str, Any]) -> None:
    await admin.done("POST", NAMESPACE + "/autoTopicCreation", given)
    assert (await admin.done("GET", NAMESPACE + "/autoTopicCreation")).json() == given


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        ({"topicType": "x"}, "Unknown topic type [x]"),
        ({"topicType": ""}, "Unknown topic type []"),
        (
            {"topicType": "partitioned"},
            "[defaultNumPartitions] cannot be null when the type is partitioned.",
        ),
        (
            {"topicType": "partitioned", "defaultNumPartitions": 0},
            "[defaultNumPartitions] cannot be less than 1 for partition type.",
        ),
        (
            {"topicType": "non-partitioned", "defaultNumPartitions": 3},
            "[defaultNumPartitions] is not allowed to be set when the type is non-partition.",
        ),
    ],
)
async def test_invalid_automatic_creation_is_refused_with_pulsars_text(
    admin: Admin, given: dict[str, Any], detail: str
) -> None:
    body = {"allowAutoTopicCreation": True, **given}
    answer = await admin.call("POST", NAMESPACE + "/autoTopicCreation", body)
    assert (answer.status_code, answer.json()) == (412, {"reason": NOT_CREATED + detail})


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        *(
            (f"{NAMESPACE}/{name}", -1, 412, f"{name} must be 0 or more")
            for name in (
                *("maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription"),
                *("maxSubscriptionsPerTopic", "maxTopicsPerNamespace"),
                *("maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"),
            )
        ),
        (TOPIC + "/maxProducers", -1, 412, "maxProducers must be 0 or more"),
        (TOPIC + "/maxConsumers", -1, 412, "maxConsumers must be 0 or more"),
        *(
            (f"{TOPIC}/{name}", -1, 412, f"Invalid value for {name}")
            for name in ("maxConsumersPerSubscription", "compactionThreshold")
        ),
        (TOPIC + "/maxUnackedMessagesOnConsumer", -1, 412, "maxUnackedNum must be 0 or more"),
        (TOPIC + "/deduplicationSnapshotInterval", -1, 412, "interval must be 0 or more"),
        *(
            (
                *(TOPIC + "/maxMessageSize", size, 412),
                SIZE,
            )
            for size in (-1, 100_000_000)
        ),
        (
            *(NAMESPACE + "/messageTTL", -1, 412),
            "Invalid value for message TTL, message TTL must >= 0",
        ),
        (
            *(NAMESPACE + "/subscriptionExpirationTime", -1, 412),
            "Invalid value for subscription expiration time",
        ),
        (
            *(TOPIC + "/retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 400),
            "Invalid retention policy: time limit must be >= -1",
        ),
        (
            *(TOPIC + "/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -2}, 400),
            "Invalid retention policy: size limit must be >= -1",
        ),
        (
            *(NAMESPACE + "/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}, 400),
            NEITHER,
        ),
        *(
            (
                *(path + "/persistence", {**QUORUMS, "managedLedgerStorageClassName": "fast"}, 400),
                ONE_CLASS,
            )
            for path in (NAMESPACE, TOPIC)
        ),
    ],
)
async def test_a_value_out_of_range_is_refused_with_pulsars_text(
    admin: Admin, path: str, body: object, status: int, reason: str
) -> None:
    await admin.topic()
    answer = await admin.call("POST", path, body)
    assert (answer.status_code, answer.json()) == (status, {"reason": reason})


async def test_the_policies_in_force_if_none_is_set(admin: Admin) -> None:
    await admin.topic()

    async def applied(policy: str) -> Any:
        return (await admin.done("GET", f"{TOPIC}/{policy}?applied=true")).json()

    persistence = await applied("persistence")
    quorums = [persistence[f"bookkeeper{of}"] for of in ("Ensemble", "WriteQuorum", "AckQuorum")]
    assert quorums == [1, 1, 1]
    assert await applied("replicatorDispatchRate") == {
        "dispatchThrottlingRateInMsg": 0,
        "dispatchThrottlingRateInByte": 0,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }
    delayed = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
    assert await applied("delayedDelivery") == delayed
    assert await applied("entryFilters") == {"entryFilterNames": ""}
    assert await applied("subscriptionTypesEnabled") == []
    assert (await admin.done("GET", TOPIC + "/subscriptionTypesEnabled")).json() == []

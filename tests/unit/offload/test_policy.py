"""What holds for a topic: topic over namespace over broker, field by field."""

import msgspec
import pytest

from magnetar.core.errors import MetadataError
from magnetar.offload.policy import (
    BOOKKEEPER_FIRST,
    DELETION_LAG_MS_DEFAULT,
    NO_DEFAULTS,
    OffloadDefaults,
    decode_defaults,
    effective,
    namespace_document,
    namespace_key,
    topic_offload,
    topic_policies_key,
)
from magnetar.offload.stores import StoreSpec

BROKERS = OffloadDefaults(
    driver="aws-s3",
    bucket="b",
    region="r",
    endpoint="http://e",
    folder="/cold",
    threshold_bytes=100,
    deletion_lag_ms=5,
)


def test_nothing_is_set() -> None:
    plan = effective(NO_DEFAULTS, None, None)
    assert (plan.store, plan.threshold_bytes, plan.threshold_s) == (None, -1, -1)
    assert plan.deletion_lag_ms == DELETION_LAG_MS_DEFAULT
    assert not plan.automatic
    assert plan.reads_cold_first


def test_each_field_has_its_own_way_up() -> None:
    namespace = {
        "offload_policies": {
            "managedLedgerOffloadBucket": "n",
            "managedLedgerOffloadThresholdInSeconds": 60,
            "managedLedgerOffloadedReadPriority": BOOKKEEPER_FIRST,
            "managedLedgerOffloadRegion": None,
        }
    }
    topic = {"managedLedgerOffloadThresholdInBytes": 0, "managedLedgerOffloadBucket": "t"}
    plan = effective(BROKERS, namespace, topic)
    assert plan.store == StoreSpec("aws-s3", "t", "r", "http://e")
    assert (plan.threshold_bytes, plan.threshold_s, plan.deletion_lag_ms) == (0, 60, 5)
    assert plan.automatic
    assert not plan.reads_cold_first
    assert effective(BROKERS, namespace, None).store == StoreSpec("aws-s3", "n", "r", "http://e")


def test_the_older_thresholds_count_where_the_policies_leave_them_out() -> None:
    old = {"offload_threshold": 7, "offload_threshold_in_seconds": 8, "offload_deletion_lag_ms": 9}
    plan = effective(BROKERS, old, None)
    assert (plan.threshold_bytes, plan.threshold_s, plan.deletion_lag_ms) == (7, 8, 9)
    new = {"offload_policies": {"managedLedgerOffloadThresholdInBytes": 1}}
    assert effective(BROKERS, {**old, **new}, None).threshold_bytes == 1
    unset = {"offload_threshold": -1, "offload_threshold_in_seconds": -1}
    assert effective(BROKERS, unset, None).threshold_bytes == 100


def test_a_folder_takes_nothing_of_a_bucket() -> None:
    namespace = {"offload_policies": {"managedLedgerOffloadDriver": "filesystem"}}
    assert effective(BROKERS, namespace, None).store == StoreSpec("filesystem", "/cold")


def test_what_jobs_read() -> None:
    name = "t/n/persistent/a%2Fb-partition-3"
    assert namespace_key(name) == "/namespaces/t/n"
    assert topic_policies_key(name) == "/topic-policies/t/n/persistent/a%2Fb"
    record = b'{"version":1,"local":{},"global":{"offload":{"managedLedgerOffloadDriver":"S3"}}}'
    assert topic_offload("k", record) == {"managedLedgerOffloadDriver": "S3"}
    assert topic_offload("k", None) is None
    assert namespace_document("k", None) == {}
    assert decode_defaults("k", None) == NO_DEFAULTS
    assert decode_defaults("k", msgspec.json.encode(BROKERS)) == BROKERS
    for decode in (topic_offload, namespace_document, decode_defaults):
        with pytest.raises(MetadataError, match="/key holds"):
            decode("/key", b"[")

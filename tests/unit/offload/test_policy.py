"""The effective offload policies: topic over namespace over broker, by field."""

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


@pytest.mark.parametrize(
    ("size_bytes", "age_s", "automatic"), [(-1, -1, False), (0, -1, True), (-1, 0, True)]
)
def test_a_threshold_of_nothing_moves_all_and_one_below_moves_none(
    size_bytes: int, age_s: int, automatic: bool
) -> None:
    own = {
        "managedLedgerOffloadThresholdInBytes": size_bytes,
        "managedLedgerOffloadThresholdInSeconds": age_s,
    }
    assert effective(BROKERS, {"offload_policies": own}, None).automatic is automatic
    assert not effective(NO_DEFAULTS, {"offload_policies": own}, None).automatic


@pytest.mark.parametrize(("lag_ms", "holds_ms"), [(-7, -1), (-1, -1), (0, 0), (3, 3)])
def test_a_deletion_lag_below_nothing_is_for_ever(lag_ms: int, holds_ms: int) -> None:
    own = {"managedLedgerOffloadDeletionLagInMillis": lag_ms}
    assert effective(BROKERS, None, own).deletion_lag_ms == holds_ms


def test_a_topics_policies_of_this_cluster_come_before_those_of_all() -> None:
    here, everywhere = {"managedLedgerOffloadBucket": "a"}, {"managedLedgerOffloadBucket": "b"}
    for local, replicated, found in (
        ({"offload": here}, {"offload": everywhere}, here),
        ({}, {"offload": everywhere}, everywhere),
        ({"offload": here}, {}, here),
        ({}, {}, None),
    ):
        record = msgspec.json.encode({"version": 1, "local": local, "global": replicated})
        assert topic_offload("/k", record) == found

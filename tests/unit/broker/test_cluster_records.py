"""Records of a cluster's administration: this release writes and reads the golden ones.

`tests/golden/broker/cluster-records.txt` has one record a line: its key and its value.
"""

from pathlib import Path

import pytest

from magnetar.bookie.racks import RACKS_KEY, Placed, decode_racks, encode_racks
from magnetar.broker.balance.failure_domains import DOMAINS, FailureDomain, FailureDomains
from magnetar.broker.balance.isolation import (
    ISOLATION,
    AutoFailover,
    IsolationPolicies,
    IsolationPolicy,
)
from magnetar.broker.balance.quotas import QUOTA_DEFAULT, QUOTAS, Quotas, ResourceQuota
from magnetar.broker.dynamic.live_settings import KEY, DynamicValues, decode_values
from magnetar.broker.policies.store import NONE, decode_policies, own_rate, with_own_rate
from magnetar.broker.rates.resource_groups import (
    LIMITS,
    Demand,
    GroupUsage,
    ResourceGroup,
    ResourceGroups,
    usage_record,
)
from magnetar.core.errors import MetadataError
from magnetar.metadata.records import encode
from magnetar.metadata.store import Record

GOLDEN = Path(__file__).parents[2] / "golden" / "broker" / "cluster-records.txt"
RACKS = {"ssd": {"bk-0:3181": Placed("/eu/r1", "h"), "bk-1:3181": Placed("/eu/r2")}}
POLICIES_KEY = "/topic-policies/t/n/persistent/a"
RATE = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
STORED_QUOTAS = Quotas(
    1, QUOTA_DEFAULT, {"t/n/0x00000000_0x40000000": ResourceQuota(1, 2, 3, 4, 5, dynamic=False)}
)
POLICIES = IsolationPolicies(
    1,
    {
        "p": IsolationPolicy(
            ["t/.*"],
            ["a.*"],
            ["b.*"],
            AutoFailover({"min_limit": "1", "usage_threshold": "80"}, "min_available"),
            "none",
        )
    },
)
STORED_DOMAINS = FailureDomains(1, {"d1": FailureDomain(["a:8080", "b:8080"])})
GROUPS = ResourceGroups(1, {"g": ResourceGroup(100, 2000, -1, 5)})
USAGE = GroupUsage(1, {"g": Demand(1.5, 2.0, 0.0, 4.25)})
USAGE_RECORD = usage_record("b-0:8080")


def golden() -> dict[str, bytes]:
    pairs = (line.partition(" ") for line in GOLDEN.read_text().splitlines())
    return {key: value.encode() for key, _, value in pairs}


def test_this_release_writes_the_golden_records() -> None:
    rated = with_own_rate(NONE, "s/é", RATE, is_global=False, rates_max=1)
    assert golden() == {
        KEY: encode(DynamicValues(1, {"maxTopicsPerNamespace": "100"})),
        POLICIES_KEY: encode(rated),
        RACKS_KEY: encode_racks(RACKS),
        QUOTAS.key: encode(STORED_QUOTAS),
        ISOLATION.key: encode(POLICIES),
        LIMITS.key: encode(GROUPS),
        USAGE_RECORD.key: encode(USAGE),
        DOMAINS.key: encode(STORED_DOMAINS),
    }


def test_this_release_reads_the_golden_records() -> None:
    records = golden()
    assert decode_values(KEY, records[KEY]) == {"maxTopicsPerNamespace": "100"}
    assert own_rate(decode_policies(POLICIES_KEY, records[POLICIES_KEY]), "s/é") == RATE
    assert decode_racks(RACKS_KEY, records[RACKS_KEY]) == RACKS
    assert QUOTAS.decode(Record(QUOTAS.key, records[QUOTAS.key], 1)) == STORED_QUOTAS
    assert ISOLATION.decode(Record(ISOLATION.key, records[ISOLATION.key], 1)) == POLICIES
    assert LIMITS.decode(Record(LIMITS.key, records[LIMITS.key], 1)) == GROUPS
    usage = Record(USAGE_RECORD.key, records[USAGE_RECORD.key], 1)
    assert USAGE_RECORD.decode(usage) == USAGE
    assert DOMAINS.decode(Record(DOMAINS.key, records[DOMAINS.key], 1)) == STORED_DOMAINS


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"version":2}', b'{"version":"1"}'])
def test_an_unreadable_record_of_quotas_is_named(value: bytes) -> None:
    with pytest.raises(MetadataError, match=QUOTAS.key):
        QUOTAS.decode(Record(QUOTAS.key, value, 1))


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"values":{}}', b'{"version":2}', b'{"version":"1"}']
)
def test_an_unreadable_record_is_named(value: bytes) -> None:
    with pytest.raises(MetadataError, match=KEY):
        decode_values(KEY, value)

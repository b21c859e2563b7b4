"""The registry is complete: its names, paths, defaults, settings and modules exist."""

import importlib.util
from collections import Counter
from typing import Any

import pytest

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.policies.defaults import broker_value
from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import BY_MANIFEST, BY_NAME, GROUPS, POLICIES, at, rest_of
from magnetar.policies.types import MapOf
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import settings_of


def test_names_and_manifests_are_unique() -> None:
    assert len(BY_NAME) == len(BY_MANIFEST) == len(POLICIES)
    grouped = Counter(policy.name for group in GROUPS.values() for policy in group)
    assert grouped == Counter(list(BY_NAME))


@pytest.mark.parametrize("level", Level)
def test_paths_are_unique_by_verb(level: Level) -> None:
    rests = [rest for policy in at(level) if (rest := rest_of(policy, level)) is not None]
    for words in (
        [rest.path for rest in rests],
        [(rest.set_verb, rest.setting_path) for rest in rests],
        [(rest.remove_verb, rest.removing_path) for rest in rests],
    ):
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_policy_is_what_it_says(policy: Policy) -> None:
    assert policy.levels
    assert (policy.namespace is not None) == bool(policy.document)
    assert policy.text.endswith(".")
    if policy.enforced_by:
        assert importlib.util.find_spec(policy.enforced_by) is not None, policy.enforced_by
    if policy.default is not None:
        assert policy.type.check(policy.default) == policy.default
    if policy.keyed:
        assert isinstance(policy.type, MapOf)
    if policy.by_cluster:
        assert default_policies("c")[policy.document] == {}
    known = settings_of(BrokerSettings) | settings_of(BrokerProcessSettings)
    for name in filter(None, policy.broker_setting.split(", ")):
        assert name in known


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_the_brokers_default_is_a_value_of_the_policy(policy: Policy) -> None:
    for settings in (BrokerSettings(), BrokerProcessSettings()):
        value = broker_value(settings, policy)
        assert (value is None) <= (not policy.broker_setting or policy.name == "persistence")
        if value is not None:
            assert policy.type.check(value) == value


def test_what_is_enforced_has_a_default_that_can_be_set() -> None:
    without = {policy.name for policy in POLICIES if policy.enforced and not policy.broker_setting}
    # Of these, not saying anything is the default, as in Pulsar.
    assert without <= {
        "schema_validation",
        "encryption_required",
        "subscription_types",
        "subscription_auth_mode",
        "compaction_threshold",
        "offload",
        "offload_threshold",
        "offload_threshold_age",
        "offload_deletion_lag",
        "bookie_affinity",
        "anti_affinity",
    }


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_policy_that_nothing_enforces_says_which_values_it_cannot_honor(policy: Policy) -> None:
    assert policy.enforced or policy.limitation is not None
    assert policy.unsupported(None) is None
    if policy.default is not None:
        assert policy.unsupported(policy.default) is None


RATE = {
    "dispatchThrottlingRateInMsg": -1,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
COPIES = {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
ASKS: list[tuple[str, Any, Any]] = [
    ("replication", ["here", "there"], ["here"]),
    ("replication", ["there"], []),
    ("replicator_dispatch_rate", RATE | {"dispatchThrottlingRateInMsg": 10}, RATE),
    (
        "replicator_dispatch_rate",
        RATE | {"dispatchThrottlingRateInByte": 10},
        RATE | {"dispatchThrottlingRateInByte": 0},
    ),
    (
        "persistence",
        COPIES | {"managedLedgerMaxMarkDeleteRate": 0.5},
        COPIES | {"managedLedgerMaxMarkDeleteRate": 0},
    ),
    (
        "persistence",
        COPIES | {"managedLedgerMaxMarkDeleteRate": 0.1},
        COPIES | {"managedLedgerMaxMarkDeleteRate": 1.0},
    ),
]


@pytest.mark.parametrize(("name", "refused", "accepted"), ASKS)
def test_a_value_that_brokers_do_not_honor_is_named_and_one_that_means_off_is_not(
    name: str, refused: Any, accepted: Any
) -> None:
    policy = BY_NAME[name]
    text = policy.unsupported(policy.type.check(refused), "here")
    assert text is not None
    assert "not supported" in text
    checked = None if accepted is None else policy.type.check(accepted)
    assert policy.unsupported(checked, "here") is None


def test_every_limitation_is_tried() -> None:
    assert {policy.name for policy in POLICIES if policy.limitation} == {name for name, *_ in ASKS}


def test_one_cluster_counts_as_the_local_one_while_its_name_is_not_known() -> None:
    replication = BY_NAME["replication"]
    assert replication.unsupported(["anywhere"]) is None
    assert replication.unsupported(["here", "there"]) is not None

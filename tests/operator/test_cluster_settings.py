"""`spec.broker.config` reaches the brokers: every setting of transactions and deduplication.

A setting that is added to these groups needs a row here.
"""

from typing import Final

import pytest
from tests.operator.cluster_world import cluster_of

from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.deduplication import DeduplicationSettings
from magnetar.settings.field import SettingsError, settings_of, values_of
from magnetar.settings.load import load
from magnetar.settings.transactions import TransactionSettings
from magnetar_operator.cluster.manifests.brokers import broker_settings

SETTINGS: Final = settings_of(TransactionSettings) | settings_of(DeduplicationSettings)
GIVEN: Final[dict[str, object]] = {
    "transactions": True,
    "open_transactions_max": 77,
    "transaction_outcome_retention_s": 78,
    "transaction_end_timeout_ms": 7_900,
    "transaction_ends_max": 80,
    "deduplication": True,
    "deduplication_producers_max": 81,
    "deduplication_inactivity_minutes": 82,
    "deduplication_snapshot_entries": 83,
    "deduplication_snapshot_interval_s": 84,
    "deduplication_sweep_interval_s": 85.0,
}
"""Values that are not the defaults."""


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def loaded(config: dict[str, str]) -> dict[str, object]:
    """The settings of a broker whose MagnetarCluster has this `spec.broker.config`."""
    environ = broker_settings(cluster_of(broker={"config": config}))
    result = load(BrokerProcessSettings, {}, environ)
    assert not result.warnings
    return values_of(result.settings)


def test_every_setting_has_a_row() -> None:
    assert GIVEN.keys() == SETTINGS.keys()
    assert not any(SETTINGS[name].default == value for name, value in GIVEN.items())


@pytest.mark.parametrize("name", GIVEN)
def test_the_config_of_brokers_takes_both_names_of_a_setting(name: str) -> None:
    names = [name, *filter(None, [SETTINGS[name].pulsar_key])]
    for key in names:
        assert loaded({key: as_text(GIVEN[name])})[name] == GIVEN[name]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transactionCoordinatorEnabled", "perhaps"),
        ("maxActiveTransactionsPerCoordinator", "-1"),
        ("transaction_outcome_retention_s", "86401"),
        ("transactionBufferClientOperationTimeoutInMills", "99"),
        ("transactionBufferClientMaxConcurrentRequests", "0"),
        ("brokerDeduplicationMaxNumberOfProducers", "0"),
        ("brokerDeduplicationSnapshotIntervalSeconds", "-1"),
        ("transactionMetadataStoreProviderClassName", "com.example.Store"),
        ("transactionBufferProviderClassName", "com.example.Buffer"),
        ("transactionPendingAckStoreProviderClassName", "com.example.Store"),
    ],
)
def test_a_value_that_brokers_do_not_honor_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=key):
        loaded({key: value})

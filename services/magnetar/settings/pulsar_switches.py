"""Pulsar keys that require a feature that Magnetar does not have: the process does not start.

Most keys without effect here are for tuning, so a warning is sufficient. These are different: with
`strictBookieAffinityEnabled=true`, an operator who sees the server start believes that bookies of
groups store no ledgers of other namespaces. A value that requires nothing ("false", 0, empty) is
accepted. `enableReplicatedSubscriptions` is accepted as well: Pulsar's default is true, it only
permits a feature, and Magnetar refuses each use of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.settings.pulsar_behavior import is_other, rows


def _is_true(value: object) -> bool:
    return str(value).strip().lower() == "true"


def _is_set(value: object) -> bool:
    return value not in ("", [], None, False) and str(value).strip() != ""


def _is_other_than(default: str) -> Callable[[object], bool]:
    """Returns whether a value is set and not the only one that Magnetar supports."""
    return lambda value: _is_set(value) and str(value).strip() != default


def _is_unknown_tracker(value: object) -> bool:
    """Whether a value is set and not one of Pulsar's own trackers."""
    return _is_set(value) and str(value).strip() not in (
        "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory",
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    )


@dataclass(frozen=True, slots=True)
class Switch:
    """The feature that a key requires, the values that require it, and how to avoid that."""

    requires: Callable[[object], bool]
    feature: str
    way_out: str


_AUTHENTICATION: Final = "authentication"
_AUTHORIZATION: Final = "authorization"
_KEY_STORES: Final = "key stores (JKS, PKCS12)"
_TRACKERS: Final = "tuning of Pulsar's trackers of delayed messages"
_ONE_INDEX: Final = (
    "remove the key, or leave it empty or at Pulsar's default: a topic has one index"
)
_TXN_PLUGINS: Final = "plugins for transactions"
_ONE_STORE: Final = (
    "remove the key, or leave it empty or at Pulsar's default: transactions are recorded in the "
    "metadata store and with their topics"
)
_OWN_OPTIONS: Final = "ciphers and protocols of single ports"
_CONVERT: Final = (
    "remove the key or leave it empty, and use PEM files (tlsCertificateFilePath, tlsKeyFilePath, "
    "tlsTrustCertsFilePath). To convert a store: keytool -importkeystore -srckeystore STORE.jks "
    "-destkeystore STORE.p12 -deststoretype PKCS12; openssl pkcs12 -in STORE.p12 -nokeys -out "
    "cert.pem; openssl pkcs12 -in STORE.p12 -nocerts -nodes -out key.pem"
)


def _switches(requires: Callable[[object], bool], way_out: str, **keys: str) -> dict[str, Switch]:
    return {key: Switch(requires, feature, way_out) for key, feature in keys.items()}


SWITCHES: Final[dict[str, Switch]] = {
    **_switches(
        _is_true,
        "remove the key or set it to false",
        replicationTlsEnabled="geo-replication",
        strictBookieAffinityEnabled="namespaces without an affinity that avoid bookies of groups",
        zkEnableSecurity="access control in the metadata store by Pulsar's means",
    ),
    **_switches(
        _is_set,
        "remove the key or leave it empty",
        authorizedRoles=_AUTHORIZATION,
        bookieAuthProviderFactoryClass=_AUTHENTICATION,
        bookkeeperClientAuthenticationPlugin=_AUTHENTICATION,
        tokenSettingPrefix="another prefix of the token settings",
    ),
    **_switches(
        _is_true,
        "set the ports instead: brokerServicePortTls, webServicePortTls",
        tlsEnabled="tlsEnabled, which Pulsar dropped, too",
    ),
    **_switches(
        _is_true,
        _CONVERT,
        brokerClientTlsEnabledWithKeyStore=_KEY_STORES,
        tlsEnabledWithKeyStore=_KEY_STORES,
    ),
    **_switches(
        _is_set,
        _CONVERT,
        bookkeeperTLSKeyStorePasswordPath=_KEY_STORES,
        bookkeeperTLSTrustStorePasswordPath=_KEY_STORES,
        brokerClientTlsKeyStore=_KEY_STORES,
        brokerClientTlsKeyStorePassword=_KEY_STORES,
        brokerClientTlsTrustStore=_KEY_STORES,
        brokerClientTlsTrustStorePassword=_KEY_STORES,
        tlsKeyStore=_KEY_STORES,
        tlsKeyStorePassword=_KEY_STORES,
        tlsKeyStorePasswordPath=_KEY_STORES,
        tlsTrustStore=_KEY_STORES,
        tlsTrustStorePassword=_KEY_STORES,
        tlsTrustStorePasswordPath=_KEY_STORES,
    ),
    **_switches(
        _is_set,
        "leave the key empty: tlsCiphers and tlsProtocols are those of all connections",
        brokerClientTlsCiphers=_OWN_OPTIONS,
        brokerClientTlsProtocols=_OWN_OPTIONS,
        webServiceTlsCiphers=_OWN_OPTIONS,
        webServiceTlsProtocols=_OWN_OPTIONS,
    ),
    **_switches(
        _is_other_than("PEM"),
        _CONVERT,
        bookkeeperTLSKeyFileType=_KEY_STORES,
        bookkeeperTLSTrustCertTypes=_KEY_STORES,
    ),
    **_switches(
        _is_other_than("org.apache.pulsar.common.util.DefaultPulsarSslFactory"),
        "remove the key or leave it empty",
        brokerClientSslFactoryPlugin="plugins for TLS",
        sslFactoryPlugin="plugins for TLS",
    ),
    **_switches(
        _is_other_than("org.apache.bookkeeper.tls.TLSContextFactory"),
        "remove the key or leave it empty",
        bookkeeperTLSProviderFactoryClass="plugins for TLS",
    ),
    **_switches(
        _is_unknown_tracker,
        "remove the key or leave it empty: a topic has one index of its own form",
        delayedDeliveryTrackerFactoryClassName="plugins for delayed delivery",
    ),
    **_switches(
        _is_other_than(
            "org.apache.pulsar.transaction.coordinator.impl.MLTransactionMetadataStoreProvider"
        ),
        _ONE_STORE,
        transactionMetadataStoreProviderClassName=_TXN_PLUGINS,
    ),
    **_switches(
        _is_other_than(
            "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBufferProvider"
        ),
        _ONE_STORE,
        transactionBufferProviderClassName=_TXN_PLUGINS,
    ),
    **_switches(
        _is_other_than(
            "org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckStoreProvider"
        ),
        _ONE_STORE,
        transactionPendingAckStoreProviderClassName=_TXN_PLUGINS,
    ),
    **_switches(
        _is_other_than("50000"),
        _ONE_INDEX,
        delayedDeliveryFixedDelayDetectionLookahead=_TRACKERS,
    ),
    **_switches(
        _is_other_than("5000"),
        _ONE_INDEX,
        delayedDeliveryMaxIndexesPerBucketSnapshotSegment=_TRACKERS,
    ),
    **_switches(
        _is_other_than("300"),
        _ONE_INDEX,
        delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=_TRACKERS,
    ),
    **_switches(
        _is_other_than("-1"),
        _ONE_INDEX,
        delayedDeliveryMaxNumBuckets=_TRACKERS,
    ),
    **{
        key: Switch(partial(is_other, accepted=accepted), behavior.feature, behavior.way_out)
        for key, accepted, behavior in rows()
    },
}


NOTICES: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "webSocketServiceEnabled": (
        _is_true,
        (
            "there is no WebSocket service: clients use the binary protocol. The start goes on "
            "because the key is true in Pulsar's own standalone.conf"
        ),
    ),
}
"""Keys whose values cause a warning of their own: they require a missing feature, and Pulsar's own
files set them, which must load."""


def notice(key: str, value: object) -> str | None:
    """The warning that this value of `key` causes, or None."""
    requires, text = NOTICES.get(key, (_is_true, ""))
    return text if text and requires(value) else None


def refusal(key: str, value: object) -> str | None:
    """The reason why the process does not start with this value of `key`, or None."""
    switch = SWITCHES.get(key)
    if switch is None or not switch.requires(value):
        return None
    return f"Magnetar does not support {switch.feature}; {switch.way_out}"

"""The settings of a cluster's processes: what all share, then broker and autorecovery.

The bookie's are in `bookie_settings`. Names of Pulsar's and BookKeeper's are taken where they mean
the same. Classes that are mixed into others have no slots, as Python asks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.broker.setting import SettingsError, checked, setting
from magnetar.broker.settings import LogFormat, LogLevel
from magnetar.broker.settings_balance import BalancedBrokerSettings

CLUSTER: Final = "Cluster"
BROKER: Final = "Broker in a cluster"
AUTORECOVERY: Final = "Autorecovery"
OPERATION: Final = "Operation"

CLUSTER_NAME_DEFAULT: Final = "magnetar"


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """What every process of a cluster has: where its metadata is, and its standing there."""

    metadata_url: str = setting(
        "etcd:http://127.0.0.1:2379",
        "The metadata store: `etcd:` and the URLs of its members, with commas between.",
        group=CLUSTER,
        pulsar="metadataStoreUrl",
        aliases=("metadataServiceUri",),
    )
    metadata_root: str = setting(
        "/magnetar",
        "The path below which all keys are; several clusters may share an etcd by it.",
        group=CLUSTER,
    )
    metadata_tls_ca_file: Path | None = setting(
        None,
        "Authorities (PEM) that etcd's certificates must come from; by default the machine's.",
        group=CLUSTER,
    )
    metadata_tls_cert_file: Path | None = setting(
        None, "The certificate (PEM) that is shown to etcd.", group=CLUSTER
    )
    metadata_tls_key_file: Path | None = setting(
        None, "The key (PEM) of that certificate.", group=CLUSTER
    )
    metadata_username: str = setting("", "The user of etcd, where it asks for one.", group=CLUSTER)
    metadata_password_file: Path | None = setting(
        None, "A file whose first line is that user's password.", group=CLUSTER
    )
    session_timeout_ms: int = setting(
        5_000,
        "How long a process that is silent keeps what it owns; then others take it "
        "(Pulsar: 30000).",
        group=CLUSTER,
        unit="ms",
        low=1_000,
        high=600_000,
        pulsar="metadataStoreSessionTimeoutMillis",
        aliases=("zkTimeout",),
    )
    cluster_owner: str = setting(
        "",
        "The cluster's owner; a process of another owner does not start on the same metadata_root "
        "(empty: not compared).",
        group=CLUSTER,
    )
    metadata_wait_s: int = setting(
        60,
        "How long a start waits for the metadata store before it gives up.",
        group=CLUSTER,
        unit="s",
        low=0,
        high=86_400,
    )


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What a process that is no broker has beside its work; a broker has its own of these."""

    cluster_name: str = setting(
        CLUSTER_NAME_DEFAULT,
        "The cluster's name; a process of another cluster is refused.",
        group=CLUSTER,
        pulsar="clusterName",
    )
    shutdown_timeout_ms: int = setting(
        10_000,
        "How long a stopping process may take to finish what it was given.",
        group=CLUSTER,
        unit="ms",
        low=100,
        high=600_000,
    )
    log_format: LogFormat = setting(
        "auto",
        "How log lines look: `auto` is console on a terminal and JSON elsewhere.",
        group=OPERATION,
    )
    log_level: LogLevel = setting("info", "The least important log lines shown.", group=OPERATION)

    def __post_init__(self) -> None:
        checked(self)


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """How lost copies are made anew, in a process of its own or in a bookie's."""

    lost_bookie_delay_s: int = setting(
        10,
        "How long a bookie must be away until its ledgers are copied to others (BookKeeper: 0).",
        group=AUTORECOVERY,
        unit="s",
        low=0,
        high=86_400,
        pulsar="lostBookieRecoveryDelay",
    )
    open_ledger_grace_ms: int = setting(
        30_000,
        "How long the writer of an open ledger has to replace a lost bookie itself.",
        group=AUTORECOVERY,
        unit="ms",
        low=0,
        high=3_600_000,
        pulsar="openLedgerRereplicationGracePeriod",
    )
    audit_interval_s: int = setting(
        86_400,
        "How often every ledger's record is held against the bookies, whatever happened.",
        group=AUTORECOVERY,
        unit="s",
        low=1,
        high=31_536_000,
        pulsar="auditorPeriodicBookieCheckInterval",
    )
    ledger_check_interval_s: int = setting(
        604_800,
        "How often every copy of every entry is read and compared; 0: never.",
        group=AUTORECOVERY,
        unit="s",
        low=0,
        high=31_536_000,
        pulsar="auditorPeriodicCheckInterval",
    )
    recovery_ledgers_at_once: int = setting(
        2,
        "Ledgers that one process makes whole at the same time.",
        group=AUTORECOVERY,
        unit="ledgers",
        low=1,
        high=1_000,
    )
    recovery_copy_mb_per_s_max: int = setting(
        64,
        "How fast one process copies; 0: as fast as it goes.",
        group=AUTORECOVERY,
        unit="MiB/s",
        low=0,
        high=1 << 20,
    )
    recovery_check_mb_per_s_max: int = setting(
        32,
        "How fast one process reads for the comparison of copies; 0: as fast as it goes.",
        group=AUTORECOVERY,
        unit="MiB/s",
        low=0,
        high=1 << 20,
    )


@dataclass(frozen=True, kw_only=True)
class AutorecoveryProcessSettings(ProcessSettings, RecoverySettings, MemberSettings):
    """A process that only watches over ledgers."""

    host: str = setting(
        "127.0.0.1",
        "The address that its health and metrics listen on.",
        group=AUTORECOVERY,
        pulsar="bindAddress",
    )
    http_port: int = setting(
        8001,
        "Port of health and metrics; 0 takes a free one.",
        group=AUTORECOVERY,
        low=0,
        high=65_535,
        pulsar="httpServerPort",
    )
    advertised_host: str | None = setting(
        None,
        "The name it is known by; by default the host listened on.",
        group=AUTORECOVERY,
        pulsar="advertisedAddress",
    )


@dataclass(frozen=True, kw_only=True)
class BrokerProcessSettings(BalancedBrokerSettings, MemberSettings):
    """A broker whose ledgers are on bookies."""

    cluster_name: str = setting(
        CLUSTER_NAME_DEFAULT,
        "The cluster's name; a process of another cluster is refused.",
        group=CLUSTER,
        pulsar="clusterName",
    )
    host: str = setting(
        "127.0.0.1",
        "The address that both ports listen on (Pulsar: 0.0.0.0).",
        group=BROKER,
        pulsar="bindAddress",
    )
    port: int = setting(
        6650,
        "Port of the binary protocol; 0 takes a free one.",
        group=BROKER,
        low=0,
        high=65_535,
        pulsar="brokerServicePort",
    )
    http_port: int = setting(
        8080,
        "Port of the admin REST, lookups, health and metrics; 0 takes a free one.",
        group=BROKER,
        low=0,
        high=65_535,
        pulsar="webServicePort",
    )
    advertised_host: str | None = setting(
        None,
        "The host name that clients and brokers are told; by default the one listened on.",
        group=BROKER,
        pulsar="advertisedAddress",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "Addresses by the listener that clients ask for: `name:pulsar://host:port`, with commas.",
        group=BROKER,
        pulsar="advertisedListeners",
    )
    internal_listener_name: str | None = setting(
        None,
        "Which of them brokers use, and clients that name none; by default the first.",
        group=BROKER,
        pulsar="internalListenerName",
    )
    ensemble_size: int = setting(
        2,
        "Bookies that a new ledger is spread over.",
        group=BROKER,
        unit="bookies",
        low=1,
        high=100,
        pulsar="managedLedgerDefaultEnsembleSize",
    )
    write_quorum: int = setting(
        2,
        "Bookies that each entry is written to.",
        group=BROKER,
        unit="bookies",
        low=1,
        high=100,
        pulsar="managedLedgerDefaultWriteQuorum",
    )
    ack_quorum: int = setting(
        2,
        "Bookies that must have an entry on disk before its producer hears of it.",
        group=BROKER,
        unit="bookies",
        low=1,
        high=100,
        pulsar="managedLedgerDefaultAckQuorum",
    )

    add_timeout_ms: int = setting(
        3_000,
        "How long a bookie may take for an add before the writer does without it.",
        group=BROKER,
        unit="ms",
        low=100,
        high=600_000,
    )
    read_timeout_s: int = setting(
        30,
        "How long a read may take, with all the copies that it tries.",
        group=BROKER,
        unit="s",
        low=1,
        high=3_600,
        pulsar="bookkeeperClientTimeoutInSeconds",
    )
    speculative_read_delay_ms: int = setting(
        250,
        "After how long without an answer another copy is asked as well (Pulsar: never).",
        group=BROKER,
        unit="ms",
        low=1,
        high=600_000,
        pulsar="bookkeeperClientSpeculativeReadTimeoutInMillis",
    )
    quarantine_errors_max: int = setting(
        5,
        "Seconds with errors, within `quarantine_window_s`, that put a bookie in quarantine.",
        group=BROKER,
        low=1,
        high=1_000,
        pulsar="bookkeeperClientHealthCheckErrorThresholdPerInterval",
    )
    quarantine_window_s: int = setting(
        60,
        "How far back errors of a bookie count.",
        group=BROKER,
        unit="s",
        low=1,
        high=86_400,
        pulsar="bookkeeperClientHealthCheckIntervalSeconds",
    )
    quarantine_s: int = setting(
        1_800,
        "How long a bookie in quarantine gets no new ledger, where there are others.",
        group=BROKER,
        unit="s",
        low=1,
        high=86_400,
        pulsar="bookkeeperClientHealthCheckQuarantineTimeInSeconds",
    )

    def __post_init__(self) -> None:
        # Not super(): a class with slots is another object than the one its methods were made in.
        BalancedBrokerSettings.__post_init__(self)
        if not self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise SettingsError(
                f"ack_quorum {self.ack_quorum}, write_quorum {self.write_quorum} and "
                f"ensemble_size {self.ensemble_size}: each must be at most the next"
            )

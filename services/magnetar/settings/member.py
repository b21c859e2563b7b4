"""The settings that the processes of a cluster share, and those of autorecovery.

A setting has the key of Pulsar or BookKeeper if it means the same.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.core.units import MIB
from magnetar.settings.field import checked, group, setting
from magnetar.settings.operation import LogSettings
from magnetar.settings.storage_tls import BookieClientTlsSettings, StorageTlsSettings
from magnetar.settings.tls import TlsSettings

CLUSTER: Final = "Cluster"
AUTORECOVERY: Final = "Autorecovery"

CLUSTER_NAME_DEFAULT: Final = "magnetar"


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """The settings of a cluster's process for the metadata store and its session."""

    metadata_url: str = setting(
        "etcd:http://127.0.0.1:2379",
        "The metadata store: `etcd:` and the URLs of its members, separated by commas.",
        group=CLUSTER,
        pulsar="metadataStoreUrl",
        aliases=("metadataServiceUri",),
    )
    metadata_root: str = setting(
        "/magnetar",
        "The path of all keys; clusters with different paths may share an etcd.",
        group=CLUSTER,
    )
    metadata_tls_ca_file: Path | None = setting(
        None,
        "The CA certificates (PEM) that verify etcd; by default, the machine's.",
        group=CLUSTER,
    )
    metadata_tls_cert_file: Path | None = setting(
        None, "The client certificate (PEM) for etcd.", group=CLUSTER
    )
    metadata_tls_key_file: Path | None = setting(
        None, "The private key (PEM) of the client certificate.", group=CLUSTER
    )
    metadata_username: str = setting(
        "", "The user of etcd, if it requires authentication.", group=CLUSTER
    )
    metadata_password_file: Path | None = setting(
        None, "A file whose first line is the user's password.", group=CLUSTER
    )
    session_timeout_ms: int = setting(
        5_000,
        "Time to live of a process's session without renewal; afterwards, others claim its bundles "
        "(Pulsar: 30000).",
        group=CLUSTER,
        unit="ms",
        within=(1_000, 600_000),
        pulsar="metadataStoreSessionTimeoutMillis",
        aliases=("zkTimeout",),
    )
    cluster_owner: str = setting(
        "",
        "The cluster's owner; a process with another owner does not start on the same "
        "metadata_root (empty: not compared).",
        group=CLUSTER,
    )
    metadata_wait_s: int = setting(
        60,
        "How long a start waits for the metadata store before it fails.",
        group=CLUSTER,
        unit="s",
        within=(0, 86_400),
    )


class ClusterSettings(Protocol):
    """What the settings of every process of a cluster have."""

    @property
    def tls(self) -> TlsSettings: ...

    @property
    def bookie_client(self) -> BookieClientTlsSettings: ...

    @property
    def member(self) -> MemberSettings: ...

    @property
    def cluster_name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Cluster name and shutdown of a bookie or an autorecovery process.

    Brokers have them in `BrokerSettings`, where Pulsar's keys mean them.
    """

    cluster_name: str = setting(
        CLUSTER_NAME_DEFAULT,
        "The cluster's name; a process of another cluster is refused.",
        group=CLUSTER,
        pulsar="clusterName",
    )
    shutdown_timeout_ms: int = setting(
        10_000,
        "How long a stopping process may take to drain.",
        group=CLUSTER,
        unit="ms",
        within=(100, 600_000),
    )


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """The settings of autorecovery, in a separate process or in a bookie's."""

    lost_bookie_delay_s: int = setting(
        10,
        "How long a bookie must be missing before its ledgers are re-replicated (BookKeeper: 0).",
        group=AUTORECOVERY,
        unit="s",
        within=(0, 86_400),
        pulsar="lostBookieRecoveryDelay",
    )
    open_ledger_grace_ms: int = setting(
        30_000,
        "How long the writer of an open ledger may take to replace a lost bookie.",
        group=AUTORECOVERY,
        unit="ms",
        within=(0, 3_600_000),
        pulsar="openLedgerRereplicationGracePeriod",
    )
    audit_interval_s: int = setting(
        86_400,
        "Interval of the comparison of all ledger records with the bookies.",
        group=AUTORECOVERY,
        unit="s",
        within=(1, 31_536_000),
        pulsar="auditorPeriodicBookieCheckInterval",
    )
    ledger_check_interval_s: int = setting(
        604_800,
        "Interval of reading and comparing every copy of every entry; 0: never.",
        group=AUTORECOVERY,
        unit="s",
        within=(0, 31_536_000),
        pulsar="auditorPeriodicCheckInterval",
    )
    recovery_ledgers_at_once: int = setting(
        2,
        "Number of ledgers that a process re-replicates at a time.",
        group=AUTORECOVERY,
        unit="ledgers",
        within=(1, 1_000),
    )
    recovery_copy_mb_per_s_max: int = setting(
        64,
        "Maximum rate of re-replication by a process; 0: no limit.",
        group=AUTORECOVERY,
        unit="MiB/s",
        within=(0, 1 << 20),
    )
    recovery_check_mb_per_s_max: int = setting(
        32,
        "Maximum read rate of a process that compares copies; 0: no limit.",
        group=AUTORECOVERY,
        unit="MiB/s",
        within=(0, 1 << 20),
    )

    def autorecovery_settings(self) -> AutorecoverySettings:
        """Returns autorecovery's settings, in its units."""
        return AutorecoverySettings(
            lost_bookie_delay_s=float(self.lost_bookie_delay_s),
            open_ledger_grace_s=self.open_ledger_grace_ms / 1000,
            audit_interval_s=float(self.audit_interval_s),
            check_interval_s=float(self.ledger_check_interval_s),
            ledgers_at_once=self.recovery_ledgers_at_once,
            copy_bytes_per_s_max=self.recovery_copy_mb_per_s_max * MIB,
            check_bytes_per_s_max=self.recovery_check_mb_per_s_max * MIB,
        )


@dataclass(frozen=True, kw_only=True)
class AutorecoveryProcessSettings:
    """The settings of `magnetar autorecovery`."""

    tls: TlsSettings = group(TlsSettings)
    bookie_client: BookieClientTlsSettings = group(BookieClientTlsSettings)
    member: MemberSettings = group(MemberSettings)
    storage_tls: StorageTlsSettings = group(StorageTlsSettings)
    recovery: RecoverySettings = group(RecoverySettings)
    process: ProcessSettings = group(ProcessSettings)
    log: LogSettings = group(LogSettings)
    host: str = setting(
        "127.0.0.1",
        "The address that health and metrics listen on.",
        group=AUTORECOVERY,
        pulsar="bindAddress",
    )
    http_port: int = setting(
        8001,
        "Port of health and metrics; 0 takes a free one.",
        group=AUTORECOVERY,
        within=(0, 65_535),
        pulsar="httpServerPort",
    )
    advertised_host: str | None = setting(
        None,
        "The host name in its health URL; by default, the address listened on.",
        group=AUTORECOVERY,
        pulsar="advertisedAddress",
    )

    def __post_init__(self) -> None:
        checked(self)

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        return self.process.cluster_name

    @property
    def shutdown_timeout_ms(self) -> int:
        """How long the process may take to drain."""
        return self.process.shutdown_timeout_ms

"""The settings of a bookie's process; `storage` returns those of its storage.

BookKeeper's keys are accepted. BookKeeper has directories for journals, ledgers and indexes, a
bookie here has one. If a file names different directories, the bookie does not start.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.registration import RACK_DEFAULT
from magnetar.bookie.settings import BookieSettings
from magnetar.core.units import MIB
from magnetar.settings.choices import PortTls
from magnetar.settings.field import SettingsError, checked, group, setting
from magnetar.settings.member import MemberSettings, ProcessSettings, RecoverySettings
from magnetar.settings.operation import LogSettings
from magnetar.settings.storage_tls import BookieClientTlsSettings, StorageTlsSettings
from magnetar.settings.tls import TLS, TlsSettings

BOOKIE: Final = "Bookie"
STORAGE: Final = "Bookie's storage"
_DEFAULT: Final = BookieSettings()


@dataclass(frozen=True, kw_only=True)
class BookieProcessSettings:
    """The settings of `magnetar bookie`."""

    tls: TlsSettings = group(TlsSettings)
    bookie_client: BookieClientTlsSettings = group(BookieClientTlsSettings)
    member: MemberSettings = group(MemberSettings)
    storage_tls: StorageTlsSettings = group(StorageTlsSettings)
    recovery: RecoverySettings = group(RecoverySettings)
    process: ProcessSettings = group(ProcessSettings)
    log: LogSettings = group(LogSettings)
    bookie_tls: PortTls = setting(
        "off",
        "Whether brokers connect by TLS: `optional` also admits plain connections, for the time in "
        "which a cluster is switched to TLS.",
        group=TLS,
        pulsar="tlsProviderFactoryClass",
        values={"org.apache.bookkeeper.tls.TLSContextFactory": "required"},
    )
    bookie_member_roles: tuple[str, ...] = setting(
        (),
        "The roles (CN) of clients that may do everything: brokers, bookies, autorecovery; empty: "
        "every client.",
        group=TLS,
    )
    bookie_reader_roles: tuple[str, ...] = setting(
        (),
        "The roles (CN) of clients that may only read: Spark jobs.",
        group=TLS,
    )
    data_dir: Path = setting(
        Path("data-bookie"),
        "The directory of all data; locked while in use.",
        group=BOOKIE,
        pulsar="ledgerDirectories",
        aliases=("journalDirectories", "journalDirectory", "indexDirectories"),
    )
    bookie_id: str | None = setting(
        None,
        "The bookie's id in ledgers, also stored on its disk; by default, its host and port.",
        group=BOOKIE,
        pulsar="bookieId",
    )
    host: str = setting(
        "127.0.0.1",
        "The address that both ports listen on (BookKeeper: all).",
        group=BOOKIE,
        pulsar="bindAddress",
    )
    port: int = setting(
        3181,
        "Port of the protocol for brokers; 0 takes a free one.",
        group=BOOKIE,
        within=(0, 65_535),
        pulsar="bookiePort",
    )
    http_port: int = setting(
        8000,
        "Port of health and metrics; 0 takes a free one.",
        group=BOOKIE,
        within=(0, 65_535),
        pulsar="httpServerPort",
    )
    advertised_host: str | None = setting(
        None,
        "The host name that brokers connect to; by default, the address listened on.",
        group=BOOKIE,
        pulsar="advertisedAddress",
    )
    rack: str = setting(
        RACK_DEFAULT,
        "`/region/rack`: copies of an entry are in different regions, if there are several, else "
        "on different racks.",
        group=BOOKIE,
    )
    autorecovery: bool = setting(
        True,
        "Whether this process also audits ledgers and re-replicates lost copies.",
        group=BOOKIE,
        pulsar="autoRecoveryDaemonEnabled",
    )
    journal_file_mb: int = setting(
        _DEFAULT.journal_file_bytes // MIB,
        "Size of a journal file (BookKeeper: 2048).",
        group=STORAGE,
        unit="MiB",
        within=(1, 4_096),
        pulsar="journalMaxSizeMB",
    )
    write_cache_mb: int = setting(
        2 * _DEFAULT.write_cache_bytes // MIB,
        "Memory for entries that are not in entry logs yet.",
        group=STORAGE,
        unit="MiB",
        within=(2, 1 << 20),
        pulsar="dbStorage_writeCacheMaxSizeMb",
    )
    read_cache_mb: int = setting(
        _DEFAULT.read_cache_bytes // MIB,
        "Memory for the read cache of blocks.",
        group=STORAGE,
        unit="MiB",
        within=(0, 1 << 20),
        pulsar="dbStorage_readAheadCacheMaxSizeMb",
    )
    entry_log_bytes: int = setting(
        _DEFAULT.entry_log_bytes,
        "Size of an entry log file (BookKeeper: 1073741824).",
        group=STORAGE,
        unit="bytes",
        within=(MIB, 2 << 30),
        pulsar="logSizeLimit",
    )
    disk_usage_max: float = setting(
        _DEFAULT.disk_usage_high,
        "Used fraction of the disk at which the bookie becomes read-only.",
        group=STORAGE,
        within=(0.01, 1),
        pulsar="diskUsageThreshold",
    )
    disk_usage_low: float = setting(
        _DEFAULT.disk_usage_low,
        "Used fraction of the disk below which it becomes writable again.",
        group=STORAGE,
        within=(0.01, 1),
        pulsar="diskUsageLwmThreshold",
    )
    disk_stall_ms: int = setting(
        int(_DEFAULT.disk_stall_s * 1000),
        "Duration of a journal commit or a flush after which the bookie is not ready.",
        group=STORAGE,
        unit="ms",
        within=(100, 3_600_000),
    )
    gc_interval_ms: int = setting(
        int(_DEFAULT.gc_interval_s * 1000),
        "Interval of the deletion of entry logs without live entries.",
        group=STORAGE,
        unit="ms",
        within=(1_000, 86_400_000),
        pulsar="gcWaitTime",
    )
    gc_minor_live_ratio: float = setting(
        _DEFAULT.gc_minor_live_ratio,
        "Minor collections rewrite entry logs whose live fraction is lower.",
        group=STORAGE,
        within=(0, 1),
        pulsar="minorCompactionThreshold",
    )
    gc_minor_interval_s: int = setting(
        int(_DEFAULT.gc_minor_interval_s),
        "Interval of minor collections.",
        group=STORAGE,
        unit="s",
        within=(1, 31_536_000),
        pulsar="minorCompactionInterval",
    )
    gc_major_live_ratio: float = setting(
        _DEFAULT.gc_major_live_ratio,
        "Major collections rewrite entry logs whose live fraction is lower.",
        group=STORAGE,
        within=(0, 1),
        pulsar="majorCompactionThreshold",
    )
    gc_major_interval_s: int = setting(
        int(_DEFAULT.gc_major_interval_s),
        "Interval of major collections.",
        group=STORAGE,
        unit="s",
        within=(1, 31_536_000),
        pulsar="majorCompactionInterval",
    )

    def __post_init__(self) -> None:
        checked(self)
        if self.bookie_tls != "off" or self.storage_tls.http_tls:
            self.tls.server_tls()
        if self.bookie_member_roles and self.bookie_tls != "required":
            raise SettingsError("bookie_member_roles is set, which needs bookie_tls=required")
        if self.bookie_reader_roles and not self.bookie_member_roles:
            raise SettingsError("bookie_reader_roles is set, and bookie_member_roles is not")
        if self.disk_usage_low > self.disk_usage_max:
            raise SettingsError(
                f"disk_usage_low is {self.disk_usage_low}, more than disk_usage_max, "
                f"{self.disk_usage_max}"
            )
        if self.bookie_id is None and self.port == 0:
            raise SettingsError("bookie_id must be set if port is 0, since the id must not change")

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        return self.process.cluster_name

    @property
    def shutdown_timeout_ms(self) -> int:
        """How long the process may take to drain."""
        return self.process.shutdown_timeout_ms

    @property
    def identity(self) -> str:
        """The bookie's id; by default host and port, as in BookKeeper."""
        return self.bookie_id or f"{self.advertised_host or self.host}:{self.port}"

    def storage(self) -> BookieSettings:
        """Returns the settings of the storage, in its units."""
        return BookieSettings(
            journal_file_bytes=self.journal_file_mb * MIB,
            journal_preallocate_bytes=min(
                self.journal_file_mb * MIB, _DEFAULT.journal_preallocate_bytes
            ),
            write_cache_bytes=self.write_cache_mb * MIB // 2,
            read_cache_bytes=self.read_cache_mb * MIB,
            entry_log_bytes=self.entry_log_bytes,
            disk_usage_high=self.disk_usage_max,
            disk_usage_low=self.disk_usage_low,
            disk_stall_s=self.disk_stall_ms / 1000,
            gc_interval_s=self.gc_interval_ms / 1000,
            gc_minor_live_ratio=self.gc_minor_live_ratio,
            gc_minor_interval_s=self.gc_minor_interval_s,
            gc_major_live_ratio=self.gc_major_live_ratio,
            gc_major_interval_s=self.gc_major_interval_s,
        )

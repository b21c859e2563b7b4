"""The settings of a bookie's process; those of its storage are handed on as `BookieSettings`.

BookKeeper's keys are taken. It has directories for journals, ledgers and indexes; ours is one, so
that where a file names different ones for them, the start is refused rather than half obeyed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.registration import RACK_DEFAULT
from magnetar.bookie.settings import MIB, BookieSettings
from magnetar.broker.setting import SettingsError, setting
from magnetar.cluster.settings import MemberSettings, ProcessSettings, RecoverySettings

BOOKIE: Final = "Bookie"
STORAGE: Final = "Bookie's storage"
_DEFAULT: Final = BookieSettings()


@dataclass(frozen=True, kw_only=True)
class BookieProcessSettings(ProcessSettings, RecoverySettings, MemberSettings):
    """A storage node."""

    data_dir: Path = setting(
        Path("data-bookie"),
        "The directory of everything that is kept; locked while in use.",
        group=BOOKIE,
        pulsar="ledgerDirectories",
        aliases=("journalDirectories", "journalDirectory", "indexDirectories"),
    )
    bookie_id: str | None = setting(
        None,
        "What ledgers call this bookie; its disks remember it. By default its host and port.",
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
        "Port that brokers come to; 0 takes a free one.",
        group=BOOKIE,
        low=0,
        high=65_535,
        pulsar="bookiePort",
    )
    http_port: int = setting(
        8000,
        "Port of health and metrics; 0 takes a free one.",
        group=BOOKIE,
        low=0,
        high=65_535,
        pulsar="httpServerPort",
    )
    advertised_host: str | None = setting(
        None,
        "The host name that brokers are told to connect to; by default the one listened on.",
        group=BOOKIE,
        pulsar="advertisedAddress",
    )
    rack: str = setting(
        RACK_DEFAULT,
        "`/region/rack`: copies of an entry are kept on different ones where there are several.",
        group=BOOKIE,
    )
    autorecovery: bool = setting(
        True,
        "Whether this process also watches over ledgers and makes lost copies anew.",
        group=BOOKIE,
        pulsar="autoRecoveryDaemonEnabled",
    )
    journal_file_mb: int = setting(
        _DEFAULT.journal_file_bytes // MIB,
        "Size of a journal file (BookKeeper: 2048).",
        group=STORAGE,
        unit="MiB",
        low=1,
        high=4_096,
        pulsar="journalMaxSizeMB",
    )
    write_cache_mb: int = setting(
        2 * _DEFAULT.write_cache_bytes // MIB,
        "Memory for entries that are not in entry logs yet, both halves.",
        group=STORAGE,
        unit="MiB",
        low=2,
        high=1 << 20,
        pulsar="dbStorage_writeCacheMaxSizeMb",
    )
    read_cache_mb: int = setting(
        _DEFAULT.read_cache_bytes // MIB,
        "Memory for blocks that were read.",
        group=STORAGE,
        unit="MiB",
        low=0,
        high=1 << 20,
        pulsar="dbStorage_readAheadCacheMaxSizeMb",
    )
    entry_log_bytes: int = setting(
        _DEFAULT.entry_log_bytes,
        "Size of an entry log (BookKeeper: 1073741824).",
        group=STORAGE,
        unit="bytes",
        low=MIB,
        high=2 << 30,
        pulsar="logSizeLimit",
    )
    disk_usage_max: float = setting(
        _DEFAULT.disk_usage_high,
        "Used part of the disk at which the bookie takes no more adds.",
        group=STORAGE,
        low=0.01,
        high=1,
        pulsar="diskUsageThreshold",
    )
    disk_usage_low: float = setting(
        _DEFAULT.disk_usage_low,
        "Used part of the disk below which it takes adds again.",
        group=STORAGE,
        low=0.01,
        high=1,
        pulsar="diskUsageLwmThreshold",
    )
    disk_stall_ms: int = setting(
        int(_DEFAULT.disk_stall_s * 1000),
        "How long a commit of the journal or a flush may take before the bookie is not ready.",
        group=STORAGE,
        unit="ms",
        low=100,
        high=3_600_000,
    )
    gc_interval_ms: int = setting(
        int(_DEFAULT.gc_interval_s * 1000),
        "How often entry logs that nobody needs are looked for.",
        group=STORAGE,
        unit="ms",
        low=1_000,
        high=86_400_000,
        pulsar="gcWaitTime",
    )
    gc_minor_live_ratio: float = setting(
        _DEFAULT.gc_minor_live_ratio,
        "A log of which less is live is rewritten with each minor collection.",
        group=STORAGE,
        low=0,
        high=1,
        pulsar="minorCompactionThreshold",
    )
    gc_minor_interval_s: int = setting(
        int(_DEFAULT.gc_minor_interval_s),
        "How often that is.",
        group=STORAGE,
        unit="s",
        low=1,
        high=31_536_000,
        pulsar="minorCompactionInterval",
    )
    gc_major_live_ratio: float = setting(
        _DEFAULT.gc_major_live_ratio,
        "A log of which less is live is rewritten with each major collection.",
        group=STORAGE,
        low=0,
        high=1,
        pulsar="majorCompactionThreshold",
    )
    gc_major_interval_s: int = setting(
        int(_DEFAULT.gc_major_interval_s),
        "How often that is.",
        group=STORAGE,
        unit="s",
        low=1,
        high=31_536_000,
        pulsar="majorCompactionInterval",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.disk_usage_low > self.disk_usage_max:
            raise SettingsError(
                f"disk_usage_low is {self.disk_usage_low}, more than disk_usage_max, "
                f"{self.disk_usage_max}"
            )
        if self.bookie_id is None and self.port == 0:
            raise SettingsError("bookie_id must be set where port is 0: a name must not change")

    @property
    def identity(self) -> str:
        """The bookie's id, as BookKeeper makes one where none is given."""
        return self.bookie_id or f"{self.advertised_host or self.host}:{self.port}"

    def storage(self) -> BookieSettings:
        """What the storage is opened with."""
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

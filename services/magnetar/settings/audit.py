"""The settings of the audit log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.units import MIB
from magnetar.settings.field import setting

AUDIT: Final = "Audit log"


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """The audit log of a broker."""

    audit_log_file: Path | None = setting(
        None,
        "The file of the audit log, one for each process; unset: none.",
        group=AUDIT,
    )
    audit_log_bytes_max: int = setting(
        64 * MIB,
        "Size at which the file is rotated.",
        group=AUDIT,
        unit="bytes",
        within=(4_096, 1 << 40),
    )
    audit_log_files_max: int = setting(
        8,
        "Number of files that are kept, including the current one.",
        group=AUDIT,
        unit="files",
        within=(1, 1_000),
    )
    audit_log_reads: bool = setting(
        False,
        "Whether the log includes allowed GET requests.",
        group=AUDIT,
    )

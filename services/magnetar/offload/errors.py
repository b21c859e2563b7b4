"""What can go wrong with cold data, by what the caller can do about it.

- `ColdStoreUnavailable`: the store does not answer now. Passing: clients try again.
- `ColdFileMissing`, `ColdFileCorrupt`: the file is not what a record says. Its text names the file.
- `OffloadMisconfigured`: the settings name no store that can be opened; its text names the setting.
"""

from typing import Final

from magnetar.core.errors import PersistenceError, PreconditionFailed, ServiceNotReady


class ColdStoreUnavailable(ServiceNotReady):
    """The object store did not answer in time, or refused: nothing is known of the file."""


class ColdFileMissing(PersistenceError):
    """The store is certain that it has no such file."""


class ColdFileCorrupt(PersistenceError):
    """The file's bytes contradict their checksums, or the format. Never served."""


class OffloadMisconfigured(PreconditionFailed):
    """No store can be opened from these settings."""


COLD_ERRORS: Final = (
    ColdStoreUnavailable,
    ColdFileMissing,
    ColdFileCorrupt,
    OffloadMisconfigured,
)
"""Whatever keeps a file from being read; a copy on bookies may serve instead."""

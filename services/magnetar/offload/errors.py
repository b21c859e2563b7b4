"""The errors of cold data, divided by what the caller can do about them.

- `ColdStoreUnavailable`: the store does not answer now. Temporary: clients retry.
- `ColdFileMissing`, `ColdFileCorrupt`: the file contradicts its record. The text names the file.
- `OffloadMisconfigured`: the settings name no store that can be opened. The text names the setting.
"""

from typing import Final

from magnetar.core.errors import PersistenceError, PreconditionFailed, ServiceNotReady


class ColdStoreUnavailable(ServiceNotReady):
    """The object store did not answer in time, or refused: the file's state is unknown."""


class ColdFileMissing(PersistenceError):
    """The store answered that it has no such file."""


class ColdFileCorrupt(PersistenceError):
    """The file's bytes contradict their checksums or the format. They are never served."""


class OffloadMisconfigured(PreconditionFailed):
    """No store can be opened from these settings."""


COLD_ERRORS: Final = (
    ColdStoreUnavailable,
    ColdFileMissing,
    ColdFileCorrupt,
    OffloadMisconfigured,
)
"""All errors that prevent reading a file; a copy on bookies may serve instead."""

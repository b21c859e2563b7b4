"""The settings for reading a cluster's log, and the bounds of reading.

An instance is pickled into the plan for Spark's executors, so it is small. It contains the
password: Spark keeps it in memory and displays it nowhere.
"""

from dataclasses import dataclass, field
from typing import Final

from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.store_url import ROOT_DEFAULT, StoreOptions

MIB: Final = 1 << 20

READ_BYTES: Final = 1 * MIB
"""Requested from a bookie at once; a larger entry is returned alone."""
READS_AT_ONCE: Final = 4
"""Reads in flight or waiting to be decoded, per range; their bytes bound a reader's memory."""
SPECULATIVE_READ_DELAY_S: Final = 2.0
"""Longer than a broker's: a reader that Spark delays makes bookies look slow."""

LEDGER_SETTINGS: Final = LedgerSettings(speculative_read_delay_s=SPECULATIVE_READ_DELAY_S)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The cluster whose log is read, by its metadata store."""

    metadata_url: str
    metadata_root: str = ROOT_DEFAULT
    admin_url: str = ""
    """Of any broker; asked if the newest entries are not known to be confirmed (`ends`)."""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def store_options(self) -> StoreOptions:
        """The options of the metadata store."""
        return StoreOptions(
            root=self.metadata_root,
            tls_ca_file=self.tls_ca_file,
            tls_cert_file=self.tls_cert_file,
            tls_key_file=self.tls_key_file,
            username=self.username,
            password=self.password,
        )

"""How the log is found, and the bounds of reading it.

An instance travels to Spark's executors inside the plan, so it is small and can be pickled. The
password is in it: Spark keeps it in memory, and shows it nowhere.
"""

from dataclasses import dataclass, field
from typing import Final

from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.opening import ROOT_DEFAULT, StoreOptions

MIB: Final = 1 << 20

READ_BYTES: Final = 1 * MIB
"""Asked of a bookie at once; an entry that is larger comes alone."""
READS_AT_ONCE: Final = 4
"""On their way or waiting to be decoded, of one range: their bytes bound a reader's memory."""
SPECULATIVE_READ_DELAY_S: Final = 2.0
"""Longer than a broker's: a reader that Spark holds up looks like a slow bookie for a moment."""

LEDGER_SETTINGS: Final = LedgerSettings(speculative_read_delay_s=SPECULATIVE_READ_DELAY_S)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The metadata store of the cluster whose log is read."""

    metadata_url: str
    metadata_root: str = ROOT_DEFAULT
    admin_url: str = ""
    """Of any broker: asked where newest entries are not known to be confirmed (`ends`)."""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def store_options(self) -> StoreOptions:
        return StoreOptions(
            root=self.metadata_root,
            tls_ca_file=self.tls_ca_file,
            tls_cert_file=self.tls_cert_file,
            tls_key_file=self.tls_key_file,
            username=self.username,
            password=self.password,
        )

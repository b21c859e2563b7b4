"""The settings for reading a cluster's log, and the bounds of reading.

An instance is pickled into the plan for Spark's executors, so it is small. It contains the
password: Spark keeps it in memory and displays it nowhere.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from magnetar.core.errors import PreconditionFailed
from magnetar.core.header_text import NO_HEADER_TEXT, is_header_text
from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.store_url import ROOT_DEFAULT, StoreOptions
from magnetar.security.tls.reload import ClientTls, open_client_tls
from magnetar.security.tls.settings import ClientTlsConfig

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
    """The REST of any broker; asked if newest entries are not known to be confirmed (`ends`)."""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    bookkeeper_tls: bool = False
    """Whether bookies are reached by TLS."""
    trust_file: str = ""
    """The CAs of bookies, and of brokers with an https URL; empty: those of the machine."""
    cert_file: str = ""
    """The certificate that jobs present to both; empty: none."""
    key_file: str = ""
    token_file: str = ""
    """A token for the admin REST, read again for each request; empty: none is presented."""

    def admin_headers(self) -> dict[str, str]:
        """The credentials of a request to the admin REST, which has an https URL if TLS is used.

        Raises PreconditionFailed if the token cannot be read.
        """
        if not self.token_file:
            return {}
        try:
            token = Path(self.token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PreconditionFailed(f"token file {self.token_file}: {error}") from error
        if not is_header_text(token):
            raise PreconditionFailed(f"token file {self.token_file}: {NO_HEADER_TEXT}")
        return {"authorization": f"Bearer {token}"}

    @property
    def client_tls(self) -> ClientTlsConfig:
        """The files for connections to bookies and brokers."""
        trust, cert, key = (
            Path(name) if name else None
            for name in (self.trust_file, self.cert_file, self.key_file)
        )
        return ClientTlsConfig(trust_file=trust, cert_file=cert, key_file=key)

    def bookie_tls(self) -> ClientTls | None:
        """Opens the TLS of connections to bookies; None if they are plain.

        Raises PreconditionFailed if a file cannot be used.
        """
        return _opened(self.client_tls, "bookies") if self.bookkeeper_tls else None

    def admin_context(self) -> ssl.SSLContext | bool:
        """Returns what httpx verifies a broker with; raises PreconditionFailed."""
        if not self.admin_url.startswith("https:") or not (self.trust_file or self.cert_file):
            return True
        return _opened(self.client_tls, "brokers").context

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


def _opened(config: ClientTlsConfig, name: str) -> ClientTls:
    try:
        return open_client_tls(config, name)
    except OSError as error:
        raise PreconditionFailed(f"TLS to {name}: {error}") from error

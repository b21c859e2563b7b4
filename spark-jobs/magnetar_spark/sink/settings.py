"""The settings of a write, and the bounds of the sink.

Instances are pickled for Spark's executors. They contain credentials, which Spark keeps in memory
and displays nowhere.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from magnetar.core.errors import PreconditionFailed
from magnetar.security.credentials import Credentials
from magnetar.security.errors import ConfigurationError
from magnetar.security.tls.reload import ClientTls, open_client_tls
from magnetar.security.tls.settings import ClientTlsConfig

BATCH_MESSAGES_DEFAULT: Final = 1_000
BATCH_BYTES_DEFAULT: Final = 128 << 10
PENDING_MESSAGES_DEFAULT: Final = 50_000
SEGMENT_BYTES_MAX: Final = 32 << 20
"""Payloads of a task that have no receipt yet, or that belong to an unfinished transaction."""
TOPICS_MAX: Final = 1_000
"""Topics and partitions to which a task writes."""
TRANSACTIONS_MAX: Final = 10_000
"""Transactions of one run of a batch: brokers commit as many with the leading one."""
SEND_TIMEOUT_MS_DEFAULT: Final = 30_000
OPERATION_TIMEOUT_MS_DEFAULT: Final = 30_000
CONNECT_TIMEOUT_MS_DEFAULT: Final = 10_000
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 300_000


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The brokers, and the credentials that the sink presents to them."""

    service_url: str
    auth_plugin: str = ""
    auth_parameters: str = field(default="", repr=False)
    trust_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify_hostname: bool = True
    allow_insecure: bool = False
    operation_timeout_s: float = OPERATION_TIMEOUT_MS_DEFAULT / 1000
    """How long a request is repeated while brokers are unavailable or move topics."""
    connect_timeout_s: float = CONNECT_TIMEOUT_MS_DEFAULT / 1000

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.service_url.startswith("pulsar+ssl:")

    def credentials(self) -> Credentials:
        """Returns the credentials; raises PreconditionFailed that names the options."""
        try:
            return Credentials.parse(self.auth_plugin, self.auth_parameters)
        except ConfigurationError as error:
            raise PreconditionFailed(
                f"pulsar.client.authPluginClassName and authParams: {error}"
            ) from None

    def client_tls(self) -> ClientTls | None:
        """Opens the TLS of connections, None if they are plain; raises PreconditionFailed."""
        if not self.tls:
            return None
        trust, cert, key = (
            Path(name) if name else None
            for name in (self.trust_file, self.cert_file, self.key_file)
        )
        config = ClientTlsConfig(
            trust_file=trust,
            cert_file=cert,
            key_file=key,
            verify_hostname=self.verify_hostname,
            allow_insecure=self.allow_insecure,
        )
        try:
            return open_client_tls(config, "spark sink")
        except OSError as error:
            raise PreconditionFailed(f"TLS to brokers: {error}") from error


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How messages are batched, compressed and routed."""

    batching: bool = True
    batch_messages: int = BATCH_MESSAGES_DEFAULT
    batch_bytes: int = BATCH_BYTES_DEFAULT
    compression: int = 0
    """A `CompressionType`."""
    murmur_hash: bool = False
    """Whether keys are hashed with Murmur3_32; else with Java's hash of strings."""
    round_robin: bool = True
    """Whether messages without a key go to all partitions in turn; else to one per task."""
    pending_messages: int = PENDING_MESSAGES_DEFAULT
    send_timeout_s: float = SEND_TIMEOUT_MS_DEFAULT / 1000
    """How long a task waits for a receipt; 0: as long as the query runs."""


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """The settings of writes in transactions."""

    transaction_timeout_ms: int
    state_namespace: str
    """The namespace of the topic that records transactions and committed batches."""
    sink_id: str | None = None
    """The name of the writer; None: the id of the streaming query, or a batch write without one."""
    batch_id: int | None = None
    """The number of a batch write; None for streams, and for batch writes without a name."""

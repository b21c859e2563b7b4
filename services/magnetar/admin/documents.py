"""Request documents, with Pulsar's field names. Unknown fields are ignored, as Pulsar does."""

from typing import Any, Final

import msgspec

from magnetar.core.ids import EARLIEST, ID_MAX, LATEST, Position

ID_MIN: Final = -(2**63)


class TenantInfo(msgspec.Struct, rename="camel"):
    """Body of `PUT` and `POST /tenants/{tenant}`."""

    admin_roles: list[str] | None = None
    allowed_clusters: list[str] | None = None


class MessageId(msgspec.Struct, rename="camel"):
    """A message id in a body; left out fields mean the latest, as Pulsar's deserializer has it.

    A batch's size is left out here: clients do not know it, so it is read from the entry.
    """

    ledger_id: int | None = None
    entry_id: int | None = None
    partition_index: int = -1
    batch_index: int = -1
    is_excluded: bool = False
    excluded: bool = False
    properties: dict[str, str] | None = None

    @property
    def behind(self) -> bool:
        """Whether what is meant begins behind the message. Java's client writes `excluded`, the
        documentation `isExcluded`."""
        return self.is_excluded or self.excluded

    @property
    def position(self) -> Position:
        """EARLIEST and LATEST for all that clients send for them."""
        if self.ledger_id is None or self.entry_id is None or self.ledger_id >= ID_MAX:
            return LATEST
        if self.ledger_id < 0:
            return EARLIEST
        return Position(self.ledger_id, self.entry_id)

    @property
    def cursor_position(self) -> Position:
        """The same where a cursor is moved to the message: Pulsar then reads left out fields as 0,
        so that a body without an id begins at the first message, and skips none."""
        return msgspec.structs.replace(
            self, ledger_id=self.ledger_id or 0, entry_id=self.entry_id or 0
        ).position


class SchemaPayload(msgspec.Struct, rename="camel"):
    """Body of `POST /schemas/…/schema`, `/compatibility` and `/version`."""

    type: str = "NONE"
    schema: str = ""
    properties: dict[str, str] = {}


class PartitionedMetadata(msgspec.Struct, rename="camel"):
    """Body of `PUT …/partitions` in its long form; the short one is a bare number."""

    partitions: int
    properties: dict[str, str] = {}


CLUSTER_DEFAULTS: Final[dict[str, Any]] = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
}
"""What Pulsar answers for a cluster besides what it was given."""

CLUSTER_FIELDS: Final = frozenset(
    {
        "serviceUrl",
        "serviceUrlTls",
        "brokerServiceUrl",
        "brokerServiceUrlTls",
        "proxyServiceUrl",
        "proxyProtocol",
        "peerClusterNames",
        "authenticationPlugin",
        "authenticationParameters",
        "listenerName",
        "brokerClientTrustCertsFilePath",
        "brokerClientKeyFilePath",
        "brokerClientCertificateFilePath",
        "brokerClientTlsKeyStoreType",
        "brokerClientTlsTrustStoreType",
        "brokerClientSslFactoryPlugin",
        "brokerClientSslFactoryPluginParams",
        "brokerClientTlsKeyStore",
        "brokerClientTlsKeyStorePassword",
        "brokerClientTlsTrustStore",
        "brokerClientTlsTrustStorePassword",
        *CLUSTER_DEFAULTS,
    }
)


CLUSTER_URLS: Final = {
    "serviceUrl": (
        ("http://",),
        "Illegal service url, example: http://pulsar.example.com:8080",
    ),
    "serviceUrlTls": (
        ("https://",),
        "Illegal service tls url, example: https://pulsar.example.com:8443",
    ),
    "brokerServiceUrl": (
        ("pulsar://",),
        "Illegal broker service url, example: pulsar://pulsar.example.com:6650",
    ),
    "brokerServiceUrlTls": (
        ("pulsar+ssl://",),
        "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651",
    ),
    "proxyServiceUrl": (
        ("pulsar://", "pulsar+ssl://"),
        (
            "Illegal proxy service url, example: pulsar+ssl://ats-proxy.example.com:4443 or "
            "pulsar://ats-proxy.example.com:4080"
        ),
    ),
}
"""The schemes that an address of a cluster may have, and Pulsar's refusal of any other."""


def cluster_document(body: dict[str, Any]) -> dict[str, Any]:
    """What is stored of a cluster's body: known fields that have a value."""
    given = {key: body[key] for key in body if key in CLUSTER_FIELDS and body[key] is not None}
    return CLUSTER_DEFAULTS | given


def message_id(
    position: Position, partition: int = -1, *, batch_index: int = -1
) -> dict[str, object]:
    """A message id in an answer, in the form that Java's client reads."""
    document: dict[str, object] = {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": 0,
    }
    if batch_index >= 0:
        document |= {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    return document

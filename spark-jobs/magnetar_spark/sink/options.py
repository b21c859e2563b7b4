"""Parses the options of a write; every error names the option and says what to write.

Names are those of StreamNative's connector, and of the configuration of Pulsar's Java client below
`pulsar.client.` and `pulsar.producer.`. As everywhere in Spark, names are case-insensitive. An
option that has no effect on a write is refused. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.wire._pb.PulsarApi_pb2 import CompressionType
from magnetar_spark.sink.settings import (
    BATCH_BYTES_DEFAULT,
    BATCH_MESSAGES_DEFAULT,
    CONNECT_TIMEOUT_MS_DEFAULT,
    OPERATION_TIMEOUT_MS_DEFAULT,
    PENDING_MESSAGES_DEFAULT,
    SEND_TIMEOUT_MS_DEFAULT,
    TRANSACTION_TIMEOUT_MS_DEFAULT,
    ClientSettings,
    ExactlyOnce,
    ProducerSettings,
)

RECORD_NAME_DEFAULT: Final = "topLevelRecord"
_SCHEMES: Final = ("pulsar://", "pulsar+ssl://")
_CLIENT: Final = "pulsar.client."
_PRODUCER: Final = "pulsar.producer."
_BOOLEANS: Final = {"true": True, "false": False}
_SPARK: Final = ("checkpointLocation", "queryName", "path")
"""Options of Spark itself, which it also passes to sinks."""
_NAMES: Final = (
    *("service.url", "topic", "schemaType", "recordName", "token.file"),
    *("tls.trust.file", "tls.cert.file", "tls.key.file"),
    *("exactlyOnce", "transactionTimeoutMs", "sinkId", "batchId", "stateNamespace"),
    *(
        f"{_CLIENT}{name}"
        for name in (
            *("authPluginClassName", "authParams", "tlsTrustCertsFilePath"),
            *("tlsCertificateFilePath", "tlsKeyFilePath", "tlsHostnameVerificationEnable"),
            *("tlsAllowInsecureConnection", "operationTimeoutMs", "connectionTimeoutMs"),
        )
    ),
    *(
        f"{_PRODUCER}{name}"
        for name in (
            *("batchingEnabled", "batchingMaxMessages", "batchingMaxBytes", "compressionType"),
            *("hashingScheme", "messageRoutingMode", "maxPendingMessages", "blockIfQueueFull"),
            "sendTimeoutMs",
        )
    ),
)
_REFUSED: Final = {
    "admin.url": "writes use the binary protocol only; remove it",
    "topics": "a write has one topic; for several, use the column __topic",
    "topicspattern": "a write has one topic; for several, use the column __topic",
    "pulsar.producer.producername": "tasks run at the same time, and each needs its own name",
    "pulsar.producer.batchingmaxpublishdelaymicros": (
        "a task sends a batch when it is full, and the rest when its rows end; remove it"
    ),
    "pulsar.client.enabletransaction": "write exactlyOnce",
}
"""Options of the connector that have no meaning here, and why."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write."""

    client: ClientSettings
    producer: ProducerSettings
    topic: str | None
    """The topic of all rows; None: the column `__topic` has it."""
    schema_type: str
    """`avro` or `json`, for values of several columns."""
    record_name: str
    exactly_once: ExactlyOnce | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> "WriteOptions":
        """Parses options. Raises PreconditionFailed naming the option."""
        given = _Given(options)
        given.check_names()
        url = given.text("service.url")
        if not url.startswith(_SCHEMES):
            raise PreconditionFailed(
                f"service.url '{url}': write the brokers' address, pulsar://HOST:6650 or "
                "pulsar+ssl://HOST:6651"
            )
        topic = given.text("topic") or None
        if topic is not None:
            _valid("topic", topic, parse_topic)
        return cls(
            client=_client(given, url),
            producer=_producer(given),
            topic=topic,
            schema_type=given.choice("schemaType", "avro", ("avro", "json")),
            record_name=given.text("recordName") or RECORD_NAME_DEFAULT,
            exactly_once=_exactly_once(given, topic, streaming=streaming),
        )


def _client(given: "_Given", url: str) -> ClientSettings:
    plugin = given.text(f"{_CLIENT}authPluginClassName")
    parameters = given.text(f"{_CLIENT}authParams")
    token_file = given.text("token.file")
    if token_file and (plugin or parameters):
        raise PreconditionFailed(f"set token.file or {_CLIENT}authPluginClassName, not both")
    if parameters and not plugin:
        raise PreconditionFailed(f"{_CLIENT}authParams needs {_CLIENT}authPluginClassName")
    if token_file:
        plugin, parameters = "token", f"file://{token_file}"
    settings = ClientSettings(
        service_url=url,
        auth_plugin=plugin,
        auth_parameters=parameters,
        trust_file=given.either("tls.trust.file", f"{_CLIENT}tlsTrustCertsFilePath"),
        cert_file=given.either("tls.cert.file", f"{_CLIENT}tlsCertificateFilePath"),
        key_file=given.either("tls.key.file", f"{_CLIENT}tlsKeyFilePath"),
        verify_hostname=given.boolean(f"{_CLIENT}tlsHostnameVerificationEnable", default=True),
        allow_insecure=given.boolean(f"{_CLIENT}tlsAllowInsecureConnection", default=False),
        operation_timeout_s=given.number(
            f"{_CLIENT}operationTimeoutMs", OPERATION_TIMEOUT_MS_DEFAULT, 1
        )
        / 1000,
        connect_timeout_s=given.number(
            f"{_CLIENT}connectionTimeoutMs", CONNECT_TIMEOUT_MS_DEFAULT, 1
        )
        / 1000,
    )
    if not settings.tls and (settings.trust_file or settings.cert_file or settings.key_file):
        raise PreconditionFailed(
            f"TLS files are set, but service.url '{url}' is plain: write pulsar+ssl://HOST:6651"
        )
    settings.credentials()
    return settings


def _producer(given: "_Given") -> ProducerSettings:
    compression = given.choice(f"{_PRODUCER}compressionType", "NONE", tuple(CompressionType.keys()))
    given.choice(f"{_PRODUCER}blockIfQueueFull", "true", ("true",))  # a task always waits
    hashing = given.choice(
        f"{_PRODUCER}hashingScheme", "JavaStringHash", ("JavaStringHash", "Murmur3_32Hash")
    )
    routing = given.choice(
        f"{_PRODUCER}messageRoutingMode",
        "RoundRobinPartition",
        ("RoundRobinPartition", "SinglePartition"),
    )
    return ProducerSettings(
        batching=given.boolean(f"{_PRODUCER}batchingEnabled", default=True),
        batch_messages=given.number(f"{_PRODUCER}batchingMaxMessages", BATCH_MESSAGES_DEFAULT, 1),
        batch_bytes=given.number(f"{_PRODUCER}batchingMaxBytes", BATCH_BYTES_DEFAULT, 1),
        compression=CompressionType.Value(compression),
        murmur_hash=hashing == "Murmur3_32Hash",
        round_robin=routing == "RoundRobinPartition",
        pending_messages=given.number(
            f"{_PRODUCER}maxPendingMessages", PENDING_MESSAGES_DEFAULT, 1
        ),
        send_timeout_s=given.number(f"{_PRODUCER}sendTimeoutMs", SEND_TIMEOUT_MS_DEFAULT, 0) / 1000,
    )


def _exactly_once(given: "_Given", topic: str | None, *, streaming: bool) -> ExactlyOnce | None:
    dependent = ("transactionTimeoutMs", "sinkId", "batchId", "stateNamespace")
    if not given.boolean("exactlyOnce", default=False):
        for name in dependent:
            if given.has(name):
                raise PreconditionFailed(f"{name} needs exactlyOnce=true")
        return None
    sink_id = given.text("sinkId") or None
    batch_id = given.number("batchId", 0, 0) if given.has("batchId") else None
    if sink_id is not None and not _is_id(sink_id):
        raise PreconditionFailed(f"sinkId '{sink_id}': write letters, digits, '-', '_' and '.'")
    if streaming and batch_id is not None:
        raise PreconditionFailed("batchId is an option of batch writes: Spark numbers a stream's")
    if not streaming and (sink_id is None) != (batch_id is None):
        raise PreconditionFailed(
            "a batch write that is to happen once needs both sinkId and batchId: a repeated write "
            "with the same sinkId and the same or a lower batchId does nothing"
        )
    namespace = given.text("stateNamespace") or None
    if namespace is not None:
        _valid("stateNamespace", namespace, NamespaceName.parse)
    elif topic is not None:
        namespace = str(parse_topic(topic).namespace)
    else:
        raise PreconditionFailed(
            "set stateNamespace: with exactlyOnce and without the option topic, the sink needs a "
            "namespace (TENANT/NAMESPACE) for the topic that records its transactions"
        )
    timeout_ms = given.number("transactionTimeoutMs", TRANSACTION_TIMEOUT_MS_DEFAULT, 1_000)
    return ExactlyOnce(timeout_ms, namespace, sink_id, batch_id)


def _is_id(text: str) -> bool:
    return text.isascii() and all(char.isalnum() or char in "-_." for char in text)


def _valid(name: str, text: str, parse: Callable[[str], object]) -> None:
    try:
        parse(text)
    except MagnetarError as error:
        raise PreconditionFailed(f"{name} '{text}': {error}") from error


class _Given:
    """The options that the user gave, by lower-case name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._names = {name.lower(): name for name in options}
        self._values = {name.lower(): value.strip() for name, value in options.items()}

    def check_names(self) -> None:
        known = {name.lower() for name in (*_NAMES, *_SPARK)}
        for lower, name in self._names.items():
            if lower in _REFUSED:
                raise PreconditionFailed(f"{name} is not an option of writes: {_REFUSED[lower]}")
            if lower not in known:
                raise PreconditionFailed(
                    f"{name} is not an option of writes; they are {', '.join(_NAMES)}"
                )

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str:
        return self._values.get(name.lower(), "")

    def either(self, name: str, other: str) -> str:
        if self.text(name) and self.text(other):
            raise PreconditionFailed(f"set {name} or {other}, not both")
        return self.text(name) or self.text(other)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        text = self.text(name) or default
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise PreconditionFailed(f"{name} '{text}': write {' or '.join(choices)}")

    def boolean(self, name: str, *, default: bool) -> bool:
        if not self.has(name):
            return default
        value = _BOOLEANS.get(self.text(name).lower())
        if value is None:
            raise PreconditionFailed(f"{name} '{self.text(name)}': write true or false")
        return value

    def number(self, name: str, default: int, least: int) -> int:
        if not self.has(name):
            return default
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise PreconditionFailed(f"{name} '{text}': write a whole number, {least} or more")
        return int(text)

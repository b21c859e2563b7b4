"""A stand-in for `import pulsar`, the official Python client, on `magnetar.client`.

    import magnetar.pulsar as pulsar

    client = pulsar.Client("pulsar://localhost:6650")
    producer = client.create_producer("orders")
    producer.send(b"hello")
    client.close()

Programs that use what the official client 3.13 documents run unchanged, without its C++ library.
`docs/use/migration-python.md` lists what is left out; its use raises an error that names it.
"""

from magnetar.pulsar import _pulsar, exceptions, schema
from magnetar.pulsar.authentication import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from magnetar.pulsar.checks import OptionHasNoEffect
from magnetar.pulsar.client import Client
from magnetar.pulsar.consumer import Consumer, Reader
from magnetar.pulsar.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    LoggerLevel,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    Result,
)
from magnetar.pulsar.exceptions import *  # noqa: F403
from magnetar.pulsar.exceptions import __all__ as _exceptions
from magnetar.pulsar.message import EncryptionContext, EncryptionKey, Message
from magnetar.pulsar.message_id import MessageId
from magnetar.pulsar.policies import (
    ConsoleLogger,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    FileLogger,
)
from magnetar.pulsar.producer import Producer
from magnetar.pulsar.schema.schema import BytesSchema
from magnetar.pulsar.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from magnetar.pulsar.tableview import TableView

__version__ = "3.13.0"
"""The version of the official client whose interface this is."""

__all__ = [
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "BatchingType",
    "BytesSchema",
    "Client",
    "CompressionType",
    "ConsoleLogger",
    "Consumer",
    "ConsumerBatchReceivePolicy",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "ConsumerType",
    "CryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "FileLogger",
    "InitialPosition",
    "KeySharedMode",
    "LoggerLevel",
    "Message",
    "MessageId",
    "OptionHasNoEffect",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "Reader",
    "RegexSubscriptionMode",
    "Result",
    "ServiceInfo",
    "ServiceInfoProvider",
    "TableView",
    "_pulsar",
    "exceptions",
    "schema",
]
__all__ += _exceptions

_FUNCTIONS = "Pulsar Functions run in their own workers; use a consumer and a producer"
_LEFT_OUT = {
    "BatchReceivePolicy": "use ConsumerBatchReceivePolicy",
    "Context": _FUNCTIONS,
    "DeadLetterPolicyBuilder": "use ConsumerDeadLetterPolicy",
    "Function": _FUNCTIONS,
    "IdentitySerDe": _FUNCTIONS,
    "KeySharedPolicy": "use ConsumerKeySharedPolicy",
    "MessageBatch": "entries are parsed by the client; receive messages instead",
    "PickleSerDe": _FUNCTIONS,
    "SerDe": _FUNCTIONS,
    "functions": _FUNCTIONS,
}


def __getattr__(name: str) -> object:
    if name in _LEFT_OUT:
        # `from magnetar.pulsar import NAME` would replace an AttributeError by one without reason.
        raise ImportError(f"magnetar.pulsar has no {name}: {_LEFT_OUT[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

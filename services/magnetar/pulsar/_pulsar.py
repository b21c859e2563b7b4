"""A stand-in for `_pulsar`, the C++ library below the official client: its public names.

    from magnetar.pulsar import _pulsar

Many programs take enumerations and exceptions from there: `_pulsar.ConsumerType.Shared`,
`except _pulsar.Timeout`. They are those of `magnetar.pulsar`. The wrapped C++ classes are left out,
and asking for one raises an error that names it.
"""

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
    SchemaType,
)
from magnetar.pulsar.exceptions import *  # noqa: F403
from magnetar.pulsar.exceptions import ErrorGettingAuthenticationData
from magnetar.pulsar.exceptions import __all__ as _exceptions

__all__ = [
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerType",
    "ErrorGettingAuthenticationData",
    "InitialPosition",
    "KeySharedMode",
    "LoggerLevel",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
    "Result",
    "SchemaType",
]
__all__ += _exceptions


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # `from magnetar.pulsar._pulsar import NAME` would replace an AttributeError by one without
    # reason.
    raise ImportError(
        f"magnetar.pulsar._pulsar has no {name}: it is part of the C++ library; use the classes of "
        "magnetar.pulsar"
    )

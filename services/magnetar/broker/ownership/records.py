"""What is kept of brokers and of their claims: small JSON documents.

    /brokers/{broker}                            a BrokerRecord, under the broker's lease
    /ownership/{tenant}/{namespace}/{range}      an OwnershipRecord, under its owner's lease

A broker's id is the host and port of its HTTP address, as in Pulsar; `start` counts the starts of
brokers of the cluster, so that two lives of one broker are told apart.
"""

from enum import StrEnum
from typing import Final

import msgspec

from magnetar.broker.ownership.bundles import Bundle
from magnetar.core.errors import MetadataError

BROKERS_PREFIX: Final = "/brokers/"
OWNERSHIP_PREFIX: Final = "/ownership/"


class Urls(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to a broker: those of a listener. Empty where there is none."""

    service_url: str
    http_url: str
    service_url_tls: str = ""
    http_url_tls: str = ""


class BrokerState(StrEnum):
    """Whether a broker may be given bundles."""

    ACTIVE = "active"
    DRAINING = "draining"


class BrokerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A living broker. `host` and `port` are where other brokers reach its binary listener."""

    broker_id: str
    start: int
    host: str
    port: int
    urls: Urls
    listeners: dict[str, Urls] = {}
    version: str = ""
    started_ms: int = 0
    state: BrokerState = BrokerState.ACTIVE
    lease_id: int = 0

    @property
    def active(self) -> bool:
        return self.state is BrokerState.ACTIVE

    def reached_by(self, listener: str) -> Urls | None:
        """Its URLs for clients of a listener (PIP-61); None where it has no such listener."""
        return self.listeners.get(listener) if listener else self.urls


class OwnershipRecord(msgspec.Struct, frozen=True):
    """Who owns a bundle, by which lease."""

    broker_id: str
    start: int
    lease_id: int

    @classmethod
    def of(cls, broker: BrokerRecord) -> "OwnershipRecord":
        return cls(broker.broker_id, broker.start, broker.lease_id)


encode = msgspec.json.Encoder().encode
_broker_decoder = msgspec.json.Decoder(BrokerRecord)
_ownership_decoder = msgspec.json.Decoder(OwnershipRecord)


def broker_key(broker_id: str) -> str:
    return BROKERS_PREFIX + broker_id


def ownership_key(bundle: Bundle) -> str:
    return f"{OWNERSHIP_PREFIX}{bundle}"


def bundle_of_key(key: str) -> Bundle:
    """The inverse of `ownership_key`."""
    return Bundle.parse(key.removeprefix(OWNERSHIP_PREFIX))


def decode_broker(key: str, value: bytes) -> BrokerRecord:
    """Raises MetadataError naming the key where the value is no broker."""
    try:
        return _broker_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no broker: {error}") from error


def decode_ownership(key: str, value: bytes) -> OwnershipRecord:
    """Raises MetadataError naming the key where the value is no claim."""
    try:
        return _ownership_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no claim: {error}") from error

"""The records of brokers and of their claims: small JSON documents.

    /brokers/{broker}                            a BrokerRecord, under the broker's lease
    /ownership/{tenant}/{namespace}/{range}      an OwnershipRecord, under its owner's lease

A broker's id is the host and port of its HTTP address, as in Pulsar. `start` counts the broker
starts of the whole cluster, so it tells two processes with the same id apart.
"""

from enum import StrEnum
from typing import Final

import msgspec

from magnetar.broker.ownership.bundles import Bundle
from magnetar.metadata.records import RecordType

BROKERS_PREFIX: Final = "/brokers/"
OWNERSHIP_PREFIX: Final = "/ownership/"


class Urls(msgspec.Struct, frozen=True, omit_defaults=True):
    """The URLs of a broker for the clients of one listener; empty strings for absent ones."""

    service_url: str
    http_url: str
    service_url_tls: str = ""
    http_url_tls: str = ""


class BrokerState(StrEnum):
    """Whether a broker may receive bundles."""

    ACTIVE = "active"
    DRAINING = "draining"


class BrokerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered broker. Other brokers reach its binary listener at `host` and `port`."""

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
        """Whether the broker may receive bundles."""
        return self.state is BrokerState.ACTIVE

    def reached_by(self, listener: str) -> Urls | None:
        """Returns the URLs for clients of a listener (PIP-61), None without such a listener."""
        return self.listeners.get(listener) if listener else self.urls


class OwnershipRecord(msgspec.Struct, frozen=True):
    """The owner of a bundle, and the lease under which it claimed the bundle."""

    broker_id: str
    start: int
    lease_id: int

    @classmethod
    def of(cls, broker: BrokerRecord) -> "OwnershipRecord":
        """Returns the record that this broker writes for its claims."""
        return cls(broker.broker_id, broker.start, broker.lease_id)


decode_broker = RecordType(BrokerRecord, "broker").decode
decode_ownership = RecordType(OwnershipRecord, "claim").decode


def broker_key(broker_id: str) -> str:
    """Returns the key of a broker's registration."""
    return BROKERS_PREFIX + broker_id


def ownership_key(bundle: Bundle) -> str:
    """Returns the key of a bundle's claim."""
    return f"{OWNERSHIP_PREFIX}{bundle}"


def bundle_of_key(key: str) -> Bundle:
    """The inverse of `ownership_key`."""
    return Bundle.parse(key.removeprefix(OWNERSHIP_PREFIX))

"""End-to-end encryption as users configure it: keys, their readers, and actions on failure.

    keys = KeyFiles(public="orders.pub.pem", private="orders.pem")
    client.producer("orders", encryption=Encryption(["orders"], keys))
    client.consumer("orders", "billing", decryption=Decryption(keys))

A message is encrypted by AES-256-GCM with a data key of its producer, which travels with it,
encrypted with the public key of each name: RSA (OAEP with SHA-1, as in Pulsar's other clients), or
of an elliptic curve (ECIES, as in Java's client; those of C++, Python and Go do not read it).
Keys, properties and other metadata of messages are not encrypted.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from magnetar.client.errors import InvalidConfiguration


class CryptoKeyReader(ABC):
    """Returns the keys of names, in PEM. Called in the event loop: it must not block for long."""

    @abstractmethod
    def public_key(self, name: str) -> tuple[bytes, Mapping[str, str]]:
        """Returns a public key, and metadata that goes with each message, to `private_key`."""

    @abstractmethod
    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """Returns the private key of a name."""


class KeyFiles(CryptoKeyReader):
    """The same key pair for every name, in PEM files that are read when they are needed."""

    def __init__(self, *, public: str | Path = "", private: str | Path = "") -> None:
        self._public = Path(public) if public else None
        self._private = Path(private) if private else None

    def public_key(self, name: str) -> tuple[bytes, Mapping[str, str]]:
        if self._public is None:
            raise InvalidConfiguration("KeyFiles has no public key, which a producer needs")
        return self._public.read_bytes(), {}

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        if self._private is None:
            raise InvalidConfiguration("KeyFiles has no private key, which a consumer needs")
        return self._private.read_bytes()


class CryptoFailure(Enum):
    """What a consumer does with a message that it cannot decrypt."""

    FAIL = "fail"
    """It is not delivered, and stays unacknowledged: the broker delivers it again later."""
    DISCARD = "discard"
    """It is acknowledged, and not delivered."""
    CONSUME = "consume"
    """It is delivered as it is: `data` is encrypted, and a batch is a single message."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """The encryption of a producer."""

    keys: Sequence[str]
    """Names of keys: the owner of any of them can decrypt."""
    reader: CryptoKeyReader

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys or not all(self.keys):
            raise InvalidConfiguration("encryption: keys is a list of names")


@dataclass(frozen=True, slots=True)
class Decryption:
    """The decryption of a consumer or reader."""

    reader: CryptoKeyReader
    on_failure: CryptoFailure = CryptoFailure.FAIL


@dataclass(frozen=True, slots=True)
class EncryptedKey:
    """A data key, encrypted with the public key of a name."""

    name: str
    value: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncryptionContext:
    """How a message was encrypted."""

    keys: Sequence[EncryptedKey]
    parameter: bytes
    """The initialization vector of AES-GCM."""
    compression: int
    """The protocol's number of the compression that was applied before."""
    uncompressed_bytes: int
    batch_size: int
    """The number of messages in the batch; 0 if it is none."""

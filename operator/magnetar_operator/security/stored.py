"""Parses Secrets: certificates, keys, tokens, and the state of a rotation. Pure: no IO."""

import base64
import binascii
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.security.secret import Secret
from magnetar_operator.kube.kinds import Object
from magnetar_operator.security import wanted as names
from magnetar_operator.security.x509 import Pair


def data_of(secret: Mapping[str, Any] | None, key: str) -> bytes:
    """A field of a Secret; empty if it is absent or no base64."""
    text = ((secret or {}).get("data") or {}).get(key) or ""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def annotation(secret: Mapping[str, Any] | None, name: str) -> str:
    """An annotation of a Secret; empty if it is absent."""
    metadata = (secret or {}).get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(name) or "")


def time_of(secret: Mapping[str, Any] | None, name: str) -> datetime.datetime | None:
    """The time in an annotation; None if there is none, or one that cannot be read."""
    try:
        at = datetime.datetime.fromisoformat(annotation(secret, name))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)


def pair_of(secret: Mapping[str, Any] | None) -> Pair:
    """The certificate and key of a Secret; both are empty if it has none."""
    certificate = data_of(secret, names.CERTIFICATE)
    return Pair(certificate, Secret(data_of(secret, names.KEY)))


@dataclass(frozen=True, slots=True)
class StoredAuthority:
    """The authority of a cluster with its successor and predecessor."""

    current: Pair
    upcoming: Pair | None
    previous: bytes
    """The certificates of predecessors that are still trusted, PEM."""

    @property
    def bundle(self) -> bytes:
        """All authorities that peers trust: the signing one first."""
        parts = [self.current.certificate]
        if self.upcoming is not None:
            parts.append(self.upcoming.certificate)
        return b"".join([*parts, self.previous])


def authority_of(secret: Object | None) -> StoredAuthority | None:
    """The authority in a Secret; None if there is no Secret."""
    if secret is None:
        return None
    upcoming = Pair(
        data_of(secret, names.NEXT_CERTIFICATE), Secret(data_of(secret, names.NEXT_KEY))
    )
    return StoredAuthority(
        pair_of(secret),
        upcoming if upcoming.certificate and upcoming.key else None,
        data_of(secret, names.PREVIOUS_CERTIFICATE),
    )

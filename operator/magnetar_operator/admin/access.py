"""What the operator presents to a cluster's admin REST: its token, and the authorities it trusts.

Credentials belong to a MagnetarCluster, or to a Secret that names its address. They never belong to
the address that a resource names: its author must not receive another cluster's token, nor act with
it.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from magnetar.core.header_text import NO_HEADER_TEXT, is_header_text
from magnetar.security.secret import Secret

NOTHING: Final = Secret(b"")


@dataclass(frozen=True, slots=True, order=True)
class ClusterKey:
    """A MagnetarCluster, by Kubernetes namespace and name."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, order=True)
class SecretKey:
    """A Secret with credentials for one address, by Kubernetes namespace and name."""

    namespace: str
    name: str
    url: str
    """The address that receives them, which the Secret must name too."""


AccessKey = ClusterKey | SecretKey


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials for one cluster."""

    token: Secret = NOTHING
    """Empty: the cluster does not authenticate."""
    trust: bytes = b""
    """The authorities (PEM) that verify brokers; empty: the machine's."""
    only_tls: bool = False
    """Whether the token is sent by TLS only."""

    def headers(self, url: str) -> dict[str, str]:
        """The headers of a request to `url`; raises httpx.LocalProtocolError for a broken token."""
        if not self.token or (self.only_tls and urlsplit(url).scheme != "https"):
            return {}
        token = self.token.reveal().decode("utf-8", "replace").strip()
        if not is_header_text(token):
            raise httpx.LocalProtocolError(NO_HEADER_TEXT)
        return {"authorization": f"Bearer {token}"}

    def context(self) -> ssl.SSLContext:
        """Verifies brokers: their certificate, and that it names the host. Raises ssl.SSLError."""
        trust = self.trust.decode("ascii", errors="replace")
        return ssl.create_default_context(cadata=trust or None)


OPEN: Final = Access()
"""The access to clusters without authentication."""

AccessSource = Callable[[AccessKey], Awaitable[Access]]
"""Reads the credentials for a cluster or an address; the source caches them."""


async def no_access(_key: AccessKey) -> Access:
    """A source for processes that know no credentials."""
    return OPEN

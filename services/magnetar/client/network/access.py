"""How a client authenticates to one cluster, and encrypts its connections to it."""

from dataclasses import dataclass

from magnetar.client.auth.api import Authentication
from magnetar.client.network.service_urls import Address
from magnetar.client.network.tls import Tls


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials and the TLS settings for a cluster."""

    tls: Tls
    auth: Authentication


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster that a client can use."""

    addresses: list[Address]
    access: Access

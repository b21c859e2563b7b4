"""How a client authenticates to one cluster, and encrypts its connections to it."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from magnetar.client.auth.api import Authentication
from magnetar.client.errors import AuthenticationFailed, ClientError
from magnetar.client.network.service_urls import Address
from magnetar.client.network.tls import Tls

T = TypeVar("T")


async def supplied(credentials: Awaitable[T]) -> T:
    """Returns what a method of authentication supplies; raises AuthenticationFailed.

    It may be users' code. Another error would end the task that reconnects.
    """
    try:
        return await credentials
    except ClientError:
        raise
    except Exception as error:
        reason = str(error) or repr(error)
        raise AuthenticationFailed(f"The credentials could not be supplied: {reason}") from error


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

"""A client of this broker's own cluster, with the credentials that it presents to other brokers."""

from typing import TYPE_CHECKING

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.peers.client import PeerClient
from magnetar.client.auth.api import Authentication
from magnetar.client.client import Client
from magnetar.client.errors import AuthenticationFailed
from magnetar.client.network.tls import Tls
from magnetar.core.errors import PreconditionFailed, ServiceNotReady

if TYPE_CHECKING:
    from magnetar.security.credentials import Credentials


class OwnCredentials(Authentication):
    """Presents this broker's credentials to brokers."""

    def __init__(self, method: str, credentials: "Credentials") -> None:
        self._method = method
        self._credentials = credentials

    @property
    def method(self) -> str:
        return self._method

    async def credentials(self) -> bytes:
        from magnetar.security.credentials.plugins import CredentialsUnavailable

        try:
            _, secret = await self._credentials.method_and_data()
        except CredentialsUnavailable as error:
            raise AuthenticationFailed(f"This broker has no credentials now: {error}") from error
        return secret.reveal()


async def own_client(record: BrokerRecord, peers: PeerClient, *, authenticated: bool) -> Client:
    """Returns a client that first connects to this broker.

    Raises PreconditionFailed if the settings name no credentials or no usable port.
    """
    auth = None
    if authenticated:
        if peers.credentials is None:
            raise PreconditionFailed(
                "authentication is on, and this broker has no credentials of its own: set "
                "broker_client_auth_plugin (brokerClientAuthenticationPlugin) and "
                "broker_client_auth_parameters (brokerClientAuthenticationParameters)"
            )
        auth = await _authentication(peers.credentials)
    try:
        address = peers.address_of(record)
    except ServiceNotReady as error:
        raise PreconditionFailed(error.message) from error
    scheme = "pulsar" if address.tls is None else "pulsar+ssl"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return Client(f"{scheme}://{host}:{address.port}", auth=auth, tls=_tls(peers))


async def _authentication(credentials: "Credentials") -> Authentication:
    from magnetar.security.credentials.plugins import CredentialsUnavailable

    try:
        method, _ = await credentials.method_and_data()
    except CredentialsUnavailable as error:
        raise ServiceNotReady(f"This broker has no credentials now: {error}") from error
    return OwnCredentials(method, credentials)


def _tls(peers: PeerClient) -> Tls | None:
    if peers.tls is None:
        return None
    config = peers.tls.config
    return Tls(
        trust_certificates_file=str(config.trust_file or ""),
        verify_hostname=config.verify_hostname,
        allow_insecure=config.allow_insecure,
        certificate_file=str(config.cert_file or ""),
        key_file=str(config.key_file or ""),
    )

"""Where the keys of tokens come from: an issuer on the web, or the Kubernetes API server.

- An allowed issuer publishes its metadata under its own URL; they must name the same issuer, and
  the URL of its key set.
- Kubernetes signs the tokens of service accounts. The API server names their issuer. With
  KUBERNETES_DISCOVER_TRUSTED_ISSUER the keys come from that issuer's URL, with
  KUBERNETES_DISCOVER_PUBLIC_KEYS from the API server. This process asks it with the service account
  of its pod, whose token is read on each use.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from magnetar.core.header_text import NO_HEADER_TEXT, is_header_text
from magnetar.security.api import ProviderUnavailable
from magnetar.security.errors import ConfigurationError
from magnetar.security.fetch import ProviderClient, checked_url
from magnetar.security.openid.documents import (
    METADATA_PATH,
    Jwk,
    Metadata,
    keys_by_id,
    metadata,
)

KUBERNETES_KEYS_PATH: Final = "/openid/v1/jwks"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class IssuerKeys:
    """The keys of an issuer, by `kid`, as of one fetch."""

    issuer: str
    keys: Mapping[str, Jwk]


class KeyOrigin(Protocol):
    """Fetches the current keys of an issuer."""

    async def fetch(self) -> IssuerKeys:
        """Returns the issuer with its keys; raises ProviderUnavailable."""

    async def close(self) -> None:
        """Closes connections that it owns; idempotent."""


class WebIssuer:
    """An issuer that publishes its keys under its own URL."""

    def __init__(self, issuer: str, client: ProviderClient, *, require_https: bool) -> None:
        self._issuer = issuer
        self._client = client
        self._require_https = require_https

    async def fetch(self) -> IssuerKeys:
        """Returns the keys that the issuer publishes; raises ProviderUnavailable."""
        # Kubernetes may name an issuer that the settings do not.
        if (reason := checked_url(self._issuer, require_https=self._require_https)) is not None:
            raise ProviderUnavailable(f"the issuer is refused: {reason}")
        url = self._issuer.rstrip("/") + METADATA_PATH
        described = metadata(await self._client.get(url), url)
        if described.issuer != self._issuer:
            raise ProviderUnavailable(f"{url} names the issuer {described.issuer[:256]!a}")
        return IssuerKeys(self._issuer, await self._keys(described))

    async def _keys(self, described: Metadata) -> Mapping[str, Jwk]:
        url = described.keys_url
        if (reason := checked_url(url, require_https=self._require_https)) is not None:
            raise ProviderUnavailable(f"the jwks_uri of {self._issuer} is refused: {reason}")
        return keys_by_id(await self._client.get(url), url)

    async def close(self) -> None:
        """Does nothing: the client is shared."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The address of the Kubernetes API server, and the credentials of this pod."""

    url: str
    account: Path

    @classmethod
    def of_pod(cls, environ: Mapping[str, str]) -> "ApiServer":
        """Returns that of the pod that this process runs in; raises ConfigurationError."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise ConfigurationError(
                "openIDFallbackDiscoveryMode needs a pod of Kubernetes: KUBERNETES_SERVICE_HOST is "
                "not set"
            )
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", SERVICE_ACCOUNT)


class KubernetesIssuer:
    """The issuer of service account tokens, as the API server names it."""

    def __init__(
        self,
        server: ApiServer,
        api: ProviderClient,
        web: ProviderClient | None,
        *,
        require_https: bool,
    ) -> None:
        """`web` fetches the keys from the issuer's URL; None: the API server has them."""
        self._server = server
        self._api = api
        self._web = web
        self._require_https = require_https

    async def fetch(self) -> IssuerKeys:
        """Returns the issuer of this Kubernetes cluster with its keys.

        Raises ProviderUnavailable.
        """
        headers = await self._headers()
        url = self._server.url + METADATA_PATH
        described = metadata(await self._api.get(url, headers), url)
        if self._web is not None:
            web = WebIssuer(described.issuer, self._web, require_https=self._require_https)
            return await web.fetch()
        keys_url = self._server.url + KUBERNETES_KEYS_PATH
        keys = keys_by_id(await self._api.get(keys_url, headers), keys_url)
        return IssuerKeys(described.issuer, keys)

    async def _headers(self) -> dict[str, str]:
        path = self._server.account / "token"
        try:
            token = (await asyncio.to_thread(path.read_text, "ascii")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderUnavailable(f"cannot read {path}: {type(error).__name__}") from None
        if not is_header_text(token):
            raise ProviderUnavailable(f"{path}: {NO_HEADER_TEXT}")
        return {"Authorization": f"Bearer {token}"}

    async def close(self) -> None:
        """Closes the connections to the API server; idempotent."""
        await self._api.close()

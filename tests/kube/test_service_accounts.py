"""Tokens of service accounts, signed by a real Kubernetes and verified with the keys it serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from kubernetes import client
from tests.support.certificates import Authority

from magnetar.core.clock import SystemClock
from magnetar.security.api import AuthenticationFailed, Peer, ProviderUnavailable
from magnetar.security.configuration import OpenIdProviderConfig
from magnetar.security.discovery_mode import DiscoveryMode
from magnetar.security.openid.issuers import ApiServer
from magnetar.security.openid.provider import OpenIdProvider
from magnetar.security.secret import Secret

AUDIENCE: Final = "pulsar"
LIFE_S: Final = 600
"""The shortest that Kubernetes issues."""
PEER: Final = Peer("127.0.0.1")
PUBLIC_KEYS: Final = "KUBERNETES_DISCOVER_PUBLIC_KEYS"

pytestmark = pytest.mark.kube


class Accounts:
    """Service accounts of a namespace, and their tokens."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._core = client.CoreV1Api(api)
        self.namespace = namespace

    def create(self, name: str) -> None:
        body = client.V1ServiceAccount(metadata=client.V1ObjectMeta(name=name))
        self._core.create_namespaced_service_account(self.namespace, body)

    def token(self, name: str, *audiences: str) -> str:
        """Requests a token; without audiences, it is for the API server."""
        spec = client.V1TokenRequestSpec(audiences=list(audiences), expiration_seconds=LIFE_S)
        request = client.AuthenticationV1TokenRequest(spec=spec)
        answer = self._core.create_namespaced_service_account_token(name, self.namespace, request)
        assert answer.status is not None
        return str(answer.status.token)


@pytest.fixture
def accounts(kube_api: client.ApiClient, kube_namespace: str) -> Accounts:
    made = Accounts(kube_api, kube_namespace)
    for name in ("broker", "shop"):
        made.create(name)
    return made


@pytest.fixture
def api_server(kube_api: client.ApiClient, accounts: Accounts, tmp_path: Path) -> ApiServer:
    """What a pod of the account `broker` has: its token, and the CA of the API server."""
    settings = kube_api.configuration
    ca = Path(settings.ssl_ca_cert).read_bytes()
    (tmp_path / "ca.crt").write_bytes(ca)
    (tmp_path / "token").write_text(accounts.token("broker"))
    return ApiServer(settings.host, tmp_path)


@asynccontextmanager
async def opened(
    server: ApiServer, mode: DiscoveryMode = PUBLIC_KEYS
) -> AsyncIterator[OpenIdProvider]:
    """The provider as the settings of docs/run/security.md configure it, and nothing more."""
    config = OpenIdProviderConfig(
        allowed_issuers=(), allowed_audiences=(AUDIENCE,), fallback_discovery_mode=mode
    )
    provider = OpenIdProvider(config, SystemClock(), server)
    try:
        yield provider
    finally:
        await provider.close()


async def test_the_role_is_the_service_account(api_server: ApiServer, accounts: Accounts) -> None:
    token = await asyncio.to_thread(accounts.token, "shop", AUDIENCE)
    async with opened(api_server) as provider:
        identity = await provider.authenticate(Secret(token), PEER)
    assert identity.role == f"system:serviceaccount:{accounts.namespace}:shop"
    assert identity.expires_at_ms is not None
    assert 0 < identity.expires_at_ms - SystemClock().now_ms() <= LIFE_S * 1_000


async def test_a_token_for_another_audience_is_refused(
    api_server: ApiServer, accounts: Accounts
) -> None:
    """Else the token that every pod has would do, and who sees it could act for the pod."""
    async with opened(api_server) as provider:
        for audiences in ((), ("vault",)):
            token = await asyncio.to_thread(accounts.token, "shop", *audiences)
            with pytest.raises(AuthenticationFailed, match="aud"):
                await provider.authenticate(Secret(token), PEER)


async def test_a_changed_token_is_refused(api_server: ApiServer, accounts: Accounts) -> None:
    head, _, signature = (await asyncio.to_thread(accounts.token, "shop", AUDIENCE)).split(".")
    claims = (await asyncio.to_thread(accounts.token, "broker", AUDIENCE)).split(".")[1]
    async with opened(api_server) as provider:
        with pytest.raises(AuthenticationFailed, match="signature"):
            await provider.authenticate(Secret(f"{head}.{claims}.{signature}"), PEER)


async def test_the_issuer_that_nobody_reaches_is_unavailable(
    api_server: ApiServer, accounts: Accounts
) -> None:
    """Outside of the cluster its name resolves to nothing: clients may try again."""
    token = await asyncio.to_thread(accounts.token, "shop", AUDIENCE)
    async with opened(api_server, "KUBERNETES_DISCOVER_TRUSTED_ISSUER") as provider:
        with pytest.raises(ProviderUnavailable):
            await provider.authenticate(Secret(token), PEER)


async def test_an_api_server_with_another_ca_is_unavailable(
    api_server: ApiServer, accounts: Accounts, tmp_path: Path
) -> None:
    token = await asyncio.to_thread(accounts.token, "shop", AUDIENCE)
    (tmp_path / "ca.crt").write_bytes(Authority(tmp_path, "other").file.read_bytes())
    async with opened(api_server) as provider:
        with pytest.raises(ProviderUnavailable, match="certificate"):
            await provider.authenticate(Secret(token), PEER)

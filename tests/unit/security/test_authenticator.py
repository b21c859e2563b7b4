"""All providers of a process: chains, the anonymous role, and the credentials of requests."""

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.issuer import Issuer, issuer
from tests.support.stepped_loop import FakeClock
from tests.support.tokens import SECRET, jwk, token

from magnetar.security.api import AuthenticationFailed, Identity, Peer, ProviderUnavailable
from magnetar.security.authenticator import ProviderChain, open_authenticator
from magnetar.security.configuration import (
    Authentication,
    BasicProviderConfig,
    OpenIdProviderConfig,
    ProviderConfig,
    TlsProviderConfig,
    TokenProviderConfig,
)
from magnetar.security.secret import Secret

PEER = Peer("127.0.0.1")
APR1 = "$apr1$FG4AO6aX$BemPmemJczFeF5R49lJDi."
TOKEN = TokenProviderConfig(secret_key=Secret("data:;base64," + base64.b64encode(SECRET).decode()))
BASIC = BasicProviderConfig(users=Secret(f"data:,admin:{APR1}"))
TLS = TlsProviderConfig()
ME = token({"sub": "me"})
BEARER = {"authorization": f"Bearer {ME.decode()}"}
PASSWORD = {"authorization": "Basic " + base64.b64encode(b"admin:secret").decode()}
HEADER = "x-pulsar-auth-method-name"


@asynccontextmanager
async def opened(*providers: ProviderConfig, **config: Any) -> AsyncIterator[ProviderChain]:
    chain = open_authenticator(Authentication(providers=providers, **config), FakeClock())
    try:
        yield chain
    finally:
        await chain.close()
        await chain.close()


async def test_the_method_chooses_the_provider() -> None:
    async with opened(TOKEN, BASIC, TLS) as chain:
        assert (await chain.authenticate("token", Secret(ME), PEER)).role == "me"
        assert (await chain.authenticate("basic", Secret("admin:secret"), PEER)).role == "admin"
        for method, data in (("token", b"admin:secret"), ("basic", ME), ("tls", ME), ("", ME)):
            with pytest.raises(AuthenticationFailed):
                await chain.authenticate(method, Secret(data), PEER)


async def test_the_first_provider_of_a_method_remembers_what_it_accepted() -> None:
    async with opened(TOKEN, BASIC) as chain:
        assert chain.remembered("token", Secret(ME)) is None
        identity = await chain.authenticate("token", Secret(ME), PEER)
        assert chain.remembered("token", Secret(ME)) == identity
        assert (await chain.authenticate("basic", Secret("admin:secret"), PEER)).role == "admin"
        assert chain.remembered("basic", Secret("admin:secret")) is None
        assert chain.remembered("none", Secret(ME)) is None


async def test_a_method_without_a_provider_is_the_anonymous_role() -> None:
    async with opened(TOKEN, anonymous_role="guest") as chain:
        for method in ("none", "", "basic", "sasl"):
            identity = await chain.authenticate(method, Secret(b"x"), PEER)
            assert identity == Identity("guest", "none")
        with pytest.raises(AuthenticationFailed):
            await chain.authenticate("token", Secret(b"x"), PEER)
    async with opened(TOKEN) as chain:
        with pytest.raises(AuthenticationFailed, match="no provider"):
            await chain.authenticate("none", Secret(b""), PEER)


def openid(web: Issuer) -> OpenIdProviderConfig:
    return OpenIdProviderConfig(
        allowed_issuers=(web.url,), allowed_audiences=("a",), require_https=False
    )


@pytest.mark.parametrize("reverse", [False, True])
async def test_keys_of_this_process_and_openid_work_as_one_method(reverse: bool) -> None:
    with issuer() as web:
        web.publish(jwk("RS256", kid="a"))
        now_s = FakeClock().now_ms() // 1000
        claims = {"iss": web.url, "sub": "you", "aud": "a", "iat": 1, "nbf": 1, "exp": now_s + 60}
        providers = [TOKEN, openid(web)]
        async with opened(*(reversed(providers) if reverse else providers)) as chain:
            assert (await chain.authenticate("token", Secret(ME), PEER)).role == "me"
            other = Secret(token(claims, "RS256", kid="a"))
            assert (await chain.authenticate("token", other, PEER)).role == "you"
            with pytest.raises(AuthenticationFailed) as refused:
                await chain.authenticate("token", Secret(b"x.y.z"), PEER)
            assert "; " not in str(refused.value)


async def test_an_unreachable_issuer_matters_only_to_its_own_tokens() -> None:
    absent = Issuer(url="http://127.0.0.1:1")
    async with opened(openid(absent), TOKEN) as chain:
        assert (await chain.authenticate("token", Secret(ME), PEER)).role == "me"
        with pytest.raises(AuthenticationFailed):
            await chain.authenticate("token", Secret(token({"sub": "a"}, "RS256")), PEER)
        of_issuer = token({"iss": absent.url, "sub": "a"}, "RS256", kid="a")
        with pytest.raises(ProviderUnavailable):
            await chain.authenticate("token", Secret(of_issuer), PEER)
        headers = {"authorization": f"Bearer {of_issuer.decode()}"}
        with pytest.raises(ProviderUnavailable):
            await chain.authenticate_http(headers, PEER)


async def test_a_request_may_leave_its_method_out() -> None:
    async with opened(TOKEN, BASIC, TLS) as chain:
        assert (await chain.authenticate_http(BEARER, PEER)).role == "me"
        assert (await chain.authenticate_http(PASSWORD, PEER)).role == "admin"
        for headers in ({}, {"authorization": "Digest x"}, {"authorization": "Bearer x"}):
            with pytest.raises(AuthenticationFailed):
                await chain.authenticate_http(headers, PEER)


async def test_the_header_names_the_method() -> None:
    async with opened(TOKEN, BASIC) as chain:
        assert (await chain.authenticate_http(BEARER | {HEADER: "token"}, PEER)).role == "me"
        for headers in (BEARER | {HEADER: "basic"}, {HEADER: "token"}, BEARER | {HEADER: "sasl"}):
            with pytest.raises(AuthenticationFailed):
                await chain.authenticate_http(headers, PEER)


async def test_strict_requests_must_name_their_method() -> None:
    async with opened(TOKEN, strict_method=True, anonymous_role="guest") as chain:
        assert (await chain.authenticate_http(BEARER | {HEADER: "token"}, PEER)).role == "me"
        for headers in (BEARER, {}):
            with pytest.raises(AuthenticationFailed, match=HEADER):
                await chain.authenticate_http(headers, PEER)


async def test_a_request_without_credentials_is_anonymous_and_a_wrong_one_is_not() -> None:
    async with opened(TOKEN, anonymous_role="guest") as chain:
        assert (await chain.authenticate_http({}, PEER)).role == "guest"
        for headers in ({"authorization": "Bearer x"}, PASSWORD, {HEADER: "token"}):
            with pytest.raises(AuthenticationFailed):
                await chain.authenticate_http(headers, PEER)


async def test_an_authorization_header_precedes_the_certificate() -> None:
    peer = Peer("127.0.0.1", b"not a certificate")
    async with opened(TLS, TOKEN) as chain:
        assert (await chain.authenticate_http(BEARER, peer)).role == "me"
        with pytest.raises(AuthenticationFailed, match="certificate"):
            await chain.authenticate_http({}, peer)
        with pytest.raises(AuthenticationFailed, match="certificate"):
            await chain.authenticate_http(BEARER | {HEADER: "tls"}, peer)


@given(
    method=st.text(max_size=10),
    data=st.binary(max_size=40),
    headers=st.dictionaries(
        st.sampled_from(["authorization", HEADER]),
        st.sampled_from(["Basic", "Bearer", "basic", "token", "tls"]).flatmap(
            lambda scheme: st.text(max_size=20).map(lambda rest: f"{scheme} {rest}".strip())
        ),
    ),
)
def test_garbage_is_authentication_failed_and_nothing_else(
    method: str, data: bytes, headers: dict[str, str]
) -> None:
    async def attempt() -> None:
        async with opened(TOKEN, BASIC, TLS) as chain:
            with pytest.raises(AuthenticationFailed):
                await chain.authenticate(method, Secret(data), PEER)
            with pytest.raises(AuthenticationFailed):
                await chain.authenticate_http(headers, PEER)

    asyncio.run(attempt())


def test_the_modules_of_an_open_broker_load_no_cryptography() -> None:
    code = (
        "import sys, magnetar.security.authenticator, magnetar.settings.standalone, "
        "magnetar.security.credentials; "
        "print([m for m in ('jwt', 'cryptography', 'bcrypt', 'passlib', 'httpx') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

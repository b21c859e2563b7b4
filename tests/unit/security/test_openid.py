"""Tokens of OpenID Connect issuers, against a real HTTP server on loopback."""

import asyncio
import gzip
import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.certificates import Authority
from tests.support.issuer import KEYS, METADATA, Issuer, issuer, server_context
from tests.support.stepped_loop import FakeClock
from tests.support.tokens import der, forged, jwk, private_key, token

from magnetar.security.api import AuthenticationFailed, Identity, Peer, ProviderUnavailable
from magnetar.security.configuration import OpenIdProviderConfig
from magnetar.security.errors import ConfigurationError
from magnetar.security.fetch import DOCUMENT_BYTES_MAX, ProviderClient, tls_context
from magnetar.security.openid.cache import FAILURE_PAUSE_S
from magnetar.security.openid.issuers import KUBERNETES_KEYS_PATH, ApiServer
from magnetar.security.openid.provider import OpenIdProvider
from magnetar.security.secret import Secret

PEER = Peer("127.0.0.1")
AUDIENCE = "pulsar"


@pytest.fixture
def web() -> Iterator[Issuer]:
    with issuer() as state:
        state.publish(jwk("RS256", kid="a"))
        yield state


@asynccontextmanager
async def opened(
    web: Issuer, clock: FakeClock | None = None, server: ApiServer | None = None, **changes: Any
) -> AsyncIterator[OpenIdProvider]:
    config: dict[str, Any] = {
        "allowed_issuers": (web.url,),
        "allowed_audiences": ("other", AUDIENCE),
        "require_https": False,
    }
    provider = OpenIdProvider(
        OpenIdProviderConfig(**config | changes), clock or FakeClock(), server
    )
    try:
        yield provider
    finally:
        await provider.close()


def claims(web: Issuer, clock: FakeClock | None = None, **changes: object) -> dict[str, Any]:
    now_s = (clock or FakeClock()).now_ms() // 1000
    made = {
        "iss": web.url, "sub": "me", "aud": AUDIENCE,
        "iat": now_s - 5, "nbf": now_s - 5, "exp": now_s + 600,
    } | changes  # fmt: skip
    return {name: value for name, value in made.items() if value is not None}


async def role(provider: OpenIdProvider, compact: bytes) -> str:
    return (await provider.authenticate(Secret(compact), PEER)).role


async def refusal(provider: OpenIdProvider, compact: bytes) -> str:
    with pytest.raises(AuthenticationFailed) as refused:
        await provider.authenticate(Secret(compact), PEER)
    return str(refused.value)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"])
async def test_a_token_of_an_allowed_issuer_is_verified(web: Issuer, algorithm: str) -> None:
    web.publish(jwk(algorithm, kid="a"))
    clock = FakeClock()
    made = claims(web, clock)
    async with opened(web, clock) as provider:
        for _ in range(3):
            compact = Secret(token(made, algorithm, kid="a"))
            identity = await provider.authenticate(compact, PEER)
            assert identity == Identity("me", "token", made["exp"] * 1000)
        other = token(made, algorithm, private_key(algorithm, 1), kid="a")
        assert "signature" in await refusal(provider, other)
    assert web.paths() == [METADATA, KEYS]


@pytest.mark.parametrize("claim", ["iat", "exp", "sub"])
async def test_a_token_without_a_required_claim_is_refused(web: Issuer, claim: str) -> None:
    async with opened(web) as provider:
        reason = await refusal(provider, token(claims(web, **{claim: None}), "RS256", kid="a"))
    assert reason == f"the token has no {claim}"


async def test_nbf_is_optional_by_default(web: Issuer) -> None:
    absent = token(claims(web, nbf=None), "RS256", kid="a")
    async with opened(web, require_not_before=True) as provider:
        assert await refusal(provider, absent) == "the token has no nbf"
    async with opened(web) as provider:
        assert await role(provider, absent) == "me"
        late = claims(web, nbf=FakeClock().now_ms() // 1000 + 60)
        assert "nbf" in await refusal(provider, token(late, "RS256", kid="a"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": "else"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": []}, "aud"),
        ({"iss": "http://127.0.0.1:1"}, "issuer is not allowed"),
        ({"iss": None}, "issuer is not allowed"),
        ({"iss": 5}, "issuer is not allowed"),
        ({"exp": 5}, "expired"),
        ({"nbf": 1 << 40}, "nbf"),
        ({"iat": 1 << 40}, "iat"),
        ({"sub": ["", "me"]}, "sub"),
    ],
)
async def test_wrong_claims_are_refused(web: Issuer, changes: Any, reason: str) -> None:
    compact = (
        jwt.PyJWS()
        .encode(
            json.dumps(claims(web, **changes)).encode(), private_key("RS256"), "RS256", {"kid": "a"}
        )
        .encode()
    )
    async with opened(web) as provider:
        assert reason in await refusal(provider, compact)


async def test_the_leeway_covers_a_clock_that_differs(web: Issuer) -> None:
    clock = FakeClock()
    now_s = clock.now_ms() // 1000
    early = token(claims(web, nbf=now_s + 20, iat=now_s + 20), "RS256", kid="a")
    late = token(claims(web, exp=now_s - 20), "RS256", kid="a")
    async with opened(web, clock, leeway_s=30) as provider:
        assert await role(provider, early) == "me"
        assert await role(provider, late) == "me"
    async with opened(web, clock, leeway_s=10) as provider:
        await refusal(provider, early)
        await refusal(provider, late)


async def test_the_first_role_of_a_list_counts(web: Issuer) -> None:
    async with opened(web, role_claim="groups") as provider:
        compact = token(claims(web, groups=["a", "b"]), "RS256", kid="a")
        assert await role(provider, compact) == "a"


async def test_the_alg_of_the_issuers_key_is_the_only_one(web: Issuer) -> None:
    async with opened(web) as provider:
        assert "alg" in await refusal(provider, token(claims(web), "RS512", kid="a"))
    web.publish(jwk("RS256", kid="a", alg=None))
    async with opened(web) as provider:
        assert await role(provider, token(claims(web), "RS512", kid="a")) == "me"
        # Without `alg`, the key's kind limits the algorithms.
        assert "not a usable" in await refusal(
            provider, token(claims(web), "ES256", private_key("ES256"), kid="a")
        )


async def test_hmac_and_none_are_never_requested(web: Issuer) -> None:
    async with opened(web) as provider:
        for header in ({"alg": "HS256"}, {"alg": "none"}, {"alg": "PS256"}, {"alg": "rs256"}):
            compact = forged(header | {"kid": "a"}, claims(web), der("RS256"))
            assert "algorithm" in await refusal(provider, compact)
        assert "kid" in await refusal(provider, token(claims(web), "RS256"))
    assert web.received == []


async def test_a_rotated_key_is_found_by_its_kid(web: Issuer) -> None:
    clock = FakeClock()
    async with opened(web, clock, unknown_key_refresh_s=300) as provider:
        old = token(claims(web, clock), "RS256", kid="a")
        new = token(claims(web, clock), "RS256", private_key("RS256", 1), kid="b")
        assert await role(provider, old) == "me"
        web.publish(jwk("RS256", kid="a"), jwk("RS256", 1, kid="b"))
        # Fetched only after unknown_key_refresh_s: random ids must not flood the issuer.
        for _ in range(10):
            assert "no key" in await refusal(provider, new)
        assert web.paths() == [METADATA, KEYS]
        clock.elapsed_s += 300
        assert await role(provider, new) == "me"
        assert await role(provider, old) == "me"
        assert web.paths() == [METADATA, KEYS] * 2
        # A withdrawn key is unknown after the next fetch.
        web.publish(jwk("RS256", 1, kid="b"))
        clock.elapsed_s += 300
        await refusal(provider, token(claims(web, clock), "RS256", kid="c"))
        assert "no key" in await refusal(provider, token(claims(web, clock), "RS256", kid="a"))


async def test_keys_are_refreshed_while_the_old_ones_are_in_use(web: Issuer) -> None:
    clock = FakeClock()
    async with opened(web, clock, refresh_after_s=100, expire_after_s=200) as provider:
        compact = token(claims(web, clock, exp=clock.now_ms()), "RS256", kid="a")
        assert await role(provider, compact) == "me"
        web.stalled = threading.Event()
        clock.elapsed_s += 100
        assert await role(provider, compact) == "me"
        async with asyncio.timeout(20):
            while len(web.received) < 3:  # noqa: ASYNC110 (another thread counts)
                await asyncio.sleep(0.01)
        assert await role(provider, compact) == "me"
        web.stalled.set()
        async with asyncio.timeout(20):
            while len(web.received) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_expired_keys_are_not_used(web: Issuer) -> None:
    clock = FakeClock()
    async with opened(web, clock, refresh_after_s=100, expire_after_s=200) as provider:
        compact = token(claims(web, clock, exp=clock.now_ms()), "RS256", kid="a")
        assert await role(provider, compact) == "me"
        web.answers[KEYS] = (500, {})
        clock.elapsed_s += 200
        with pytest.raises(ProviderUnavailable, match="500"):
            await role(provider, compact)
        web.publish(jwk("RS256", kid="a"))
        clock.elapsed_s += FAILURE_PAUSE_S
        assert await role(provider, compact) == "me"


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (METADATA, (404, {}), "answered 404"),
        (METADATA, (302, {}), "answered 302"),
        (METADATA, (200, b"<html>"), "not a JSON object"),
        (METADATA, (200, []), "not a JSON object"),
        (METADATA, (200, {"issuer": "{issuer}"}), "no jwks_uri"),
        (METADATA, (200, {"issuer": "http://a", "jwks_uri": "{issuer}"}), "the issuer 'http://a'"),
        (METADATA, (200, {"issuer": "{issuer}", "jwks_uri": "file:///etc/passwd"}), "jwks_uri"),
        (METADATA, (200, b" " * (DOCUMENT_BYTES_MAX + 1)), "larger"),
        (KEYS, (503, {}), "answered 503"),
        (KEYS, (200, {"keys": {}}), "no list"),
        (KEYS, (200, {"keys": [{}] * 1001}), "no list"),
    ],
)
async def test_an_unusable_answer_is_provider_unavailable(
    web: Issuer, path: str, answer: Any, reason: str
) -> None:
    web.answers[path] = answer
    async with opened(web) as provider:
        with pytest.raises(ProviderUnavailable) as unavailable:
            await role(provider, token(claims(web), "RS256", kid="a"))
    assert reason in str(unavailable.value)
    assert "/elsewhere" not in web.paths()


async def test_an_issuer_that_does_not_answer_is_provider_unavailable(web: Issuer) -> None:
    compact = token(claims(web), "RS256", kid="a")
    web.stalled = threading.Event()
    async with opened(web, connect_timeout_ms=50, read_timeout_ms=50) as provider:
        with pytest.raises(ProviderUnavailable, match="no answer"):
            await role(provider, compact)
    absent = Issuer(url="http://127.0.0.1:1")
    async with opened(absent) as provider:
        with pytest.raises(ProviderUnavailable, match="no answer"):
            await role(provider, token(claims(absent), "RS256", kid="a"))


async def test_callers_share_one_fetch_and_its_failure(web: Issuer) -> None:
    clock = FakeClock()
    compact = token(claims(web, clock), "RS256", kid="a")
    web.answers[KEYS] = (500, {})
    async with opened(web, clock) as provider:
        results = await asyncio.gather(
            *(role(provider, compact) for _ in range(20)), return_exceptions=True
        )
        assert {type(result) for result in results} == {ProviderUnavailable}
        assert web.paths() == [METADATA, KEYS]
        web.publish(jwk("RS256", kid="a"))
        clock.elapsed_s += FAILURE_PAUSE_S
        assert await asyncio.gather(*(role(provider, compact) for _ in range(20))) == ["me"] * 20
        assert web.paths() == [METADATA, KEYS] * 2


async def test_a_caller_that_gives_up_does_not_end_the_fetch_of_others(web: Issuer) -> None:
    """Otherwise clients that connect and leave could keep the keys from all others."""
    compact = token(claims(web), "RS256", kid="a")
    web.stalled = threading.Event()
    async with opened(web) as provider:
        first = asyncio.create_task(role(provider, compact))
        others = [asyncio.create_task(role(provider, compact)) for _ in range(20)]
        while not web.received:  # noqa: ASYNC110 - a thread answers
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        web.stalled.set()
        assert await asyncio.gather(*others) == ["me"] * 20
        assert web.paths() == [METADATA, KEYS]
        assert first.cancelled()


async def test_the_end_of_a_provider_ends_its_fetch_and_its_callers(web: Issuer) -> None:
    web.stalled = threading.Event()
    async with opened(web) as provider:
        caller = asyncio.create_task(role(provider, token(claims(web), "RS256", kid="a")))
        while not web.received:  # noqa: ASYNC110 - a thread answers
            await asyncio.sleep(0.001)
        await provider.close()
        with pytest.raises(ProviderUnavailable, match="stopping"):
            await caller
    web.stalled.set()


async def test_the_number_of_cached_issuers_is_bounded(web: Issuer) -> None:
    with issuer() as second:
        second.publish(jwk("RS256", 1, kid="a"))
        issuers = (web.url, second.url)
        first_token = token(claims(web), "RS256", kid="a")
        second_token = token(claims(second), "RS256", private_key("RS256", 1), kid="a")
        async with opened(web, allowed_issuers=issuers, issuers_cached_max=1) as provider:
            assert await role(provider, first_token) == "me"
            assert await role(provider, second_token) == "me"
            # A key of one issuer proves nothing about the other.
            stolen = token(claims(web), "RS256", private_key("RS256", 1), kid="a")
            assert "signature" in await refusal(provider, stolen)
        assert web.paths() == [METADATA, KEYS] * 2


async def test_an_https_issuer_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with issuer(server_context(authority)) as web:
        web.publish(jwk("RS256", kid="a"))
        compact = token(claims(web), "RS256", kid="a")
        trusted: Any = {"require_https": True, "trust_certs_file": str(authority.file)}
        async with opened(web, **trusted) as provider:
            assert await role(provider, compact) == "me"
        async with opened(web, require_https=True) as provider:
            with pytest.raises(ProviderUnavailable, match="certificate"):
                await role(provider, compact)
        web.answers[METADATA] = (200, {"issuer": "{issuer}", "jwks_uri": "http://127.0.0.1/keys"})
        async with opened(web, **trusted) as provider:
            with pytest.raises(ProviderUnavailable, match="not https"):
                await role(provider, compact)


async def test_the_host_name_of_an_issuer_is_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with issuer(server_context(authority, ("elsewhere.example",))) as web:
        async with opened(web, trust_certs_file=str(authority.file)) as provider:
            with pytest.raises(ProviderUnavailable, match="certificate"):
                await role(provider, token(claims(web), "RS256", kid="a"))
        assert web.received == []


async def test_a_compressed_document_is_not_decompressed() -> None:
    """A megabyte of it could be a gigabyte."""
    bomb = gzip.compress(bytes(32 << 20))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    asked: list[bytes] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(head.encode() + bomb)
        writer.close()
        await writer.wait_closed()
        ended.set()

    client = ProviderClient(tls_context(""), connect_timeout_s=60.0, read_timeout_s=60.0)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        assert await client.get(f"http://{host}:{port}/") == bomb
        await client.close()
        await ended.wait()
    assert b"accept-encoding: identity\r\n" in asked[0].lower()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"allowed_issuers": ()}, "openIDAllowedTokenIssuers"),
        ({"allowed_audiences": ()}, "openIDAllowedAudiences"),
        ({"allowed_issuers": ("http://a",), "require_https": True}, "not https"),
        ({"allowed_issuers": ("a",)}, "not an https URL"),
        ({"trust_certs_file": "/absent"}, "/absent"),
        ({"refresh_after_s": 10, "expire_after_s": 10}, "less than"),
    ],
)
async def test_unusable_settings_stop_the_start(
    web: Issuer, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        async with opened(web, **changes):
            pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Issuer, ApiServer, Authority]]:
    """A Kubernetes API server with its CA, as a pod sees them."""
    authority = Authority(tmp_path)
    (tmp_path / "token").write_text("pod-token\n")
    with issuer(server_context(authority)) as api:
        api.answers[KUBERNETES_KEYS_PATH] = (200, {"keys": [jwk("RS256", kid="k8s")]})
        shutil.copy(authority.file, tmp_path / "ca.crt")
        yield api, ApiServer(api.url, tmp_path), authority


async def test_service_accounts_are_verified_by_keys_of_the_api_server(
    web: Issuer, cluster: tuple[Issuer, ApiServer, Authority]
) -> None:
    api, server, _ = cluster
    internal = Issuer(url="https://kubernetes.default.svc")
    metadata = {"issuer": internal.url, "jwks_uri": "https://10.0.0.1/openid/v1/jwks"}
    api.answers[METADATA] = (200, metadata)
    subject = "system:serviceaccount:ns:app"
    mode = "KUBERNETES_DISCOVER_PUBLIC_KEYS"
    async with opened(
        web, server=server, allowed_issuers=(), fallback_discovery_mode=mode
    ) as provider:
        compact = token(claims(internal, sub=subject), "RS256", kid="k8s")
        assert await role(provider, compact) == subject
        for _ in range(3):
            other = token(claims(web), "RS256", kid="a")
            assert "not allowed" in await refusal(provider, other)
    assert api.paths() == [METADATA, KUBERNETES_KEYS_PATH]
    assert {request.headers["authorization"] for request in api.received} == {"Bearer pod-token"}


async def test_service_accounts_are_verified_by_keys_of_their_issuer(
    web: Issuer, cluster: tuple[Issuer, ApiServer, Authority]
) -> None:
    api, server, _ = cluster
    api.answers[METADATA] = (200, {"issuer": web.url, "jwks_uri": "https://10.0.0.1/keys"})
    mode = "KUBERNETES_DISCOVER_TRUSTED_ISSUER"
    async with opened(
        web, server=server, allowed_issuers=(), fallback_discovery_mode=mode
    ) as provider:
        assert await role(provider, token(claims(web), "RS256", kid="a")) == "me"
    assert api.paths() == [METADATA]
    assert web.paths() == [METADATA, KEYS]
    # The pod's own token is sent only to the API server.
    assert all("authorization" not in request.headers for request in web.received)


async def test_an_api_server_that_does_not_answer_is_provider_unavailable(
    web: Issuer, cluster: tuple[Issuer, ApiServer, Authority]
) -> None:
    api, server, _ = cluster
    api.answers[METADATA] = (401, {})
    mode = "KUBERNETES_DISCOVER_PUBLIC_KEYS"
    async with opened(
        web, server=server, allowed_issuers=(), fallback_discovery_mode=mode
    ) as provider:
        with pytest.raises(ProviderUnavailable, match="401"):
            await role(provider, token(claims(web), "RS256", kid="a"))


def test_discovery_outside_of_kubernetes_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = OpenIdProviderConfig(
        allowed_issuers=(),
        allowed_audiences=(AUDIENCE,),
        fallback_discovery_mode="KUBERNETES_DISCOVER_PUBLIC_KEYS",
    )
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_HOST"):
        OpenIdProvider(config, FakeClock())


def test_the_address_of_the_api_server_comes_from_the_pod() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert ApiServer.of_pod(environ).url == "https://[fd00::1]:443"


@settings(max_examples=100, deadline=None)
@given(
    jwk_fields=st.dictionaries(
        st.sampled_from(["kty", "n", "e", "x", "y", "crv", "alg", "use", "kid", "k"]),
        st.sampled_from(["RSA", "EC", "oct", "AQAB", "", "P-256", "RS256", "a", 0, None, [], {}]),
    )
)
def test_a_strange_key_of_an_issuer_verifies_nothing(jwk_fields: dict[str, Any]) -> None:
    async def attempt() -> None:
        with issuer() as web:
            web.publish({**jwk("RS256", kid="a"), **jwk_fields, "kid": "a"})
            forged = token(claims(web), "RS256", private_key("RS256", 1), kid="a")
            async with opened(web) as provider:
                with pytest.raises(AuthenticationFailed):
                    await role(provider, forged)

    asyncio.run(attempt())

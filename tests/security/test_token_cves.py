"""Pulsar's vulnerabilities in the authentication by tokens, each as a test of its name."""

import hmac
import json
from typing import Any

import pytest
from tests.support.stepped_loop import FakeClock
from tests.support.tokens import SECRET, der, forged, jwk, pem, token

from magnetar.security.api import AuthenticationFailed, Peer
from magnetar.security.configuration import TokenProviderConfig
from magnetar.security.secret import Secret
from magnetar.security.token.provider import TokenProvider

PEER = Peer("127.0.0.1")


def data_url(content: bytes) -> str:
    import base64

    return "data:;base64," + base64.b64encode(content).decode()


PROVIDERS: dict[str, dict[str, Any]] = {
    "secret": {"secret_key": Secret(data_url(SECRET))},
    "public": {"public_key": data_url(der("RS256"))},
    "set": {"key_set": Secret(data_url(json.dumps({"keys": [jwk("RS256", kid="a")]}).encode()))},
}


async def refused(provider: str, compact: bytes) -> None:
    config = TokenProviderConfig(**PROVIDERS[provider])
    with pytest.raises(AuthenticationFailed):
        await TokenProvider(config, FakeClock()).authenticate(Secret(compact), PEER)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", "HS256 "])
async def test_cve_2021_22160_a_token_without_a_signature_is_refused(
    provider: str, algorithm: str
) -> None:
    for kid in ({}, {"kid": "a"}):
        signed = forged({"alg": algorithm, **kid}, {"sub": "admin"}, SECRET)
        unsigned = signed.rpartition(b".")[0] + b"."
        await refused(provider, signed)
        await refused(provider, unsigned)
        await refused(provider, unsigned[:-1])


@pytest.mark.parametrize("provider", ["public", "set"])
@pytest.mark.parametrize("secret", [der("RS256"), pem("RS256"), pem("RS256").strip(), b""])
async def test_cve_2021_22160_a_public_key_is_no_secret(provider: str, secret: bytes) -> None:
    for algorithm in ("HS256", "HS384", "HS512"):
        for kid in ({}, {"kid": "a"}):
            await refused(provider, forged({"alg": algorithm, **kid}, {"sub": "admin"}, secret))


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_cve_2021_22160_a_key_in_the_header_is_not_used(provider: str) -> None:
    for header in (
        {"alg": "HS256", "jwk": {"kty": "oct", "k": "AAAA"}},
        {"alg": "HS256", "jku": "http://127.0.0.1:1/keys"},
        {"alg": "HS256", "kid": "../../../../dev/null"},
    ):
        for secret in (b"", b"\0\0\0"):
            await refused(provider, forged(header, {"sub": "admin"}, secret))


async def test_cve_2023_51437_an_hmac_is_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def recorded(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    await refused("secret", token({"sub": "admin"}, key=SECRET[::-1]))
    assert [(len(a), len(b)) for a, b in compared] == [(32, 32)]
    compared.clear()
    assert Secret(b"a") != Secret(b"b")
    assert compared == [(b"a", b"b")]

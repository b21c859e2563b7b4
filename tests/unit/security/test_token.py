"""Tokens: which keys verify which, which claims they need, and that keys are reloaded."""

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stepped_loop import FakeClock
from tests.support.tokens import (
    EC,
    HMAC,
    RSA,
    SECRET,
    der,
    jwk,
    pem,
    private_der,
    private_key,
    token,
)

from magnetar.security.api import AuthenticationFailed, Identity, Peer
from magnetar.security.configuration import TokenProviderConfig
from magnetar.security.errors import ConfigurationError
from magnetar.security.reloading import RELOAD_CHECK_S
from magnetar.security.secret import Secret
from magnetar.security.token.cache import (
    VERIFIED_BYTES_MAX,
    VERIFIED_MAX,
    VerifiedToken,
    VerifiedTokens,
)
from magnetar.security.token.keys import KeyRing, VerificationKey
from magnetar.security.token.provider import TokenProvider
from magnetar.security.token.verify import TOKEN_BYTES_MAX

PEER = Peer("127.0.0.1")


def data_url(content: bytes) -> str:
    return "data:;base64," + base64.b64encode(content).decode()


def provider(clock: FakeClock | None = None, **config: Any) -> TokenProvider:
    if not config.keys() & {"secret_key", "public_key", "key_set"}:
        config["secret_key"] = Secret(data_url(SECRET))
    return TokenProvider(TokenProviderConfig(**config), clock or FakeClock())


async def role(verifier: TokenProvider, compact: bytes) -> str:
    return (await verifier.authenticate(Secret(compact), PEER)).role


async def refusal(verifier: TokenProvider, compact: bytes) -> str:
    with pytest.raises(AuthenticationFailed) as refused:
        await verifier.authenticate(Secret(compact), PEER)
    return str(refused.value)


@pytest.mark.parametrize("algorithm", HMAC)
async def test_a_secret_verifies_the_algorithms_that_it_is_long_enough_for(algorithm: str) -> None:
    signed = token({"sub": "me"}, algorithm)
    assert await role(provider(), signed) == "me"
    length = int(algorithm[2:]) // 8
    short = provider(secret_key=Secret(data_url(SECRET[:length])))
    assert await role(short, token({"sub": "me"}, algorithm, SECRET[:length])) == "me"
    if algorithm != "HS512":
        too_strong = token({"sub": "me"}, "HS512", SECRET[:length] + bytes(64))
        assert "no key verifies" in await refusal(short, too_strong)


@pytest.mark.parametrize("algorithm", RSA)
@pytest.mark.parametrize("encoded", [der, pem])
async def test_an_rsa_key_verifies_all_algorithms_of_rsa(algorithm: str, encoded: Any) -> None:
    verifier = provider(public_key=data_url(encoded("RS256")))
    assert await role(verifier, token({"sub": "me"}, algorithm)) == "me"
    other = token({"sub": "me"}, algorithm, private_key(algorithm, 1))
    assert "signature" in await refusal(verifier, other)


@pytest.mark.parametrize("algorithm", EC)
async def test_an_ec_key_verifies_the_algorithm_of_its_curve(algorithm: str) -> None:
    verifier = provider(public_key=data_url(der(algorithm)), public_algorithm=algorithm)
    assert await role(verifier, token({"sub": "me"}, algorithm)) == "me"
    assert "signature" in await refusal(
        verifier, token({"sub": "me"}, algorithm, private_key(algorithm, 1))
    )
    for other in EC.keys() - {algorithm}:
        assert "no key" in await refusal(verifier, token({"sub": "me"}, other))


PULSAR_SECRET = b"0123456789abcdef0123456789abcdef"
PULSAR_HS256 = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.usv2VTIM61FH9N7BnowmnOApUQ1MetEoR6QM1DCceHQ"
PULSAR_PUBLIC_KEY = (
    "MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAECBfEsNcNY8Glu8rWKQwlrJCVKTD7ro6p+Ug6ubQEI8Z7w3z8H66YSI06"
    "1vp0HpBlpzvUMts09V0zpZtweAHll95OREPYv3z5P2KtkR15lER7wwJelkjcPBZKQzABE3jA"
)
PULSAR_ES384 = (
    "eyJhbGciOiJFUzM4NCJ9.eyJzdWIiOiJtZSJ9.m4H7HT7d6lbHGTWv0Zs2esDtjAK5RK09Yx8octrCaulIzvVe2J"
    "fQ0ImHjcFLKHTZRNGZbUTluyYM7sMM7axZCgPOEbDExbUliifUBBQdXsr_Qeg-1kyl9oNckjFGPhOE"
)
"""Made by `pulsar tokens` of 4.2.4: `create -sk` with that secret, `create -a ES384 -pk`."""


async def test_tokens_of_pulsars_own_tool_are_verified() -> None:
    by_secret = provider(secret_key=Secret(data_url(PULSAR_SECRET)))
    assert await role(by_secret, PULSAR_HS256.encode()) == "me"
    by_public = provider(public_key=PULSAR_PUBLIC_KEY, public_algorithm="ES384")
    assert await role(by_public, PULSAR_ES384.encode()) == "me"


async def test_secret_public_key_and_key_set_work_together() -> None:
    keys = {"keys": [jwk("RS256", 1, kid="new"), jwk("ES256", kid="ec")]}
    verifier = provider(
        secret_key=Secret(data_url(SECRET)),
        public_key=data_url(der("RS256")),
        key_set=Secret(data_url(json.dumps(keys).encode())),
    )
    assert await role(verifier, token({"sub": "a"})) == "a"
    assert await role(verifier, token({"sub": "b"}, "RS256", kid="unknown")) == "b"
    assert await role(verifier, token({"sub": "c"}, "RS256", private_key("RS256", 1), kid="new"))
    assert await role(verifier, token({"sub": "d"}, "ES256", kid="ec")) == "d"
    # The kid chooses the key: no other verifies it, and its key accepts its `alg` only.
    assert "signature" in await refusal(verifier, token({"sub": "b"}, "RS256", kid="new"))
    assert "no key" in await refusal(
        verifier, token({"sub": "c"}, "RS512", private_key("RS256", 1), kid="new")
    )
    assert "no key" in await refusal(verifier, token({"sub": "d"}, "ES256"))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({}, "names no role"),
        ({"sub": ""}, "names no role"),
        ({"sub": 7}, "names no role"),
        ({"sub": []}, "names no role"),
        ({"sub": [7, "me"]}, "names no role"),
        ({"sub": {"a": "me"}}, "names no role"),
    ],
)
async def test_a_token_without_a_role_is_refused(claims: dict[str, Any], reason: str) -> None:
    compact = json_token(claims)
    assert reason in await refusal(provider(), compact)


def json_token(claims: object, secret: bytes = SECRET) -> bytes:
    """A token with any payload: PyJWT's `encode` checks some claims."""
    import jwt

    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jwt.PyJWS().encode(payload, secret, "HS256").encode()


async def test_the_role_comes_from_the_configured_claim() -> None:
    verifier = provider(role_claim="groups")
    assert await role(verifier, json_token({"groups": ["a", "b"], "sub": "me"})) == "a"
    assert await role(verifier, json_token({"groups": "a"})) == "a"
    assert "groups" in await refusal(verifier, json_token({"sub": "me"}))


async def test_the_audience_is_checked_if_configured() -> None:
    verifier = provider(audience_claim="aud", audience="pulsar")
    assert await role(verifier, json_token({"sub": "me", "aud": ["x", "pulsar"]})) == "me"
    assert await role(verifier, json_token({"sub": "me", "aud": "pulsar"})) == "me"
    wrong: list[dict[str, Any]] = [{}, {"aud": "x"}, {"aud": []}, {"aud": ["x", 1]}, {"aud": {}}]
    for claims in wrong:
        assert "aud" in await refusal(verifier, json_token({"sub": "me"} | claims))
    assert await role(provider(), json_token({"sub": "me", "aud": "x"})) == "me"
    with pytest.raises(ConfigurationError, match="tokenAudience"):
        provider(audience_claim="aud")


async def test_times_are_checked_with_the_allowed_skew() -> None:
    clock = FakeClock()
    now_s = clock.now_ms() // 1000
    strict, lenient = provider(clock), provider(clock, clock_skew_s=10)
    cases: list[tuple[dict[str, Any], bool, bool]] = [
        ({"exp": now_s + 2}, True, True),
        ({"exp": now_s + 1.5}, True, True),
        ({"exp": now_s - 8}, False, True),
        ({"exp": now_s - 11}, False, False),
        ({"nbf": now_s - 1}, True, True),
        ({"nbf": now_s + 9}, False, True),
        ({"nbf": now_s + 12}, False, False),
    ]
    for claims, accepted, accepted_with_skew in cases:
        compact = json_token({"sub": "me"} | claims)
        for verifier, good in ((strict, accepted), (lenient, accepted_with_skew)):
            if good:
                assert await role(verifier, compact) == "me"
            else:
                assert await refusal(verifier, compact)


async def test_the_identity_expires_with_the_token_and_the_skew() -> None:
    clock = FakeClock()
    expires_s = clock.now_ms() // 1000 + 60
    compact = Secret(json_token({"sub": "me", "exp": expires_s}))
    verifier = provider(clock, clock_skew_s=5)
    identity = await verifier.authenticate(compact, PEER)
    assert identity == Identity("me", "token", (expires_s + 5) * 1000)
    clock.elapsed_s += 65.001
    assert "expired" in await refusal(verifier, compact.reveal())
    never = await verifier.authenticate(Secret(json_token({"sub": "me"})), PEER)
    assert never.expires_at_ms is None


@pytest.mark.parametrize("value", ["1", True, [], {}, 1e300])
@pytest.mark.parametrize("claim", ["exp", "nbf"])
async def test_a_time_that_is_none_is_refused(claim: str, value: object) -> None:
    assert claim in await refusal(provider(), json_token({"sub": "me", claim: value}))


@pytest.mark.parametrize("payload", [b'{"exp":NaN}', b'{"exp":Infinity}', b"[]", b"", b"{" * 9000])
async def test_a_payload_that_is_no_json_object_is_refused(payload: bytes) -> None:
    assert "payload" in await refusal(provider(), json_token(payload))


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}])
async def test_a_header_that_requires_an_extension_is_refused(header: dict[str, Any]) -> None:
    start = base64.urlsafe_b64encode(json.dumps({"alg": "HS256"} | header).encode()).rstrip(b"=")
    assert "extension" in await refusal(provider(), start + b".e30.AAAA")


async def test_a_token_has_a_bound() -> None:
    compact = json_token({"sub": "x" * TOKEN_BYTES_MAX})
    assert "larger" in await refusal(provider(), compact)


def test_the_token_of_a_request_is_that_of_the_bearer_scheme() -> None:
    verifier = provider()
    assert verifier.presented({"authorization": "bEARER  abc "}, PEER) == Secret("abc")
    for other in ({}, {"authorization": "Basic abc"}, {"authorization": "Bearer"}):
        assert verifier.presented(other, PEER) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"secret_key": Secret(data_url(SECRET[:31]))}, "31 bytes"),
        ({"secret_key": Secret(data_url(pem("RS256")))}, "not a secret key"),
        ({"public_key": data_url(SECRET)}, "not a public key"),
        ({"public_key": data_url(private_der("RS256"))}, "not a public key"),
        ({"public_key": data_url(der("ES256"))}, "not for RS256"),
        ({"key_set": Secret(data_url(b"{}"))}, "not a JSON web key set"),
        ({"key_set": Secret(data_url(b'{"keys":[]}'))}, "1 to 100 keys"),
        ({"key_set": Secret(data_url(b'{"keys":[{"kid":"a"}]}'))}, "alg None"),
        ({"key_set": Secret(data_url(b'{"keys":[{"alg":"RS256"}]}'))}, "no kid"),
        ({"key_set": Secret(data_url(b'{"keys":[{"kid":"a","alg":"none"}]}'))}, "alg 'none'"),
        ({"secret_key": None}, "needs a key"),
    ],
)
def test_unusable_keys_stop_the_start(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        provider(**config)
    assert reason in str(refused.value)


def test_a_private_key_in_a_key_set_stops_the_start() -> None:
    key = jwk("ES256", kid="a", d="AAAA")
    with pytest.raises(ConfigurationError, match="private key"):
        provider(key_set=Secret(data_url(json.dumps({"keys": [key]}).encode())))


def test_a_key_of_another_kind_than_its_alg_stops_the_start() -> None:
    key = jwk("ES256", kid="a", alg="RS256")
    with pytest.raises(ConfigurationError, match="not a usable JSON web key for RS256"):
        provider(key_set=Secret(data_url(json.dumps({"keys": [key]}).encode())))


async def test_a_changed_key_takes_effect_without_a_restart(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "secret.key"
    path.write_bytes(SECRET)
    verifier = provider(clock, secret_key=Secret(f"file://{path}"))
    old, new = json_token({"sub": "a"}), json_token({"sub": "b"}, SECRET[::-1])
    assert await role(verifier, old) == "a"

    replacement = tmp_path / "new.key"
    replacement.write_bytes(SECRET[::-1])
    os.replace(replacement, path)
    clock.elapsed_s += RELOAD_CHECK_S
    assert await role(verifier, new) == "b"
    assert "signature" in await refusal(verifier, old)


async def test_a_remembered_token_still_expires() -> None:
    clock = FakeClock()
    verifier = provider(clock)
    compact = json_token({"sub": "me", "exp": clock.now_ms() // 1000 + 60})
    assert verifier.remembered(Secret(compact)) is None
    assert await role(verifier, compact) == "me"
    assert await role(verifier, compact) == "me"
    assert verifier.remembered(Secret(compact)) == await verifier.authenticate(
        Secret(compact), PEER
    )
    assert verifier.remembered(Secret(compact[:-1])) is None
    clock.elapsed_s += 60.001
    assert "expired" in await refusal(verifier, compact)
    with pytest.raises(AuthenticationFailed, match="expired"):
        verifier.remembered(Secret(compact))


async def test_no_token_is_remembered_while_a_check_of_its_keys_is_due(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "secret.key"
    path.write_bytes(SECRET)
    verifier = provider(clock, secret_key=Secret(f"file://{path}"))
    compact = json_token({"sub": "a"})
    assert await role(verifier, compact) == "a"
    assert verifier.remembered(Secret(compact)) is not None
    clock.elapsed_s += RELOAD_CHECK_S
    assert verifier.remembered(Secret(compact)) is None
    assert await role(verifier, compact) == "a"
    assert verifier.remembered(Secret(compact)) is not None


def test_a_token_is_verified_once_for_each_key_ring() -> None:
    tokens, verified, first, second = (
        VerifiedTokens(),
        cast("list[bytes]", []),
        KeyRing(()),
        KeyRing(()),
    )

    def verify(compact: Secret, _: KeyRing) -> VerifiedToken:
        verified.append(compact.reveal())
        if compact.reveal().startswith(b"bad"):
            raise AuthenticationFailed("bad")
        return VerifiedToken({"sub": compact.reveal_text()}, VerificationKey(b"", ()), None, "")

    def present(compact: bytes, ring: KeyRing) -> int:
        before = len(verified)
        found = tokens.verified(Secret(compact), ring, verify)
        assert found.claims == {"sub": compact.decode()}
        return len(verified) - before

    assert [present(b"a", first), present(b"a", first), present(b"b", first)] == [1, 0, 1]
    assert [present(b"a", second), present(b"a", first)] == [1, 1]
    for _ in range(2):
        with pytest.raises(AuthenticationFailed):
            present(b"bad", first)
    assert (verified.count(b"bad"), len(tokens)) == (2, 1)
    large = b"l" * (VERIFIED_BYTES_MAX + 1)
    assert [present(large, first), present(large, first), len(tokens)] == [1, 1, 1]
    for number in range(VERIFIED_MAX):
        assert present(b"%d" % number, first) == 1
    assert len(tokens) == VERIFIED_MAX
    assert [present(b"0", first), present(b"a", first)] == [0, 1]


async def test_an_unusable_new_key_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "secret.key"
    path.write_bytes(SECRET)
    verifier = provider(clock, secret_key=Secret(str(path)))
    for damage in (lambda: path.write_bytes(b"short"), path.unlink):
        damage()
        clock.elapsed_s += RELOAD_CHECK_S
        assert await role(verifier, json_token({"sub": "a"})) == "a"
    path.write_bytes(SECRET[::-1])
    clock.elapsed_s += RELOAD_CHECK_S
    assert await role(verifier, json_token({"sub": "b"}, SECRET[::-1])) == "b"


VALID = token({"sub": "me"})
HEADERS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "jwk", "jku", "x5u", "crit", "b64", "zip"]),
    st.sampled_from(["none", "None", "HS256", "RS256", "ES256", "", None, 0, [], {}, True, "k"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["sub", "exp", "nbf", "aud", "iss"]), inner, max_size=4)
    ),
    max_leaves=10,
)


def encoded(value: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


@st.composite
def garbage(draw: st.DrawFn) -> bytes:
    """Any bytes, a damaged token, or three parts that are well-formed but not signed."""
    kind = draw(st.sampled_from(["bytes", "damaged", "forged"]))
    if kind == "bytes":
        return draw(st.binary(max_size=100))
    if kind == "damaged":
        at = draw(st.integers(0, len(VALID) - 1))
        replacement = draw(st.binary(max_size=3))
        return VALID[:at] + replacement + VALID[at + draw(st.integers(1, 3)) :]
    parts = encoded(draw(HEADERS)), encoded(draw(JSON))
    return b".".join((*parts, draw(st.sampled_from([b"", b"AAAA", VALID.rpartition(b".")[2]]))))


KEYS = {"keys": [jwk("RS256", kid="k"), jwk("ES256", kid="")]}
KEYS["keys"][1]["kid"] = "ec"
ALL_KEYS: dict[str, Any] = {
    "secret_key": Secret(data_url(SECRET)),
    "public_key": data_url(der("RS256")),
    "key_set": Secret(data_url(json.dumps(KEYS).encode())),
}


@settings(max_examples=500)
@given(compact=garbage())
def test_garbage_is_authentication_failed_and_nothing_else(compact: bytes) -> None:
    if compact == VALID:
        return
    verifier = provider(**ALL_KEYS)
    with pytest.raises(AuthenticationFailed) as refused:
        asyncio.run(verifier.authenticate(Secret(compact), PEER))
    if len(compact) > 60:
        assert compact.decode("latin-1") not in str(refused.value)


@given(payload=JSON)
def test_a_signed_payload_is_a_role_or_authentication_failed(payload: object) -> None:
    verifier = provider()
    try:
        found = asyncio.run(verifier.authenticate(Secret(json_token(payload)), PEER))
    except AuthenticationFailed:
        return
    assert isinstance(payload, dict)
    assert payload["sub"] == found.role or payload["sub"][0] == found.role

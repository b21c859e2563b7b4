"""What a process presents to others: the forms of Pulsar's clients, files, and OAuth 2.0."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority
from tests.support.issuer import METADATA, TOKEN, Issuer, issuer, server_context
from tests.support.stepped_loop import FakeClock

from magnetar.security.credentials import Credentials
from magnetar.security.credentials.oauth2 import OAuth2Credentials
from magnetar.security.credentials.oauth2_parameters import oauth2_config
from magnetar.security.credentials.plugins import CredentialsUnavailable
from magnetar.security.errors import ConfigurationError
from magnetar.security.secret import Secret

JAVA = "org.apache.pulsar.client.impl.auth."
METHOD = "X-Pulsar-Auth-Method-Name"


@pytest.mark.parametrize("plugin", ["token", JAVA + "AuthenticationToken"])
@pytest.mark.parametrize("parameters", ["token:a.b.c", "a.b.c", '{"token": "a.b.c"}', " a.b.c\n"])
async def test_a_token_is_presented(plugin: str, parameters: str) -> None:
    credentials = Credentials.parse(plugin, Secret(parameters))
    assert await credentials.method_and_data() == ("token", Secret("a.b.c"))
    assert await credentials.headers() == {METHOD: "token", "Authorization": "Bearer a.b.c"}


@pytest.mark.parametrize("form", ["file://{}", '{{"file": "{}"}}', '{{"token": "file://{}"}}'])
async def test_the_file_of_a_token_is_read_on_each_use(tmp_path: Path, form: str) -> None:
    path = tmp_path / "token"
    credentials = Credentials.parse("token", form.format(path))
    with pytest.raises(CredentialsUnavailable, match="cannot read"):
        await credentials.method_and_data()
    for text in ("first", "second"):
        write(path, text + "\n")
        assert await credentials.method_and_data() == ("token", Secret(text))
    write(path, "\n")
    with pytest.raises(CredentialsUnavailable, match="no token"):
        await credentials.headers()
    write(path, "a\nX-Injected: 1")
    with pytest.raises(CredentialsUnavailable, match="no HTTP header"):
        await credentials.headers()


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize(
    "parameters",
    [
        '{"userId": "me", "password": "secret"}',
        '{"username": "me", "password": "secret", "method": "basic"}',
        "me:secret",
    ],
)
async def test_a_password_is_presented(parameters: str) -> None:
    credentials = Credentials.parse("basic", parameters)
    assert await credentials.method_and_data() == ("basic", Secret("me:secret"))
    encoded = base64.b64encode(b"me:secret").decode()
    assert await credentials.headers() == {METHOD: "basic", "Authorization": f"Basic {encoded}"}


@pytest.mark.parametrize(
    "parameters", ["tlsCertFile:/a,tlsKeyFile:/b", '{"tlsCertFile":"/a","tlsKeyFile":"/b"}']
)
async def test_a_certificate_is_presented_by_the_connection(parameters: str) -> None:
    credentials = Credentials.parse(JAVA + "AuthenticationTls", parameters)
    assert credentials.certificate_files == ("/a", "/b")
    assert await credentials.method_and_data() == ("tls", Secret(b""))
    assert await credentials.headers() == {METHOD: "tls"}


async def test_the_certificate_may_be_that_of_other_settings() -> None:
    credentials = Credentials.parse("tls", "")
    assert credentials.uses_certificate
    assert credentials.certificate_files is None


async def test_no_plugin_presents_nothing() -> None:
    credentials = Credentials.parse("", "")
    assert await credentials.method_and_data() == ("none", Secret(b""))
    assert await credentials.headers() == {}
    assert credentials.certificate_files is None


@pytest.mark.parametrize(
    ("plugin", "parameters", "reason"),
    [
        ("sasl", "{}", "sasl is not supported; supported: token"),
        ("token", "", "no token"),
        ("token", "token:", "no token"),
        ("token", "{}", "either token or file"),
        ("token", '{"token": "secret", "file": "secret"}', "either token or file"),
        ("token", '{"tokens": "secret"}', "have tokens"),
        ("token", "{secret", "not a JSON object"),
        ("token", '{"token": 7}', "not a JSON object"),
        ("basic", "secret", "JSON or user:password"),
        ("basic", '{"userId": "me"}', "need userId"),
        ("basic", '{"userId": "a", "username": "b", "password": "secret"}', "need userId"),
        ("basic", '{"userId": "me", "password": "secret", "method": "x"}', "other than basic"),
        ("basic", "me:secret:secret", "colon"),
        ("tls", "tlsCertFile:/a", "need tlsCertFile"),
        ("tls", "secret", "key:value"),
        ("oauth2", "{}", "issuerUrl"),
        ("oauth2", '{"issuerUrl": "https://a", "issuer_url": "https://a"}', "both spellings"),
        ("oauth2", '{"issuerUrl": "https://a"}', "needs privateKey"),
        ("oauth2", '{"issuerUrl": "ftp://a", "privateKey": "secret"}', "not an https URL"),
        ("oauth2", '{"issuerUrl": "https://a", "password": "secret"}', "have password"),
    ],
)
def test_unusable_parameters_are_refused_without_showing_them(
    plugin: str, parameters: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Credentials.parse(plugin, parameters)
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value).replace("client_secret", "")


KEY_FILE = {"type": "client_credentials", "client_id": "id", "client_secret": "s3cret"}


@pytest.fixture
def web() -> Iterator[Issuer]:
    with issuer() as state:
        state.answers[TOKEN] = (200, {"access_token": "t1", "expires_in": 100})
        yield state


def oauth2(web: Issuer, clock: FakeClock | None = None, **changes: str) -> OAuth2Credentials:
    values = {"issuerUrl": web.url, "clientId": "id", "clientSecret": "s3cret"} | changes
    values = {name: value for name, value in values.items() if value}
    return OAuth2Credentials(oauth2_config(values), clock or FakeClock())


async def test_a_token_is_obtained_by_client_credentials(web: Issuer, tmp_path: Path) -> None:
    key_file = tmp_path / "key.json"
    write(key_file, json.dumps(KEY_FILE))
    data = (
        "data:application/json;base64," + base64.b64encode(json.dumps(KEY_FILE).encode()).decode()
    )
    for parameters in (
        {"issuerUrl": web.url, "privateKey": f"file://{key_file}", "audience": "a", "scope": "s"},
        {"issuer_url": web.url, "private_key": data, "audience": "a", "scope": "s"},
        {"issuer_url": web.url, "client_id": "id", "client_secret": "s3cret", "audience": "a",
         "scope": "s", "type": "client_credentials"},
    ):  # fmt: skip
        web.received.clear()
        plugin = JAVA + "oauth2.AuthenticationOAuth2"
        credentials = Credentials.parse(plugin, json.dumps(parameters))
        assert await credentials.method_and_data() == ("token", Secret("t1"))
        assert await credentials.headers() == {METHOD: "token", "Authorization": "Bearer t1"}
        assert web.paths() == [METADATA, TOKEN]
        assert web.received[1].form == {
            "grant_type": "client_credentials", "client_id": "id", "client_secret": "s3cret",
            "audience": "a", "scope": "s",
        }  # fmt: skip
        await credentials.close()


async def test_a_token_is_replaced_before_it_expires(web: Issuer) -> None:
    clock = FakeClock()
    credentials = oauth2(web, clock, earlyTokenRefreshPercent="0.5")
    assert await credentials.method_and_data() == ("token", Secret("t1"))
    web.answers[TOKEN] = (200, {"access_token": "t2", "expires_in": 100})
    clock.elapsed_s += 49
    assert await credentials.method_and_data() == ("token", Secret("t1"))
    clock.elapsed_s += 1
    results = await asyncio.gather(*(credentials.method_and_data() for _ in range(10)))
    assert set(results) == {("token", Secret("t2"))}
    assert web.paths() == [METADATA, TOKEN] * 2


async def test_a_valid_token_outlives_a_failed_renewal(web: Issuer) -> None:
    clock = FakeClock()
    credentials = oauth2(web, clock)
    await credentials.method_and_data()
    web.answers[TOKEN] = (503, b"")
    clock.elapsed_s += 90
    assert await credentials.method_and_data() == ("token", Secret("t1"))
    clock.elapsed_s += 10
    with pytest.raises(CredentialsUnavailable, match="status 503"):
        await credentials.method_and_data()


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (METADATA, (404, {}), "answered 404"),
        (METADATA, (200, {}), "no token_endpoint"),
        (METADATA, (200, b"<html>"), "no token_endpoint"),
        (METADATA, (200, {"token_endpoint": "file:///x"}), "not https"),
        (
            TOKEN,
            (401, {"error": "invalid_client", "error_description": "no"}),
            "invalid_client: no",
        ),
        (TOKEN, (200, {"access_token": ""}), "no token"),
        (TOKEN, (200, b"t1"), "no token"),
        (TOKEN, (302, {}), "status 302"),
    ],
)
async def test_without_a_token_credentials_are_unavailable(
    web: Issuer, path: str, answer: Any, reason: str
) -> None:
    web.answers[path] = answer
    with pytest.raises(CredentialsUnavailable) as unavailable:
        await oauth2(web).headers()
    assert reason in str(unavailable.value)
    assert "s3cret" not in str(unavailable.value)
    assert "/elsewhere" not in web.paths()


async def test_a_server_that_is_absent_makes_credentials_unavailable() -> None:
    with pytest.raises(CredentialsUnavailable, match="no answer"):
        await oauth2(Issuer(url="http://127.0.0.1:1")).headers()


async def test_a_wrong_key_file_is_named(web: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    write(path, '{"client_id": "id"}')
    credentials = oauth2(web, clientId="", clientSecret="", privateKey=str(path))
    with pytest.raises(CredentialsUnavailable, match=f"{path} is not JSON with client_id"):
        await credentials.headers()
    write(path, json.dumps(KEY_FILE))
    assert await credentials.method_and_data() == ("token", Secret("t1"))


async def test_a_client_certificate_replaces_the_secret(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("client")
    with issuer(server_context(authority)) as web:
        web.answers[TOKEN] = (200, {"access_token": "t1"})
        credentials = oauth2(
            web, clientSecret="", tokenEndpointAuthMethod="tls_client_auth",
            tlsCertFile=str(own.cert), tlsKeyFile=str(own.key),
            trustCertsFilePath=str(authority.file), connectTimeout="PT10S", readTimeout="PT1M",
        )  # fmt: skip
        assert await credentials.method_and_data() == ("token", Secret("t1"))
        assert web.received[1].form == {"grant_type": "client_credentials", "client_id": "id"}
        # Read again for each token, and verified against the trusted CA only.
        untrusted = oauth2(web)
        with pytest.raises(CredentialsUnavailable, match="certificate"):
            await untrusted.headers()


async def test_an_https_issuer_cannot_name_a_plain_endpoint(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with issuer(server_context(authority)) as web:
        web.answers[METADATA] = (200, {"token_endpoint": "http://127.0.0.1/token"})
        with pytest.raises(CredentialsUnavailable, match="not https"):
            await oauth2(web, trustCertsFilePath=str(authority.file)).headers()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"type": "password"}, "client_credentials"),
        ({"privateKey": "data:,x"}, "excludes"),
        ({"tokenEndpointAuthMethod": "private_key_jwt"}, "client_secret_post or"),
        ({"tokenEndpointAuthMethod": "tls_client_auth"}, "needs tlsCertFile"),
        ({"tlsCertFile": "/a"}, "need tls_client_auth"),
        ({"wellKnownMetadataPath": "/x"}, "/.well-known/"),
        ({"earlyTokenRefreshPercent": "0"}, "above 0"),
        ({"earlyTokenRefreshPercent": "x"}, "above 0"),
        ({"connectTimeout": "10"}, "connectTimeout"),
        ({"readTimeout": "PT11M"}, "readTimeout"),
    ],
)
def test_unusable_parameters_of_oauth2_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        oauth2(Issuer(url="https://a"), **changes)

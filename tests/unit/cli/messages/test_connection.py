"""The options of connections: flags, variables, and secrets that no flag may have."""

import argparse
from pathlib import Path

import pytest

from magnetar.cli.messages.connection import add_flags, arguments
from magnetar.cli.messages.errors import UsageFailed
from magnetar.client.auth import Basic, ClientCertificate, OAuth2
from magnetar.client.errors import InvalidConfiguration
from magnetar.client.options import ClientKeywords

FIXED = {"MAGNETAR_TOKEN": "t"}
OAUTH2 = '{"issuer_url": "https://issuer", "private_key": "data:,{}"}'


def resolved(*flags: str, **environment: str) -> tuple[str, ClientKeywords]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return arguments(parser.parse_args(flags), environment)


def test_without_options_it_is_this_machine() -> None:
    assert resolved() == ("pulsar://localhost:6650", {})


def test_a_flag_wins_over_a_variable() -> None:
    assert resolved(MAGNETAR_URL="pulsar://a:1")[0] == "pulsar://a:1"
    assert resolved(PULSAR_SERVICE_URL="pulsar://b:1")[0] == "pulsar://b:1"
    url, options = resolved(
        *("-u", "pulsar://c:1/?listener=x", "--listener", "y", "--operation-timeout", "5"),
        MAGNETAR_URL="pulsar://a:1",
        MAGNETAR_CONNECT_TIMEOUT_S="2",
    )
    assert url == "pulsar://c:1"
    assert options == {"listener": "y", "operation_timeout_s": 5.0, "connect_timeout_s": 2.0}


async def test_credentials_of_flags_replace_all_others(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3\n")
    with_user = ("--user", "anna", "--password-file", str(secret))
    for environment in (
        {"MAGNETAR_TOKEN": "t"},
        {"MAGNETAR_TOKEN_FILE": "/nowhere"},
        {"MAGNETAR_URL": "pulsar://a:1?token=t"},
        {"MAGNETAR_CERTIFICATE": "c", "MAGNETAR_KEY": "k"},
    ):
        auth = resolved(*with_user, **environment)[1]["auth"]
        assert isinstance(auth, Basic)
        assert await auth.credentials() == b"anna:s3"
    token = resolved("--token-file", str(secret), **FIXED)[1]["auth"]
    assert await token.credentials() == b"s3"
    token = resolved(MAGNETAR_TOKEN_FILE=str(secret))[1]["auth"]
    assert await token.credentials() == b"s3"


def test_other_ways_to_authenticate(tmp_path: Path) -> None:
    parameters = tmp_path / "oauth2.json"
    parameters.write_text(OAUTH2)
    assert isinstance(resolved("--oauth2-file", str(parameters))[1]["auth"], OAuth2)
    options = resolved("--cert-file", "c", "--key-file", "k", "--ca-file", "ca", "--insecure")[1]
    assert isinstance(options["auth"], ClientCertificate)
    assert options["tls"].trust_certificates_file == "ca"
    assert options["tls"].allow_insecure


@pytest.mark.parametrize(
    "query", ["token=eyJ", "token=token:eyJ", "password=p", f"oauth2={OAUTH2}"]
)
def test_secrets_in_arguments_are_refused(query: str) -> None:
    with pytest.raises(UsageFailed, match="other users of this machine can see"):
        resolved("-u", f"pulsar://a:1?{query}")
    assert resolved("-u", "pulsar://a:1?token=file:/t")[1]["auth"] is not None


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--user", "a"), "go together"),
        (("--password-file", "f"), "go together"),
        (("--cert-file", "f"), "go together"),
        (("--user", "a", "--password-file", "/nowhere/p"), "--password-file"),
        (("--oauth2-file", "/nowhere/o"), "--oauth2-file"),
    ],
)
def test_half_of_a_credential_is_refused(flags: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageFailed, match=reason):
        resolved(*flags)


def test_two_ways_to_authenticate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="one way to authenticate"):
        resolved("--token-file", "t", "--cert-file", "c", "--key-file", "k")

"""`magnetar token`: flags and output of Pulsar's tool."""

import base64
import io
import stat
from pathlib import Path

import pytest
from tests.support.tokens import EC, HMAC, RSA

from magnetar.cli.main import main
from magnetar.cli.token import java_text

SECRET = b"0123456789abcdef0123456789abcdef"
PULSARS = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.usv2VTIM61FH9N7BnowmnOApUQ1MetEoR6QM1DCceHQ"
"""Made by `pulsar tokens create -sk FILE -s me` of 4.2.4 with SECRET."""


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.key"
    path.write_bytes(SECRET)
    return path


def output(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["token", *map(str, arguments)]) == 0
    return capfd.readouterr().out


def error(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["token", *map(str, arguments)]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    return captured.err


def test_the_token_is_the_same_as_pulsars(
    secret_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encoded = base64.b64encode(SECRET).decode()
    for key in (secret_file, f"file://{secret_file}", f"data:;base64,{encoded}", encoded):
        for flag in ("-sk", "--secret-key"):
            assert output(capfd, "create", flag, key, "-s", "me") == PULSARS + "\n"


def test_show_prints_header_and_claims(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = '{"alg":"HS256"}\n---\n{"sub":"me"}\n'
    path = tmp_path / "token"
    path.write_text(PULSARS + "\n")
    assert output(capfd, "show", PULSARS) == shown
    assert output(capfd, "show", "-f", path) == shown
    monkeypatch.setattr("sys.stdin", io.StringIO(PULSARS + "\n"))
    assert output(capfd, "show", "--stdin") == shown
    monkeypatch.setenv("TOKEN", PULSARS)
    assert output(capfd, "show") == shown
    monkeypatch.delenv("TOKEN")
    assert "Token needs to be either passed as an argument" in error(capfd, "show")
    assert "three parts" in error(capfd, "show", "aa")


def test_validate_prints_the_claims(secret_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert output(capfd, "validate", "-sk", secret_file, PULSARS) == "{sub=me}\n"
    expired = output(capfd, "create", "-sk", secret_file, "-s", "me", "--expiry-time=-1h").strip()
    assert "expired" in error(capfd, "validate", "-sk", secret_file, expired)
    future = output(capfd, "create", "-sk", secret_file, "-s", "me", "-e", "1y").strip()
    assert output(capfd, "validate", "-sk", secret_file, future).startswith("{sub=me, exp=")
    assert "signature" in error(
        capfd, "validate", "-sk", base64.b64encode(SECRET[::-1]).decode(), PULSARS
    )
    assert "Either" in error(capfd, "validate", PULSARS)


@pytest.mark.parametrize("algorithm", HMAC)
def test_a_new_secret_key_signs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], algorithm: str
) -> None:
    path = tmp_path / "secret.key"
    output(capfd, "create-secret-key", "-a", algorithm, "-o", path)
    assert len(path.read_bytes()) == int(algorithm[2:]) // 8
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made = output(capfd, "create", "-sk", path, "-s", "me").strip()
    assert algorithm in output(capfd, "show", made)
    assert output(capfd, "validate", "-sk", path, made) == "{sub=me}\n"
    before = path.read_bytes()
    assert "exists" in error(capfd, "create-secret-key", "-o", path)
    assert path.read_bytes() == before


def test_a_secret_key_may_go_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["token", "create-secret-key"]) == 0
    assert len(capfdbinary.readouterr().out) == 32
    assert main(["token", "create-secret-key", "-b"]) == 0
    assert len(base64.b64decode(capfdbinary.readouterr().out, validate=True)) == 32


@pytest.mark.parametrize("algorithm", [*sorted(set(RSA) - {"RS512", "PS512"}), *EC])
def test_a_new_key_pair_signs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], algorithm: str
) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    output(
        capfd, "create-key-pair", "-a", algorithm,
        "--output-private-key", private, "--output-public-key", public,
    )  # fmt: skip
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    for flags in ((), ("-a", algorithm)):
        made = output(capfd, "create", "-pk", private, "-s", "me", "-hs", "kid=a", *flags).strip()
        expected = algorithm if flags else algorithm.replace("PS", "RS")
        shown = output(capfd, "show", made)
        assert f'"alg":"{expected}"' in shown
        assert '"kid":"a"' in shown
        assert output(capfd, "validate", "-pk", public, "-a", algorithm, made) == "{sub=me}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["create", "-s", "me"], "Either --secret-key or --private-key"),
        (["create", "-s", "me", "-sk", "a", "-pk", "b"], "Only one of"),
        (["create", "-s", "me", "-sk", "c2hvcnQ="], "5 bytes"),
        (["create", "-s", "me", "-sk", "$", "-e", "5x"], "5x"),
        (["create", "-s", "me", "-sk", "$", "-e", ""], "whole number"),
        (["create", "-s", "me", "-sk", "$", "-a", "RS256"], "does not support RS256"),
        (["create", "-s", "me", "-sk", "$", "-hs", "alg=none"], "alg cannot be set"),
        (["create", "-s", "me", "-sk", "$", "-hs", "kid"], "key=value"),
        (["create", "-s", "me", "-pk", "$"], "PKCS #8"),
        (["create-secret-key", "-a", "RS256"], "no secret keys"),
        (["create-key-pair", "-a", "HS256", "--output-private-key", "a",
          "--output-public-key", "b"], "no key pairs"),
    ],
)  # fmt: skip
def test_unusable_arguments_are_refused(
    arguments: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    key = base64.b64encode(SECRET).decode()
    told = error(capfd, *(key if argument == "$" else argument for argument in arguments))
    assert reason in told
    assert key not in told


def test_claims_are_printed_as_java_prints_them() -> None:
    value = {"sub": "me", "aud": ["a", "b"], "ok": True, "n": None, "x": {"y": 1}}
    assert java_text(value) == "{sub=me, aud=[a, b], ok=true, n=null, x={y=1}}"

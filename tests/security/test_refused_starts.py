"""A process with unusable authentication does not start; it prints one line that says why."""

import subprocess
import sys
from pathlib import Path

import pytest

START_S = 60.0


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", "authenticationProviders"),
        ("authenticationProviders=sasl", "has sasl, which Magnetar does not support"),
        ("authenticationProviders=com.example.Mine", "com.example.Mine"),
        ("authenticationProviders=token", "needs a key"),
        ("authenticationProviders=token\ntokenSecretKey=c2VjcmV0", "6 bytes"),
        ("authenticationProviders=basic", "basicAuthConf"),
        ("authenticationProviders=openid", "openIDAllowedTokenIssuers"),
        ("authenticationProviders=token\ntokenSettingPrefix=my", "tokenSettingPrefix"),
    ],
)
def test_unusable_authentication_stops_the_start(tmp_path: Path, lines: str, reason: str) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(f"authenticationEnabled=true\n{lines}\n")
    done = subprocess.run(
        [
            sys.executable, "-m", "magnetar.cli.main", "standalone", "--config", str(config),
            "--port", "0", "--http-port", "0", "--data-dir", str(tmp_path / "data"),
        ],
        capture_output=True,
        text=True,
        timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert reason in line
    assert "c2VjcmV0" not in line

"""Dex, an OpenID Connect provider, as a process on loopback.

It keeps its keys in memory, so each start is a rotation of keys.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
from tests.interop.support import wait_until
from tests.support.server_process import held_port

CLIENT: Final = "shop"
SECRET: Final = "the secret of shop"  # noqa: S105 - of a test
GROUP: Final = "shops"
EMAIL: Final = "admin@example.com"
PASSWORD: Final = "password"  # noqa: S105 - of a test
TOKEN_LIFE_S: Final = 4
HTTP_TIMEOUT_S: Final = 20.0


class Dex:
    """One provider with a confidential client and a user."""

    def __init__(self, program: Path, directory: Path, password_hash: str) -> None:
        self._program = program
        self._directory = directory
        self._holder = held_port("127.0.0.1")
        address = f"127.0.0.1:{self._holder.getsockname()[1]}"
        self.url = f"http://{address}/dex"
        self._process: subprocess.Popen[bytes] | None = None
        configuration = {
            "issuer": self.url,
            "storage": {"type": "memory"},
            "web": {"http": address},
            "oauth2": {
                "grantTypes": ["client_credentials", "password"],
                "passwordConnector": "local",
            },
            "expiry": {"idTokens": f"{TOKEN_LIFE_S}s"},
            "enablePasswordDB": True,
            "staticClients": [
                {
                    "id": CLIENT,
                    "secret": SECRET,
                    "name": CLIENT,
                    "clientCredentialsClaims": {"groups": [GROUP]},
                }
            ],
            "staticPasswords": [
                {"email": EMAIL, "hash": password_hash, "username": "admin", "userID": "1"}
            ],
        }
        # JSON is YAML.
        (directory / "dex.yaml").write_text(json.dumps(configuration))

    def start(self) -> None:
        """Returns when it answers."""
        with (self._directory / "dex.log").open("ab") as log:
            command = [str(self._program), "serve", str(self._directory / "dex.yaml")]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        wait_until(self._answers, what="Dex")

    def stop(self) -> None:
        """Ends the process; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(HTTP_TIMEOUT_S)

    def close(self) -> None:
        """Ends the process and gives up its port."""
        self.stop()
        self._holder.close()

    def token(self, **form: str) -> str:
        """Returns an access token: of the client, or what the form asks for."""
        data = {
            "grant_type": "client_credentials",
            "client_id": CLIENT,
            "client_secret": SECRET,
            "scope": "openid groups",
        } | form
        answer = httpx.post(f"{self.url}/token", data=data, trust_env=False, timeout=HTTP_TIMEOUT_S)
        document: dict[str, Any] = answer.raise_for_status().json()
        return str(document["access_token"])

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "dex.log").read_text()[-4000:]
        try:
            url = f"{self.url}/.well-known/openid-configuration"
            return httpx.get(url, trust_env=False, timeout=HTTP_TIMEOUT_S).is_success
        except httpx.TransportError:
            return False

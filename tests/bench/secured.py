"""The same security for both servers of a comparison, and for their clients.

`Security.create(directory, tls=…, token=…)` issues a CA, a server certificate, a secret key and the
token of a superuser. Both servers read the same files under Pulsar's setting names: TLS adds a port
and leaves the plain one open, the token switches authentication and authorization on.
"""

import secrets
from dataclasses import dataclass, field
from pathlib import Path

import jwt
from tests.support.certificates import Authority

ROLE = "bench"
TOKEN_KEY_BYTES = 32
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
CLIENT_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


@dataclass(frozen=True)
class Security:
    """What servers and clients are configured with; empty: open servers."""

    settings: dict[str, str] = field(default_factory=dict)
    """Of the servers, by Pulsar's names."""
    ca: Path | None = None
    token: Path | None = None

    @staticmethod
    def create(directory: Path, *, tls: bool, token: bool) -> "Security":
        """Creates keys and certificates below `directory`."""
        settings: dict[str, str] = {}
        ca_file = token_file = None
        if tls:
            authority = Authority(directory)
            files = authority.issue("server")
            ca_file = authority.file
            settings |= {
                "tlsCertificateFilePath": str(files.cert),
                "tlsKeyFilePath": str(files.key),
                "tlsTrustCertsFilePath": str(ca_file),
            }
        if token:
            key_file, token_file = directory / "token.key", directory / "token"
            key_file.write_bytes(secrets.token_bytes(TOKEN_KEY_BYTES))
            _create_token(key_file, token_file)
            settings |= {
                "authenticationEnabled": "true",
                "authorizationEnabled": "true",
                "authenticationProviders": PROVIDER,
                "tokenSecretKey": f"file://{key_file}",
                "superUserRoles": ROLE,
                "brokerClientAuthenticationPlugin": CLIENT_PLUGIN,
                "brokerClientAuthenticationParameters": f"file://{token_file}",
            }
        return Security(settings, ca_file, token_file)

    def service_url(self, port: int, port_tls: int) -> str:
        """The URL of the binary port that clients use."""
        return (
            f"pulsar://127.0.0.1:{port}"
            if self.ca is None
            else f"pulsar+ssl://127.0.0.1:{port_tls}"
        )

    def http_headers(self) -> dict[str, str]:
        """The credentials of an admin request."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token.read_text()}"}

    def environment(self) -> dict[str, str]:
        """What `tests/bench/clients/connection.py` reads."""
        environment = {}
        if self.ca is not None:
            environment["BENCH_CA_FILE"] = str(self.ca)
        if self.token is not None:
            environment["BENCH_TOKEN_FILE"] = str(self.token)
        return environment

    def perf_flags(self, port_tls: int) -> list[str]:
        """The flags of every pulsar-perf command."""
        flags: list[str] = []
        if self.ca is not None:
            flags += ["--service-url", f"pulsar+ssl://127.0.0.1:{port_tls}"]
            flags += ["--trust-cert-file", str(self.ca)]
        if self.token is not None:
            flags += ["--auth-plugin", CLIENT_PLUGIN, "--auth-params", f"file://{self.token}"]
        return flags


OPEN = Security()


def _create_token(key_file: Path, token_file: Path) -> None:
    token_file.write_text(jwt.encode({"sub": ROLE}, key_file.read_bytes(), algorithm="HS256"))

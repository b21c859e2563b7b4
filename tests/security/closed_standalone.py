"""A `magnetar standalone` process that is closed in all ways, and credentials for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import httpx
import jwt
import pulsar
from tests.support.certificates import Authority
from tests.support.server_process import ServerProcess, held_port

ADMIN = "admin"
TENANT_NAMESPACE = "public/default"
PASSWORD = "the-password-of-user"  # noqa: S105 - of a test
_PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
OPERATION_TIMEOUT_S = 10


class ClosedStandalone:
    """Token, Basic and TLS, authorization, on plain and TLS ports; ADMIN is the super user."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.secret = b"a secret key of more than sixty-four bytes, so that all HS algorithms fit."
        self.ca = Authority(root)
        own = self.ca.issue("server")
        key, users = root / "secret.key", root / ".htpasswd"
        key.write_bytes(self.secret)
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        users.write_text(f"user:{hashed}\n")
        self._tls_port, self._https_port = held_port("127.0.0.1"), held_port("127.0.0.1")
        keys = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": ",".join(
                _PROVIDERS + name for name in ("Token", "Basic", "Tls")
            ),
            "tokenSecretKey": f"file://{key}",
            "basicAuthConf": f"file://{users}",
            "superUserRoles": ADMIN,
            "brokerServicePortTls": str(self._tls_port.getsockname()[1]),
            "webServicePortTls": str(self._https_port.getsockname()[1]),
            "tlsCertificateFilePath": str(own.cert),
            "tlsKeyFilePath": str(own.key),
            "tlsTrustCertsFilePath": str(self.ca.file),
            **settings,
        }
        environment = {f"PULSAR_PREFIX_{key}": value for key, value in keys.items()}
        self.process = ServerProcess(root, environment=environment)
        self._log = str(root / "client.log")
        self._clients: list[pulsar.Client] = []

    @property
    def tls_url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self._tls_port.getsockname()[1]}"

    @property
    def https_url(self) -> str:
        return f"https://127.0.0.1:{self._https_port.getsockname()[1]}"

    def token(self, role: str, lives_s: float | None = None, **claims: object) -> str:
        """Returns a token of the role that expires after this many seconds."""
        if lives_s is not None:
            claims["exp"] = time.time() + lives_s
        return jwt.encode({"sub": role, **claims}, self.secret, "HS256")

    def client(
        self, authentication: pulsar.Authentication | None, **options: object
    ) -> pulsar.Client:
        """Returns an official client on the plain port, or with `tls=True` on the TLS port."""
        tls = options.pop("tls", False)
        url = options.pop("url", self.tls_url if tls else self.process.service_url)
        if tls:
            options["tls_trust_certs_file_path"] = str(self.ca.file)
        options.setdefault("operation_timeout_seconds", OPERATION_TIMEOUT_S)
        client = pulsar.Client(
            url,
            authentication=authentication,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, self._log),
            **options,
        )
        self._clients.append(client)
        return client

    def by_token(self, role: str, lives_s: float | None = None) -> pulsar.Client:
        return self.client(pulsar.AuthenticationToken(self.token(role, lives_s)))

    def by_supplier(self, supplier: Callable[[], str]) -> pulsar.Client:
        return self.client(pulsar.AuthenticationToken(supplier))

    def admin(self, role: str = ADMIN) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token(role)}"}
        return httpx.Client(
            base_url=self.process.http_url, headers=headers, trust_env=False, timeout=30
        )

    def grant(self, role: str, *actions: str) -> None:
        """Grants the role these actions on the namespace; without actions, revokes all."""
        path = f"/admin/v2/namespaces/{TENANT_NAMESPACE}/permissions/{role}"
        with self.admin() as http:
            if actions:
                http.post(path, json=list(actions)).raise_for_status()
            else:
                http.delete(path).raise_for_status()

    def close(self) -> None:
        for client in self._clients:
            try:
                client.close()
            except pulsar.PulsarException:
                continue
        self._tls_port.close()
        self._https_port.close()


@contextmanager
def closed_standalone(root: Path, **settings: str) -> Iterator[ClosedStandalone]:
    closed = ClosedStandalone(root, **settings)
    with closed.process:
        try:
            yield closed
        finally:
            closed.close()

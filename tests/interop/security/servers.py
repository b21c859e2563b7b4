"""The servers of the scenarios: ours, and a real Pulsar for the golden answers."""

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pulsar
from tests.interop.support import wait_until
from tests.support.server_process import ServerProcess, held_port

from .campaign import HTTP_TIMEOUT_S, admin
from .clients import Server
from .credentials import ADMIN, HOST, LEAVER, Realm, basic_header

READY_WITHIN_S: Final = 120.0


class OurServer:
    """A `magnetar standalone`, which reloads changed files."""

    def __init__(self, realm: Realm, process: ServerProcess, address: Server) -> None:
        self._realm = realm
        self._process = process
        self.address = address
        self._token = realm.token(ADMIN)

    def apply_revocation(self) -> None:
        """Waits until the server has reloaded all changed files; does not restart it."""
        plain = f"http://{HOST}:{self.address.http_port}/admin/v2/brokers/ready"
        for headers in ({"Authorization": f"Bearer {self._token}"}, basic_header(LEAVER)):
            wait_until(partial(_refused, plain, headers), what="a revocation")
        # The server loads its certificate and the CA of clients together.
        self.apply_certificate(HOST)

    def apply_certificate(self, host: str) -> None:
        """Waits until both TLS ports present the certificate."""
        for port in (self.address.tls_port, self.address.https_port):
            wait_until(partial(self._presents, port, host), what="the new certificate")

    def _presents(self, port: int, host: str) -> bool:
        context = self._realm.ca.client_context()
        with socket.create_connection((HOST, port), HTTP_TIMEOUT_S) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=host):
                    return True
            except ssl.SSLCertVerificationError:
                return False


@contextmanager
def ours(realm: Realm, directory: Path) -> Iterator[OurServer]:
    """Runs our server."""
    holders = [held_port("127.0.0.1") for _ in range(2)]
    tls_port, https_port = (holder.getsockname()[1] for holder in holders)
    settings = realm.settings() | {
        "brokerServicePortTls": str(tls_port),
        "webServicePortTls": str(https_port),
        "advertisedAddress": HOST,
    }
    environment = {f"PULSAR_PREFIX_{name}": value for name, value in settings.items()}
    try:
        with ServerProcess(directory, environment=environment) as process:
            address = Server(process.port, tls_port, process.http_port, https_port)
            yield OurServer(realm, process, address)
    finally:
        for holder in holders:
            holder.close()


class RealPulsar:
    """A Pulsar standalone that the scripts of a folder start and stop.

    `start.sh DATA_DIR` takes ports and settings from its environment; `stop.sh DATA_DIR` ends it.
    """

    def __init__(self, scripts: Path, realm: Realm, directory: Path, address: Server) -> None:
        self._scripts = scripts
        self._realm = realm
        self._directory = directory
        self.address = address

    def start(self) -> None:
        token_file = self._directory / "broker.token"
        token_file.write_text(self._realm.token(ADMIN))
        plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        settings = self._realm.settings() | {
            "brokerClientAuthenticationPlugin": plugin,
            "brokerClientAuthenticationParameters": f"file://{token_file}",
        }
        address = self.address
        environment = {
            "PULSAR_PORT": str(address.port),
            "HTTP_PORT": str(address.http_port),
            "PULSAR_TLS_PORT": str(address.tls_port),
            "HTTP_TLS_PORT": str(address.https_port),
            "ADVERTISED": HOST,
            "READY_PATH": "/metrics/",
            "HEAP": "-Xmx1g -XX:MaxDirectMemorySize=1g",
            "WAIT_S": str(int(READY_WITHIN_S)),
            "EXTRA_CONF": " ".join(f"{name}={value}" for name, value in settings.items()),
        }
        self._run("start.sh", environment)
        with admin(address, self._realm) as http:
            namespace = "/admin/v2/namespaces/public/default"
            wait_until(
                lambda: http.get(namespace).status_code == httpx.codes.OK,
                what="the namespace of a new Pulsar",
                within_s=READY_WITHIN_S,
            )
        # Its first topic takes longer than the clients of the scenarios wait.
        own = pulsar.AuthenticationToken(self._realm.token(ADMIN))
        client = pulsar.Client(f"pulsar://{HOST}:{address.port}", authentication=own)
        client.create_producer("persistent://public/default/first").send(b"hello")
        client.close()

    def stop(self) -> None:
        self._run("stop.sh", {})

    def apply_certificate(self, host: str) -> None:
        """Starts it again."""
        self.apply_revocation()

    def apply_revocation(self) -> None:
        """Starts it again: Pulsar reads keys and users when it starts."""
        self.stop()
        self.start()

    def _run(self, script: str, environment: dict[str, str]) -> None:
        subprocess.run(
            [str(self._scripts / script), str(self._directory)],
            env=os.environ | environment,
            check=True,
            timeout=2 * READY_WITHIN_S,
        )


@contextmanager
def real_pulsar(scripts: Path, realm: Realm, directory: Path) -> Iterator[RealPulsar]:
    """Runs a real Pulsar."""
    holders = [held_port("127.0.0.1") for _ in range(4)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    server = RealPulsar(scripts, realm, directory, Server(*ports))
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _refused(url: str, headers: dict[str, str]) -> bool:
    answer = httpx.get(url, headers=headers, trust_env=False, timeout=HTTP_TIMEOUT_S)
    return answer.status_code == httpx.codes.UNAUTHORIZED

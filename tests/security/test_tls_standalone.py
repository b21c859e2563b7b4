"""A standalone with TLS ports only, under the official Python client and httpx."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest
from tests.support.certificates import Authority, Files
from tests.support.server_process import ServerProcess

WITHIN_S = 30.0
PLAIN_PORTS_OFF = ("--port", "none", "--http-port", "none")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


class Secured:
    """The server, and what its clients need to trust it."""

    def __init__(self, server: ServerProcess, ca: Authority, files: Files) -> None:
        self.server, self.ca, self.files = server, ca, files
        ready = json.loads((server.data_dir / "standalone.json").read_text())
        self.service_url, self.http_url = ready["service_url"], ready["http_url"]

    @property
    def port(self) -> int:
        return urlsplit(self.service_url).port or 0

    def client(self, **options: object) -> pulsar.Client:
        """The official client, which verifies names if `tls_validate_hostname` is set."""
        chosen = {"tls_trust_certs_file_path": str(self.ca.file), "tls_validate_hostname": True}
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self.server.log) + ".client")
        return pulsar.Client(
            self.service_url, operation_timeout_seconds=5, logger=logger, **(chosen | options)
        )

    def admin(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.ca.file))
        return httpx.Client(base_url=self.http_url, verify=context, trust_env=False, timeout=30)

    def served(self) -> bytes:
        """The certificate that a new connection gets, whatever names it has."""
        context = self.ca.client_context()
        context.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", self.port), WITHIN_S) as plain,
            context.wrap_socket(plain) as tls,
        ):
            der = tls.getpeercert(binary_form=True)
            assert der
            return der


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    ca = Authority(tmp_path)
    files = ca.issue("server")
    settings = {
        "PULSAR_PREFIX_brokerServicePortTls": "0",
        "PULSAR_PREFIX_webServicePortTls": "0",
        "PULSAR_PREFIX_tlsCertificateFilePath": str(files.cert),
        "PULSAR_PREFIX_tlsKeyFilePath": str(files.key),
        "MAGNETAR_TLS_REFRESH_S": "0.05",
    }
    with ServerProcess(tmp_path, *PLAIN_PORTS_OFF, environment=settings) as server:
        yield Secured(server, ca, files)


def test_messages_and_admin_requests_by_tls_only(secured: Secured) -> None:
    assert secured.service_url.startswith("pulsar+ssl://")
    assert secured.http_url.startswith("https://")
    client = secured.client()
    consumer = client.subscribe("secret", "s")
    producer = client.create_producer("secret")
    payloads = [bytes([n]) * (1 << n) for n in range(21)]
    for payload in payloads:
        producer.send(payload)
    assert [consumer.receive(10_000).data() for _ in payloads] == payloads
    with secured.admin() as admin:
        assert admin.get("/admin/v2/tenants").json() == ["public", "pulsar"]
        document = admin.get("/lookup/v2/topic/persistent/public/default/secret").json()
        assert document["brokerUrl"] == document["httpUrl"] == ""
        assert document["brokerUrlTls"] == document["brokerUrlSsl"] == secured.service_url
        assert document["httpUrlTls"] == secured.http_url
        cluster = admin.get("/admin/v2/clusters/standalone").json()
        assert cluster["brokerServiceUrlTls"] == secured.service_url
        assert cluster["serviceUrlTls"] == secured.http_url
        assert 'magnetar_certificate_expiry_seconds{tls="server"}' in admin.get("/metrics").text
    client.close()


def test_official_clients_refuse_another_authority_and_another_name(
    secured: Secured, tmp_path: Path
) -> None:
    stranger = secured.client(tls_trust_certs_file_path=str(Authority(tmp_path, "other").file))
    with pytest.raises(pulsar.PulsarException):
        stranger.create_producer("secret")
    stranger.close()
    secured.files.replace_by(secured.ca.issue("server", ("broker.example",)))
    await_served(secured, secured.files.der)
    misled = secured.client()
    with pytest.raises(pulsar.PulsarException):
        misled.create_producer("secret")
    misled.close()
    trusting = secured.client(tls_validate_hostname=False)
    trusting.create_producer("secret").send(b"x")
    trusting.close()


def test_certificates_change_under_load_and_broken_ones_change_nothing(secured: Secured) -> None:
    client = secured.client()
    producer = client.create_producer("secret", send_timeout_millis=20_000)
    sent: list[int] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            producer.send(b"x" * 100)
            sent.append(1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with secured.admin() as admin:
            address = producer_address(admin)
            for _ in range(5):
                newer = secured.ca.issue("server")
                secured.files.replace_by(newer)
                await_served(secured, newer.der)
            current = secured.files.der
            secured.files.key.write_text("broken")
            wait_for_metric(admin, 'magnetar_certificate_reload_failing{tls="server"} 1')
            assert secured.served() == current
            count = len(sent)
            while len(sent) < count + 20:
                time.sleep(0.01)
            # The client kept its connection: it saw none of this.
            assert producer_address(admin) == address
    finally:
        stop.set()
        sender.join(WITHIN_S)
    assert not sender.is_alive()
    client.close()


def producer_address(admin: httpx.Client) -> str:
    """The address and port of the only producer."""
    (publisher,) = admin.get("/admin/v2/persistent/public/default/secret/stats").json()[
        "publishers"
    ]
    return str(publisher["address"])


def await_served(secured: Secured, der: bytes) -> None:
    deadline = time.monotonic() + WITHIN_S
    while secured.served() != der:
        assert time.monotonic() < deadline, "the new certificate is not served"
        time.sleep(0.02)


def wait_for_metric(admin: httpx.Client, line: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while line not in admin.get("/metrics").text.splitlines():
        assert time.monotonic() < deadline, f"no metric {line}"
        time.sleep(0.05)

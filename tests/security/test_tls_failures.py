"""Failed handshakes: a line of the log once for each cause and network, and a metric by reason."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from tests.security.tls_rig import WITHIN_S, echo_server
from tests.support.certificates import Authority

from magnetar.core.addresses import network_of
from magnetar.core.causes import Causes
from magnetar.security.tls import pacer as pacing
from magnetar.security.tls import transport
from magnetar.security.tls.pacer import OTHER_REASONS, REASONS_MAX, HandshakeStats, pacer
from magnetar.security.tls.process import ProcessTls
from magnetar.security.tls.reload import open_server_tls
from magnetar.security.tls.settings import ServerTlsConfig
from magnetar.security.tls.transport import LEFT

GARBAGE = b"\x16\x03\x01\x00\x05abcde"
SSL3_HELLO = b"\x16\x02\x00\x00\x05abcde"


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(autouse=True)
def nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_CAUSES", Causes())


async def refused(ca: Authority, *openings: bytes) -> None:
    """Connects without TLS, once for each of these first bytes; each connection is closed."""
    files = ca.issue("server")
    config = ServerTlsConfig(cert_file=files.cert, key_file=files.key)
    async with echo_server(open_server_tls(config)) as server:
        for first in openings:
            reader, writer = await server.client(None)
            writer.write(first)
            async with asyncio.timeout(WITHIN_S):
                await reader.read()


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and "TLS handshake failed" in record.getMessage()
    ]


async def test_a_cause_is_logged_once_for_a_network(
    ca: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    before = pacer().stats.failed
    await refused(ca, GARBAGE, GARBAGE, GARBAGE, b"GET / HTTP/1.1\r\n\r\n")
    assert pacer().stats.failed == before + 4
    assert len(lines(caplog, logging.INFO)) == 2
    assert len(lines(caplog, logging.DEBUG)) == 2
    reasons = pacer().stats.reasons
    assert reasons["http request"] == 1
    assert sum(reasons.values()) == 4


async def test_another_network_is_logged_as_well(
    ca: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    addresses = iter(["10.1.1.1", "10.1.1.200", "10.1.2.1", "2001:db8::1", "2001:db8::ffff"])
    monkeypatch.setattr(transport, "_address", lambda _: next(addresses))
    await refused(ca, *[GARBAGE] * 5)
    assert len(lines(caplog, logging.INFO)) == 3


async def test_the_metric_has_the_reason(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "HANDSHAKE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(pacing, "CHECK_S", 0.02)
    files = ca.issue("server")
    process = ProcessTls()
    process.server(ServerTlsConfig(cert_file=files.cert, key_file=files.key))
    await refused(ca, b"GET / HTTP/1.1\r\n\r\n", b"\x16")
    text = "".join(process.families())
    await process.stop()
    family = 'magnetar_tls_handshake_failures_total{reason="'
    assert f'{family}http request"}} 1' in text
    assert f'{family}no handshake within 0.05 s"}} 1' in text


async def test_a_client_that_leaves_without_an_alert_counts(ca: Authority) -> None:
    """asyncio's client closes so if it does not accept the certificate."""
    files = ca.issue("server", ("broker.example",))
    config = ServerTlsConfig(cert_file=files.cert, key_file=files.key)
    async with echo_server(open_server_tls(config)) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.client(ca.client_context())
        async with asyncio.timeout(WITHIN_S):
            while not pacer().stats.reasons:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
        assert pacer().stats.reasons == {LEFT: 1}


def test_the_reasons_are_bounded() -> None:
    stats = HandshakeStats()
    for number in range(2 * REASONS_MAX):
        stats.failed_for(f"reason {number}")
    assert len(stats.reasons) == REASONS_MAX + 1
    assert stats.reasons[OTHER_REASONS] == REASONS_MAX


@pytest.mark.parametrize(
    ("address", "bits", "network"),
    [
        ("10.1.2.3", 24, "10.1.2.0/24"),
        ("10.1.2.3", 32, "10.1.2.3"),
        ("::ffff:10.1.2.3", 24, "10.1.2.0/24"),
        ("2001:db8:0:1:2:3:4:5", 24, "2001:db8:0:1::/64"),
        ("fe80::1%eth0", 32, "fe80::/64"),
        ("unknown", 24, "unknown"),
        ("", 24, ""),
    ],
)
def test_the_network_of_an_address(address: str, bits: int, network: str) -> None:
    assert network_of(address, bits) == network

"""A cluster whose bookies and brokers authenticate each other by certificates."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest
from tests.support.certificates import Authority, Files
from tests.support.cluster_processes import bookies, brokers, get_json, metric, running_cluster

from magnetar.bookie.api import BookieError, BookieIdentity, BookieUnavailable, NotPermitted
from magnetar.bookie.net.client import RemoteBookie
from magnetar.cluster import autorecovery_process
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.security.tls.reload import open_client_tls
from magnetar.security.tls.settings import ClientTlsConfig
from magnetar.settings.field import compose
from magnetar.settings.member import AutorecoveryProcessSettings

pytestmark = pytest.mark.timeout(240)

TOPICS = 6


class Closed:
    """The cluster, and the certificates of its members."""

    def __init__(self, cluster: LocalCluster, ca: Authority, own: Files) -> None:
        self.cluster, self.ca, self.own = cluster, ca, own
        urls = get_json(brokers(cluster)[0].http_url + "/status")
        self.service_url = str(urls["service_url_tls"])
        self.http_url_tls = str(urls["http_url_tls"])


@pytest.fixture(scope="module")
def closed(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Closed]:
    directory = tmp_path_factory.mktemp("closed")
    ca = Authority(directory)
    own = ca.issue("member")
    before = request.session.testsfailed
    with running_cluster(
        directory,
        bookies=2,
        brokers=2,
        failed=lambda: request.session.testsfailed > before,
        port_tls=0,
        http_port_tls=0,
        tls_cert_file=own.cert,
        tls_key_file=own.key,
        tls_trust_file=ca.file,
        tls_require_client_cert=True,
        bookie_tls="required",
        bookie_member_roles="member",
        bookie_reader_roles="job,analyst",
        bookkeeper_tls=True,
        broker_client_tls=True,
        broker_client_cert_file=own.cert,
        broker_client_key_file=own.key,
    ) as cluster:
        yield Closed(cluster, ca, own)


def test_messages_go_through_brokers_and_bookies(closed: Closed) -> None:
    client = pulsar.Client(
        closed.service_url,
        authentication=pulsar.AuthenticationTLS(str(closed.own.cert), str(closed.own.key)),
        tls_trust_certs_file_path=str(closed.ca.file),
        tls_validate_hostname=True,
        logger=pulsar.FileLogger(
            pulsar.LoggerLevel.Warn, str(closed.cluster.directory / "client.log")
        ),
    )
    for number in range(TOPICS):
        topic = f"closed-{number}"
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        for size in (0, 1, 100, 70_000, 1_000_000):
            producer.send(b"x" * size)
            message = consumer.receive(20_000)
            assert len(message.data()) == size
            consumer.acknowledge(message)
    client.close()
    for bookie in bookies(closed.cluster):
        assert metric(bookie, "magnetar_tls_handshakes_total") > 0


def test_one_broker_sums_over_the_others_by_tls(closed: Closed) -> None:
    context = closed.ca.client_context(closed.own)
    with httpx.Client(verify=context, trust_env=False, timeout=30) as http:
        url = f"{closed.http_url_tls}/admin/v2/persistent/public/default/spread"
        assert http.put(f"{url}/partitions", json=8).status_code == 204
        stats = http.get(f"{url}/partitioned-stats?perPartition=true")
        assert stats.status_code == 200, stats.text
        assert len(stats.json()["partitions"]) == 8
        owners = set()
        for number in range(8):
            part = f"{closed.http_url_tls}/lookup/v2/topic/persistent/public/default/spread"
            answer = http.get(f"{part}-partition-{number}", follow_redirects=True)
            document = answer.json()
            assert urlsplit(document["httpUrlTls"]).scheme == "https"
            owners.add(document["brokerUrlTls"])
            # A request by TLS is redirected to TLS.
            redirect = http.get(f"{url}-partition-{number}/stats")
            if redirect.status_code == 307:
                assert redirect.headers["location"].startswith("https://")
        assert len(owners) == 2


@contextlib.asynccontextmanager
async def remote(closed: Closed, config: ClientTlsConfig | None) -> AsyncIterator[RemoteBookie]:
    bookie = bookies(closed.cluster)[0]
    identity = BookieIdentity(bookie.name, get_json(bookie.http_url + "/status")["incarnation"])
    tls = None if config is None else open_client_tls(config)
    client = RemoteBookie(identity, bookie.host, bookie.ports["port"], tls=tls)
    try:
        yield client
    finally:
        await client.close()


async def test_a_bookie_serves_members_of_the_cluster(closed: Closed) -> None:
    config = ClientTlsConfig(
        trust_file=closed.ca.file, cert_file=closed.own.cert, key_file=closed.own.key
    )
    async with remote(closed, config) as bookie:
        await bookie.ping()


@pytest.mark.parametrize("which", ["plain", "no certificate", "another authority's"])
async def test_a_bookie_serves_nobody_else(closed: Closed, tmp_path: Path, which: str) -> None:
    stranger = Authority(tmp_path, "other").issue("member")
    config = {
        "plain": None,
        "no certificate": ClientTlsConfig(trust_file=closed.ca.file),
        "another authority's": ClientTlsConfig(
            trust_file=closed.ca.file, cert_file=stranger.cert, key_file=stranger.key
        ),
    }[which]
    async with remote(closed, config) as bookie:
        with pytest.raises(BookieUnavailable):
            await bookie.ping()
        assert not bookie.connected


def as_role(closed: Closed, role: str) -> ClientTlsConfig:
    own = closed.ca.issue(role)
    return ClientTlsConfig(trust_file=closed.ca.file, cert_file=own.cert, key_file=own.key)


async def test_a_reader_of_ledgers_changes_nothing(closed: Closed) -> None:
    async with remote(closed, as_role(closed, "job")) as bookie:
        end = await bookie.ledger_end(1, fence=False)
        assert await bookie.read_entries(1, 0, 0, bytes_max=1 << 20)
        assert (await bookie.prove_entries(1, 0, 0, count_max=1)).proofs
        changes = [
            bookie.ledger_end(1, fence=True),
            bookie.read_entries(1, 0, 0, bytes_max=1 << 20, fence=True),
            bookie.delete_ledger(1),
            bookie.list_ledgers(),
        ]
        for change in changes:
            with pytest.raises(NotPermitted, match="may only read"):
                await change
        added: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
        bookie.add_entries(
            1, [1 << 40], [b"forged"], last_add_confirmed=-1, on_added=added.set_result
        )
        async with asyncio.timeout(30):
            assert "may only read" in str(await added)
        assert await bookie.ledger_end(1, fence=False) == end


async def test_a_certificate_of_the_authority_is_not_enough(closed: Closed) -> None:
    async with remote(closed, as_role(closed, "someone")) as bookie:
        with pytest.raises(BookieUnavailable, match="does not serve the client's role"):
            await bookie.ping()


def test_the_tls_ports_of_brokers_refuse_a_client_without_a_certificate(closed: Closed) -> None:
    context = closed.ca.client_context()
    with (
        httpx.Client(verify=context, trust_env=False, timeout=30) as http,
        pytest.raises((httpx.HTTPError, ssl.SSLError)),
    ):
        http.get(f"{closed.http_url_tls}/admin/v2/tenants")


async def test_health_and_metrics_by_tls_ask_for_no_certificate(closed: Closed) -> None:
    """Probes and Prometheus have none."""
    metadata_url, own = closed.cluster.metadata_url, closed.own
    name = get_json(bookies(closed.cluster)[0].http_url + "/status")["cluster"]
    settings = compose(
        AutorecoveryProcessSettings,
        cluster_name=name,
        metadata_url=metadata_url,
        http_port=0,
        http_tls=True,
        tls_cert_file=own.cert,
        tls_key_file=own.key,
        tls_trust_file=closed.ca.file,
        tls_require_client_cert=True,
        bookkeeper_tls=True,
    )
    node = await autorecovery_process.start(settings)
    try:
        assert node.http_url.startswith("https://127.0.0.1:")
        context = closed.ca.client_context()
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=30) as http:
            assert (await http.get(f"{node.http_url}/healthz")).status_code == 200
            metrics = (await http.get(f"{node.http_url}/metrics")).text
            with pytest.raises(httpx.HTTPError):
                await http.get(node.http_url.replace("https", "http") + "/healthz")
        assert 'magnetar_certificate_expiry_seconds{tls="health"}' in metrics
    finally:
        await node.stop()

"""A cluster of real processes under an official client: what clients feel when members go and come.

One cluster for all of this module: every test leaves it as it found it. Times are printed and not
judged: a machine that is busy with other things may take any.
"""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pulsar
import pytest
from tests.support.cluster_processes import (
    bookies,
    brokers,
    get,
    get_json,
    metric,
    running_cluster,
    wait_for,
)
from tests.support.stream import Stream

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Member, Role
from magnetar.cluster.local.status import Observer

TOPICS = 6
SESSION_MS = 5_000
"""So long that a machine that stops for some seconds costs no member its lease."""
HTTP_TIMEOUT_S = 30.0

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalCluster]:
    before = request.session.testsfailed
    with running_cluster(
        tmp_path_factory.mktemp("cluster"),
        bookies=3,
        brokers=2,
        failed=lambda: request.session.testsfailed > before,
        session_timeout_ms=SESSION_MS,
        ledger_rollover_min_minutes=0,
        ledger_entries_max=200,
        retention_minutes=-1,
        retention_size_mb=-1,
        open_ledger_grace_ms=1_000,
    ) as cluster:
        yield cluster


def connect(cluster: LocalCluster, url: str = "") -> pulsar.Client:
    """Its many lines about lost connections go to a file, of which failures show the end."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(cluster.directory / "client.log"))
    return pulsar.Client(url or cluster.service_url, logger=logger)


@contextmanager
def client_of(cluster: LocalCluster, url: str = "") -> Iterator[pulsar.Client]:
    with closing(connect(cluster, url)) as client:
        yield client


def topics_of(name: str, count: int = TOPICS) -> list[str]:
    return [f"persistent://public/default/{name}-{number}" for number in range(count)]


def owners(cluster: LocalCluster, topics: list[str]) -> dict[str, str]:
    """Which broker serves each topic, by its service URL."""
    found: dict[str, str] = {}

    def answered() -> bool:
        for topic in topics:
            if ready := [broker for broker in brokers(cluster) if cluster.is_ready(broker)]:
                path = "/lookup/v2/topic/" + topic.replace("://", "/")
                status, body = get(ready[0].http_url + path)
                if status == 200:
                    found[topic] = json.loads(body)["brokerUrl"]
        return len(found) == len(topics)

    wait_for(answered, "who serves each topic")
    return found


def back(cluster: LocalCluster, name: str) -> None:
    """Starts a member again, and waits until the brokers know it."""
    cluster.start(name)
    cluster.wait_ready([name])
    member = cluster.member(name)
    kind, known = (
        ("bookies", name)
        if member.role is Role.BOOKIE
        else ("brokers", f"{member.host}:{member.ports['http']}")
    )
    urls = [broker.http_url + "/status" for broker in brokers(cluster)]
    wait_for(lambda: all(known in get_json(url)[kind] for url in urls), f"{name} is known")


def says(member: Member, path: str, answer: tuple[int, str]) -> None:
    """Waits for it: a member whose lease was in doubt for a moment comes back by itself."""
    wait_for(lambda: get(member.http_url + path) == answer, f"{member.name}: {answer}")


def shows(member: Member, name: str, value: float) -> None:
    wait_for(lambda: metric(member, name) == value, f"{member.name}: {name} is {value}")


def test_every_member_tells_of_its_health(cluster: LocalCluster) -> None:
    for member in (*bookies(cluster), *brokers(cluster)):
        assert get(member.http_url + "/healthz") == (200, "ok\n")
        says(member, "/readyz", (200, "ok\n"))
        assert get_json(member.http_url + "/status")["role"] == member.role
        assert metric(member, "process_resident_memory_bytes") > 1 << 20
    for bookie in bookies(cluster):
        assert metric(bookie, "bookie_SERVER_STATUS") == 1
    for broker in brokers(cluster):
        shows(broker, "magnetar_bookies_writable", 3)
        shows(broker, "magnetar_ledgers_degraded", 0)
    wait_for(
        lambda: {row.state for row in Observer(cluster).observe()} == {"ready"}, "all are ready"
    )


def test_two_brokers_that_start_at_once_make_the_defaults_once(cluster: LocalCluster) -> None:
    for url in cluster.http_urls:
        assert get_json(url + "/admin/v2/clusters") == ["test"]
        assert get_json(url + "/admin/v2/tenants") == ["public", "pulsar"]
        assert get_json(url + "/admin/v2/namespaces/public") == ["public/default"]


def test_any_broker_leads_to_every_topic(cluster: LocalCluster) -> None:
    topics = topics_of("through")
    for broker in brokers(cluster):
        with client_of(cluster, f"pulsar://{broker.address}") as client:
            for topic in topics:
                with closing(client.create_producer(topic)) as producer:
                    producer.send(broker.name.encode())
    assert len(set(owners(cluster, topics).values())) == 2, "all topics on one of two brokers"
    with client_of(cluster) as client:
        for topic in topics:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            got = [reader.read_next(30_000).data() for _ in brokers(cluster)]
            assert got == [broker.name.encode() for broker in brokers(cluster)]


def test_entries_are_on_two_bookies(cluster: LocalCluster) -> None:
    before = sum(metric(bookie, "bookkeeper_server_ADD_ENTRY_count") for bookie in bookies(cluster))
    with client_of(cluster) as client, closing(client.create_producer(topics_of("x")[0])) as p:
        for _ in range(20):
            p.send(b"x")
    after = sum(metric(bookie, "bookkeeper_server_ADD_ENTRY_count") for bookie in bookies(cluster))
    assert after - before >= 40


def test_a_killed_broker_is_replaced(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = topics_of("broker-killed")
    with client_of(cluster) as client:
        with Stream(client, topics) as stream:
            stream.wait_receipts(50)
            victim = brokers(cluster)[0]
            killed = time.monotonic()
            cluster.kill(victim.name)
            with client_of(cluster) as other:
                mine = [t for t, url in owners(cluster, topics).items() if url]
                with closing(other.create_producer(mine[0])) as producer:
                    producer.send(b"-1")
            new_s = time.monotonic() - killed
            stream.wait_receipts(20)
            pause_s = stream.longest_pause_s(killed)
            back(cluster, victim.name)
            stream.wait_receipts(20)
        stream.check()
    with capsys.disabled():
        print(f"\nkill -9 of a broker: new producer {new_s:.2f} s, connected {pause_s:.2f} s")


def test_a_broker_that_is_stopped_hands_its_topics_over(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = topics_of("broker-stopped")
    with client_of(cluster) as client:
        with Stream(client, topics) as stream:
            stream.wait_receipts(50)
            victim = brokers(cluster)[1]
            begun = time.monotonic()
            cluster.stop(victim.name)
            stopped_s = time.monotonic() - begun
            stream.wait_receipts(20)
            pause_s = stream.longest_pause_s(begun)
            back(cluster, victim.name)
        stream.check()
    with capsys.disabled():
        print(f"\nstop of a broker: took {stopped_s:.2f} s, longest pause {pause_s:.2f} s")
    assert "did not drain" not in cluster.log_tail(victim.name)


def test_a_killed_bookie_stalls_nobody(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = topics_of("bookie-killed")
    with client_of(cluster) as client:
        with Stream(client, topics) as stream:
            stream.wait_receipts(50)
            victim = bookies(cluster)[0]
            killed = time.monotonic()
            cluster.kill(victim.name)
            stream.wait_receipts(300)
            pause_s = stream.longest_pause_s(killed)
            back(cluster, victim.name)
            stream.wait_receipts(20)
        stream.check()
    with capsys.disabled():
        print(f"\nkill -9 of a bookie: longest pause {pause_s:.2f} s")


def test_etcd_may_be_away_for_a_while(cluster: LocalCluster) -> None:
    topics = topics_of("etcd")
    with client_of(cluster) as client:
        with Stream(client, topics) as stream:
            stream.wait_receipts(50)
            (etcd,) = cluster.named(Role.ETCD)
            cluster.kill(etcd.name)
            time.sleep(SESSION_MS / 2000)
            cluster.start(etcd.name)
            cluster.wait_ready([etcd.name])
            stream.wait_receipts(50)
        stream.check()


def test_a_bookie_that_is_added_takes_new_ledgers(cluster: LocalCluster) -> None:
    topics = topics_of("bookie-added")
    with client_of(cluster) as client:
        with Stream(client, topics) as stream:
            stream.wait_receipts(50)
            added = cluster.add(Role.BOOKIE)
            cluster.wait_ready([added.name])
            wait_for(
                lambda: metric(added, "bookkeeper_server_ADD_ENTRY_count") > 50,
                "the new bookie takes entries",
            )
        stream.check()
    cluster.remove(added.name, report=print)
    assert added.name not in [member.name for member in cluster.members]


def test_the_admin_rest_shows_brokers_and_bookies(cluster: LocalCluster) -> None:
    wanted = sorted(f"{b.host}:{b.ports['http']}" for b in brokers(cluster))
    url = cluster.http_urls[0] + "/admin/v2/brokers"
    wait_for(lambda: sorted(get_json(url)) == wanted, "all brokers are listed")
    path = "/admin/v2/persistent/public/default"
    with httpx.Client(
        base_url=cluster.http_urls[1], follow_redirects=True, timeout=HTTP_TIMEOUT_S
    ) as http:
        assert http.put(f"{path}/by-rest").status_code == 204
    assert "persistent://public/default/by-rest" in get_json(cluster.http_urls[0] + path)

"""Clients of a cluster of two brokers and two bookies, while its topics move.

The short form streams with each client while every bundle of its namespace moves to and fro. The
long form runs all scenarios of all clients against the cluster, as the other modules do against a
standalone.
"""

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx
import pulsar
import pytest
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.cluster.local.cluster import LocalCluster

from .go_programs import prepare_go
from .java_programs import JAVA_TEST_TIMEOUT_S, JavaPrograms, LineProcess
from .rust_programs import BUILD_TIMEOUT_S, prepare_rust
from .support import PATIENCE_S

BUNDLES: Final = 4
TOPICS: Final = 4
COUNT: Final = 100
MOVES_MIN: Final = 1
MOVES_MAX: Final = 4
"""Moves of all bundles that a stream lives through; a fast client has few of them."""
SCENARIO_TIMEOUT_S: Final = 120.0
HTTP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05
"""Between questions about the stream, which cost the client its processor."""
STREAM: Final = "stream-over-moves"
WHOLE_TIMEOUT_S: Final = 1_800
SCENARIOS: Final = tuple(f"test_{name}_client.py" for name in ("java", "go", "rust"))
"""PulsarFlex, for Node.js, asks the broker that it knows for every topic."""

OTHERS: Final = ("-k", "not domains")
"""A broker lists the non-persistent topics that it serves, and a pattern asks one broker."""

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)

Stream = Callable[[str], str]
"""Streams in a namespace, and returns what went wrong."""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalCluster]:
    before = request.session.testsfailed
    with running_cluster(
        tmp_path_factory.mktemp("cluster"),
        bookies=2,
        brokers=2,
        failed=lambda: request.session.testsfailed > before,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        transactions=True,
    ) as made:
        yield made


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=brokers(cluster)[0].http_url,
        timeout=HTTP_TIMEOUT_S,
        trust_env=False,
        follow_redirects=True,
    ) as http:
        yield http


@pytest.fixture
def namespace(admin: httpx.Client) -> str:
    made = f"public/ns-{uuid.uuid4().hex[:10]}"
    admin.put(f"/admin/v2/namespaces/{made}", json={"bundles": {"numBundles": BUNDLES}})
    return made


def service_url(cluster: LocalCluster) -> str:
    return ",".join([f"pulsar://{brokers(cluster)[0].address}", brokers(cluster)[1].address])


@pytest.fixture
def java_stream(cluster: LocalCluster, java: JavaPrograms, tmp_path: Path) -> Iterator[Stream]:
    http_url = brokers(cluster)[0].http_url
    command = java.command(java.client, "InteropSuite", service_url(cluster), http_url)
    with line_process(command, tmp_path) as process:
        yield lambda namespace: scenario_error(process, namespace)


@pytest.fixture
def go_stream(cluster: LocalCluster, tmp_path: Path) -> Iterator[Stream]:
    command = [str(prepare_go("scenarios")), service_url(cluster), brokers(cluster)[0].http_url]
    with line_process(command, tmp_path) as process:
        yield lambda namespace: scenario_error(process, namespace)


@pytest.fixture
def rust_stream(cluster: LocalCluster, tmp_path: Path) -> Iterator[Stream]:
    # The crate takes one address.
    url = f"pulsar://{brokers(cluster)[0].address}"
    command = [str(prepare_rust()), url, brokers(cluster)[0].http_url]
    with line_process(command, tmp_path) as process:
        yield lambda namespace: scenario_error(process, namespace)


@contextlib.contextmanager
def line_process(command: list[str], directory: Path) -> Iterator[LineProcess]:
    process = LineProcess(command, directory / "scenarios.log")
    yield process
    assert process.close() == 0


def scenario_error(process: LineProcess, namespace: str) -> str:
    answer = json.loads(process.ask(f"{namespace} {STREAM}", SCENARIO_TIMEOUT_S))
    return str(answer["error"])


@pytest.fixture
def python_stream(cluster: LocalCluster, client_log: Path) -> Iterator[Stream]:
    client = pulsar.Client(
        service_url(cluster),
        operation_timeout_seconds=int(PATIENCE_S),
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(client_log)),
    )
    yield lambda namespace: stream(client, namespace)
    client.close()


def stream(client: pulsar.Client, namespace: str) -> str:
    """Sends in order while the topics move; see the scenarios of the other clients."""
    topics = [f"persistent://{namespace}/t-{number}" for number in range(TOPICS)]
    consumer = client.subscribe(topics, "s", pulsar.ConsumerType.Exclusive)
    with ThreadPoolExecutor(TOPICS) as pool:
        sending = [pool.submit(send, client, topic) for topic in topics]
        following = dict.fromkeys(topics, 0)
        while min(following.values()) < COUNT:
            message = consumer.receive(int(PATIENCE_S * 1000))
            consumer.acknowledge(message)
            expected, number = following[message.topic_name()], int(message.data())
            if number > expected:
                return f"{message.topic_name()}: {number} came before {expected}"
            following[message.topic_name()] = max(expected, number + 1)
        for each in sending:
            each.result(PATIENCE_S)
    return ""


def send(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(COUNT):
        producer.send(b"%d" % number)
    producer.close()


def goes_on(admin: httpx.Client, namespace: str) -> bool:
    """Whether a broker has delivered something of the stream since it got the topics."""
    delivered = 0
    for number in range(TOPICS):
        answer = admin.get(f"/admin/v2/persistent/{namespace}/t-{number}/stats")
        if answer.status_code != 200:
            return False
        for subscription in answer.json()["subscriptions"].values():
            delivered += subscription["msgOutCounter"]
    return delivered > 0


def move(admin: httpx.Client, namespace: str, until: Future[str]) -> int:
    """Moves every bundle to one broker and then to the other, while the stream goes on.

    Each time, it waits until the clients have come back. Returns the number of moves.
    """
    ids = sorted(admin.get("/admin/v2/brokers").raise_for_status().json())
    assert len(ids) == 2
    policies = admin.get(f"/admin/v2/namespaces/{namespace}").raise_for_status().json()
    boundaries = policies["bundles"]["boundaries"]
    moves = 0
    while not until.done() and moves < MOVES_MAX:
        if goes_on(admin, namespace):
            for bundle in map("_".join, pairwise(boundaries)):
                path = f"/admin/v2/namespaces/{namespace}/{bundle}/unload"
                query = {"destinationBroker": ids[moves % 2]}
                admin.put(path, params=query).raise_for_status()
            moves += 1
        wait([until], POLL_S)
    return moves


@pytest.mark.parametrize(
    "client",
    [
        "python",
        "java",
        "go",
        pytest.param("rust", marks=[pytest.mark.long, pytest.mark.timeout(BUILD_TIMEOUT_S)]),
    ],
)
def test_a_stream_while_topics_move(
    admin: httpx.Client, namespace: str, client: str, request: pytest.FixtureRequest
) -> None:
    streams: Stream = request.getfixturevalue(f"{client}_stream")
    with ThreadPoolExecutor(1, thread_name_prefix=client) as pool:
        running = pool.submit(streams, namespace)
        moves = move(admin, namespace, running)
        assert running.result() == ""
    assert moves >= MOVES_MIN
    answer = admin.get(f"/admin/v2/persistent/{namespace}").raise_for_status()
    assert len(answer.json()) == TOPICS


@pytest.mark.long
@pytest.mark.timeout(WHOLE_TIMEOUT_S + BUILD_TIMEOUT_S)
def test_all_scenarios_of_all_clients(cluster: LocalCluster) -> None:
    here = Path(__file__).parent
    modules = [here / name for name in SCENARIOS]
    modules += sorted(here.glob("test_python_*.py"))
    environment = os.environ | {
        # Some clients take one address only.
        "MAGNETAR_TEST_SERVICE_URL": f"pulsar://{brokers(cluster)[0].address}",
        "MAGNETAR_TEST_ADMIN_URL": brokers(cluster)[0].http_url,
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "long or not long",
            *OTHERS,
            *map(str, modules),
        ],
        cwd=here.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WHOLE_TIMEOUT_S + BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
